#include "src/ops/cpu/mlp_jobs.h"

#include <algorithm>

#include "src/base/error.h"

namespace m3::ops::cpu {

void check_mlp(const MlpWeights& weights, std::int64_t hidden) {
  const std::int64_t width = weights.gate.rows;
  if (weights.gate.columns != hidden || weights.up.columns != hidden || weights.up.rows != width ||
      weights.down.columns != width || weights.down.rows != hidden) {
    fail_internal("an MLP of gate [{}, {}], up [{}, {}], down [{}, {}] on a hidden size of {}", width,
                  weights.gate.columns, weights.up.rows, weights.up.columns, weights.down.rows, weights.down.columns,
                  hidden);
  }
}

void MlpRunner::run_threads(std::int64_t products, FunctionRef<void(int thread, int threads)> work) {
  if (products < single_thread_products) return work(0, 1);
  pool_.run([&](int thread) { work(thread, pool_.size()); });
}

void MlpRunner::run(std::int64_t jobs) {
  std::int64_t job = 0;
  while (job < jobs) {
    std::int64_t end = job;
    std::int64_t entries = 0;
    while (end < jobs && memory_.jobs[end].count <= direct_tokens &&
           entries + memory_.jobs[end].count <= block_tokens) {
      entries += memory_.jobs[end++].count;
    }
    if (end > job) {
      run_few(memory_.jobs + job, end - job);
      job = end;
      continue;
    }
    const MlpJob& big = memory_.jobs[job++];
    for (std::int64_t begin = 0; begin < big.count; begin += block_tokens) {
      run_block(big, big.begin + begin, std::min(block_tokens, big.count - begin));
    }
  }
}

void MlpRunner::activate(const MlpWeights& weights, const PackedX& x, std::int64_t first_row, int thread, int threads,
                         const MatmulScratch& matmul) const {
  const std::int64_t width = weights.gate.rows;
  const RowRange owned = owned_rows(width, thread, threads);
  float* up = matmul.out + MatmulScratch::out_elements;
  multiply_rows(kernels_, weights.gate, owned.begin, owned.end, x, matmul, matmul.out,
                [&](std::int64_t first, std::int64_t rows, const float* gate, std::int64_t stride) {
                  multiply_rows(kernels_, weights.up, first, first + rows, x, matmul, up,
                                [](std::int64_t, std::int64_t, const float*, std::int64_t) {});
                  for (std::int64_t t = 0; t < x.tokens; ++t) {
                    kernels_.swigluoai(gate + t * stride, up + t * stride, activation_, rows,
                                       memory_.activations + (first_row + t) * width + first);
                  }
                });
}

void MlpRunner::add_down(const MlpWeights& weights, const PackedX& x, std::int64_t first_entry, int thread, int threads,
                         const MatmulScratch& matmul) const {
  const RowRange owned = owned_rows(weights.down.rows, thread, threads);
  multiply_rows(kernels_, weights.down, owned.begin, owned.end, x, matmul, matmul.out,
                [&](std::int64_t first, std::int64_t rows, const float* values, std::int64_t stride) {
                  for (std::int64_t t = 0; t < x.tokens; ++t) {
                    const std::int64_t entry = first_entry + t;
                    float* sums = memory_.sums + memory_.tokens_of[entry] * hidden_.columns + first;
                    kernels_.accumulate(values + t * stride, memory_.weights_of[entry], rows, sums);
                  }
                });
}

void MlpRunner::run_few(const MlpJob* jobs, std::int64_t count) {
  std::int64_t products = 0;
  for (const MlpJob* job = jobs; job < jobs + count; ++job) {
    products += job->count * job->weights->gate.rows * job->weights->gate.columns;
  }
  const auto for_each_job = [&](bool down, int thread, int threads) {
    Arena own = parts_[thread];
    MultiplyPart part(own, kernels_, widest_);
    std::int64_t row = 0;
    for (const MlpJob* job = jobs; job < jobs + count; ++job) {
      const MlpWeights& weights = *job->weights;
      part.own.begin(job->count, down ? weights.down.columns : weights.gate.columns);
      part.own.need(kernels_, down ? weights.down : weights.gate);
      part.own.need(kernels_, down ? weights.down : weights.up);
      for (std::int64_t t = 0; t < job->count; ++t) {
        const std::uint16_t* x = down ? memory_.activations + (row + t) * part.own.columns : hidden_row(job->begin + t);
        pack_token(kernels_, x, part.own, t, part.row);
      }
      if (down) {
        add_down(weights, part.own, job->begin, thread, threads, part.matmul);
      } else {
        activate(weights, part.own, row, thread, threads, part.matmul);
      }
      row += job->count;
    }
  };
  run_threads(products, [&](int thread, int threads) { for_each_job(false, thread, threads); });
  run_threads(products, [&](int thread, int threads) { for_each_job(true, thread, threads); });
}

void MlpRunner::run_block(const MlpJob& job, std::int64_t begin, std::int64_t count) {
  const MlpWeights& weights = *job.weights;
  const std::int64_t products = count * weights.gate.rows * weights.gate.columns;
  PackedX x = memory_.x;
  const auto pack = [&](const WeightMatrix& first, const WeightMatrix& second, const auto& row_of) {
    x.begin(count, first.columns);
    x.need(kernels_, first);
    x.need(kernels_, second);
    pool_.split(count, 4, [&](std::int64_t from, std::int64_t to, int thread) {
      Arena own = parts_[thread];
      const MultiplyPart part(own, kernels_, widest_);
      for (std::int64_t t = from; t < to; ++t) pack_token(kernels_, row_of(t), x, t, part.row);
    });
  };
  pack(weights.gate, weights.up, [&](std::int64_t t) { return hidden_row(begin + t); });
  run_threads(products, [&](int thread, int threads) {
    Arena own = parts_[thread];
    const MultiplyPart part(own, kernels_, widest_);
    activate(weights, x, 0, thread, threads, part.matmul);
  });
  pack(weights.down, weights.down, [&](std::int64_t t) { return memory_.activations + t * weights.down.columns; });
  run_threads(products, [&](int thread, int threads) {
    Arena own = parts_[thread];
    const MultiplyPart part(own, kernels_, widest_);
    add_down(weights, x, begin, thread, threads, part.matmul);
  });
}

}  // namespace m3::ops::cpu
