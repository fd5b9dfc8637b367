// What both kernels of `sample` share: the order of logits and the draw.
#pragma once

#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

__device__ inline bool drawable(float logit) { return fabsf(logit) <= 3.402823466e38f; }

// Orders floats as integers; 0 for what cannot be drawn.
__device__ inline std::uint32_t draw_key(float value) {
  if (!drawable(value)) return 0;
  std::uint32_t bits = __float_as_uint(value);
  if (bits == 0x80000000u) bits = 0;  // -0 ties with 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Uniform in [0, 1) with 53 random bits: host/sampler's draw (Philox 4x32-10).
__device__ inline double uniform_draw(std::uint64_t seed, std::uint32_t sample, std::int64_t position) {
  std::uint32_t counter[4] = {static_cast<std::uint32_t>(position),
                              static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), sample, 0};
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const std::uint64_t bits = (std::uint64_t{counter[0]} << 32 | counter[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// Penalties, biases and the mask of `row`, in this order, on the logits `values` of ids first … first + count - 1, by a
// block's `threads`. `counts` [count]: zero before and after.
__device__ inline void shape_logits(const SampleRow& row, float* values, std::uint32_t* counts, int first, int count,
                                    int thread, int threads) {
  // Each different id of a history once: the thread that finds its count at zero again leaves it there.
  const auto count_ids = [&](const std::int32_t* history, int length) {
    for (int i = thread; i < length; i += threads) {
      const int id = history[i] - first;
      if (id >= 0 && id < count) atomicAdd(&counts[id], 1u);
    }
  };
  const auto for_each_counted = [&](const std::int32_t* history, int length, const auto& apply) {
    for (int i = thread; i < length; i += threads) {
      const int id = history[i] - first;
      if (id < 0 || id >= count) continue;
      const std::uint32_t times = atomicExch(&counts[id], 0u);
      if (times > 0) apply(id, times);
    }
  };
  if (row.repetition_penalty != 1) {
    count_ids(row.prompt_ids, row.prompt_count);
    count_ids(row.output_ids, row.output_count);
    __syncthreads();
    const auto apply = [&](int id, std::uint32_t) {
      const float logit = values[id];
      values[id] = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    };
    for_each_counted(row.prompt_ids, row.prompt_count, apply);
    for_each_counted(row.output_ids, row.output_count, apply);
    __syncthreads();
  }
  if (row.presence_penalty != 0 || row.frequency_penalty != 0) {
    count_ids(row.output_ids, row.output_count);
    __syncthreads();
    for_each_counted(row.output_ids, row.output_count, [&](int id, std::uint32_t times) {
      values[id] -= __fadd_rn(row.presence_penalty, __fmul_rn(row.frequency_penalty, static_cast<float>(times)));
    });
    __syncthreads();
  }
  if (row.bias_count > 0) {
    if (thread == 0) {  // in order: an id may come twice
      for (int i = 0; i < row.bias_count; ++i) {
        const int id = row.bias[i].id - first;
        if (id >= 0 && id < count) values[id] += row.bias[i].value;
      }
    }
    __syncthreads();
  }
  if (row.allowed_words >= 0) {
    for (int i = thread; i < count; i += threads) {
      const int id = first + i;
      const std::uint32_t bits = id / 32 < row.allowed_words ? row.allowed[id / 32] : 0u;
      if ((bits >> (id % 32) & 1u) == 0) values[i] = -__builtin_huge_valf();
    }
    __syncthreads();
  }
}

}  // namespace m3::ops::cuda
