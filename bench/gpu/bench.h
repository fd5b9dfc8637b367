// What the rows of gpu_bench share: operands in the device's memory, times by recorded passes, lines beside a limit.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/ops/backends.h"

namespace m3::gpu_bench {

using Clock = std::chrono::steady_clock;

inline constexpr std::int64_t hidden = 6144, width = 3072, experts = 128, per_token = 4;
inline constexpr std::int64_t past_l2 = std::int64_t{400} << 20;  // bytes between two uses of an operand

// Operands of one shape, one behind the other: call i takes number i.
class Rotating {
 public:
  Rotating(const ops::Tensor& all, int copies) : all_(all), copies_(copies) {}
  ops::Tensor operator[](int i) const {
    ops::Tensor one = all_;
    one.rows = all_.rows / copies_;
    one.data = all_.row(i % copies_ * one.rows);
    return one;
  }

 private:
  ops::Tensor all_;
  int copies_;
};

class Bench {
 public:
  explicit Bench(double seconds, std::string only = "") : pool_(1), seconds_(seconds), only_(std::move(only)) {
    ops::BackendOptions options;
    options.name = "cuda";
    backend = ops::make_backend(options, pool_);
  }

  // Whether a row is asked for: its operation and what it is of.
  bool is_wanted(const std::string& operation, const std::string& what) {
    const bool wanted = only_.empty() || (operation + " " + what).find(only_) != std::string::npos;
    any_wanted_ = any_wanted_ || wanted;
    return wanted;
  }
  bool any_wanted() const { return any_wanted_; }
  std::byte* memory(std::int64_t bytes) { return memory_.emplace_back(backend->allocate(bytes)).data(); }
  std::byte* random(std::int64_t bytes, RandomFill fill) {
    std::byte* data = memory(bytes);
    fill.key = ++key_;
    backend->fill_random({data, static_cast<std::size_t>(bytes)}, fill);
    return data;
  }
  template <typename T>
  T* place(const std::vector<T>& values) {
    std::byte* data = memory(static_cast<std::int64_t>(values.size() * sizeof(T)));
    backend->upload(data, std::as_bytes(std::span(values)));
    return reinterpret_cast<T*>(data);
  }
  ops::Tensor activations(std::int64_t rows, std::int64_t columns) {
    return {DType::bf16, rows, columns, columns,
            random(rows * columns * 2, {.kind = RandomFill::Kind::bf16, .parameter = 1})};
  }
  ops::Tensor floats(std::int64_t rows, std::int64_t columns, double scale) {
    return {DType::f32, rows, columns, columns,
            random(rows * columns * 4, {.kind = RandomFill::Kind::f32, .parameter = scale})};
  }
  Rotating rotating(int copies, std::int64_t rows, std::int64_t columns) {
    return {activations(copies * rows, columns), copies};
  }
  Rotating rotating_floats(int copies, std::int64_t rows, std::int64_t columns, double scale) {
    return {floats(copies * rows, columns, scale), copies};
  }
  std::vector<WeightMatrix> weights(int copies, WeightFormat format, std::int64_t rows, std::int64_t columns) {
    std::vector<WeightMatrix> made;
    for (int i = 0; i < copies; ++i) made.push_back(weight(format, rows, columns));
    return made;
  }
  WeightMatrix weight(WeightFormat format, std::int64_t rows, std::int64_t columns) {
    WeightMatrix made;
    made.format = format;
    made.rows = rows;
    made.columns = columns;
    const std::int64_t bytes = rows * made.row_bytes();
    switch (format) {
      case WeightFormat::f32: made.values = random(bytes, {.kind = RandomFill::Kind::f32, .parameter = 0.02}); break;
      case WeightFormat::bf16: made.values = random(bytes, {.kind = RandomFill::Kind::bf16, .parameter = 0.02}); break;
      case WeightFormat::fp8:
      case WeightFormat::mxfp8:
        made.values = random(bytes, {.kind = RandomFill::Kind::f8_e4m3, .parameter = 100});
        break;
      default: made.values = random(bytes, {.kind = RandomFill::Kind::bytes}); break;
    }
    if (const std::int64_t scales = rows * made.scale_row_bytes(); scales > 0) {
      made.scales = format == WeightFormat::nvfp4
                        ? random(scales, {.kind = RandomFill::Kind::e8m0, .parameter = 0.5, .base = 0x38})  // 1, 1.125
                        : random(scales, {.kind = RandomFill::Kind::e8m0, .parameter = 0.5, .base = 118});
    }
    if (format == WeightFormat::nvfp4) made.tensor_scale = 0.01f;
    return made;
  }
  void bind(const ops::Limits& limits) {
    workspace_ = ops::Memory();
    workspace_ = backend->allocate(backend->workspace_bytes(limits));
    backend->bind_workspace(workspace_.bytes(), limits);
  }
  // Seconds of one call, from recorded passes: call(i) uses operand i of `copies`. A pass has enough calls to last 4 ms,
  // as a model's step does: between two passes the GPU stands still for some 6 us. `rests`: also the time of a pass after
  // a rest of 150 ms, as the peak of products is taken; under a long load of them the card draws all the power that it
  // may, and its clock falls by a quarter.
  double time(int copies, const std::function<void(int)>& call, bool rests = false) {
    constexpr double least_pass = 4e-3;
    constexpr int most_calls = 4000;
    int calls = copies;
    std::uint64_t key = 0;
    const auto pass = [&] {
      if (!backend->begin_pass(key)) {
        for (int i = 0; i < calls; ++i) call(i % copies);
      }
      backend->end_pass();
    };
    const auto begin_passes = [&] {
      key = ++pass_key_;
      for (int i = 0; i < 3; ++i) pass();
      backend->synchronize();
      const auto begin = Clock::now();
      pass();
      backend->synchronize();
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    double once = begin_passes();
    if (once < least_pass && calls < most_calls) {
      calls = std::min(most_calls, static_cast<int>(least_pass / once * calls) + 1);
      once = begin_passes();
    }
    std::vector<double> rounds;
    rested_ = 0;
    for (int round = 0; rests && round < 3; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      const auto begin = Clock::now();
      pass();
      backend->synchronize();
      rounds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / calls);
    }
    if (rests) {
      std::sort(rounds.begin(), rounds.end());
      rested_ = rounds[1];
      rounds.clear();
    }
    const int times = std::clamp(static_cast<int>(seconds_ / once), 2, 400);
    for (int round = 0; round < 3; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < times; ++i) pass();
      backend->synchronize();
      rounds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / times / calls);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[1];
  }
  void clear() {
    backend->synchronize();
    backend->bind_workspace(workspace_.bytes(), {});  // forgets recorded passes
    memory_.clear();
  }

  std::unique_ptr<ops::Backend> backend;
  double read_rate = 0, matmul_rate = 0;

  void row_read(const char* operation, const std::string& what, double seconds, double bytes) const {
    std::printf("%-14s %-34s %10.1f us  limit %8.1f us  %5.1f %% of reading\n", operation, what.c_str(), seconds * 1e6,
                bytes / read_rate * 1e6, 100 * bytes / read_rate / seconds);
    std::fflush(stdout);
  }
  void row_matmul(const char* operation, const std::string& what, double seconds, double operations) const {
    std::printf("%-14s %-34s %10.3f ms  limit %8.3f ms  %5.1f %% of matmul", operation, what.c_str(), seconds * 1e3,
                operations / matmul_rate * 1e3, 100 * operations / matmul_rate / seconds);
    if (rested_ > 0) {
      std::printf("; rested %.3f ms, %.1f %%", rested_ * 1e3, 100 * operations / matmul_rate / rested_);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  // Beside the larger of the two limits.
  void row(const char* operation, const std::string& what, double seconds, double bytes, double operations) const {
    if (bytes / read_rate > operations / matmul_rate) return row_read(operation, what, seconds, bytes);
    row_matmul(operation, what, seconds, operations);
  }

 private:
  ThreadPool pool_;
  double seconds_, rested_ = 0;
  std::string only_;
  bool any_wanted_ = false;
  std::vector<ops::Memory> memory_;
  ops::Memory workspace_;
  std::uint64_t key_ = 0, pass_key_ = 0;
};

inline ops::Limits limits_for(std::int64_t tokens, std::int64_t context) {
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.logits_rows = std::min<std::int64_t>(tokens, 8);
  limits.context = context;
  limits.hidden = hidden;
  limits.query_heads = 64;
  limits.kv_heads = 4;
  limits.intermediate = width;
  limits.experts = experts;
  limits.experts_per_token = per_token;
  limits.topk_blocks = 16;
  limits.vocab = 1024;
  limits.widest_linear = 9856;
  return limits;
}

inline int copies_for(double bytes, int most = 60) {
  return std::clamp(static_cast<int>(static_cast<double>(past_l2) / bytes) + 1, 2, most);
}
// Of operands of some 40 KB: twice the L2's 50 MB.
inline constexpr int most_copies = 2500;

// Sequences with `queries` tokens each at the end of their context, pages in random order.
struct Sequences {
  Sequences(Bench& bench, std::int64_t count, std::int64_t queries, std::int64_t context, std::int64_t pool) {
    std::mt19937 random(7);
    const std::int64_t stride = (context + 127) / 128;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pool)), table, positions, owners, begin{0}, lengths, ids;
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (std::int64_t s = 0; s < count; ++s) {
      for (std::int64_t b = 0; b < stride; ++b)
        table.push_back(order[static_cast<std::size_t>((s * stride + b) % pool)]);
      for (std::int64_t i = 0; i < queries; ++i) {
        positions.push_back(static_cast<std::int32_t>(context - queries + i));
        owners.push_back(static_cast<std::int32_t>(s));
        ids.push_back(0);
      }
      begin.push_back(static_cast<std::int32_t>(positions.size()));
      lengths.push_back(static_cast<std::int32_t>(context));
    }
    batch.tokens = static_cast<std::int32_t>(positions.size());
    batch.sequences = static_cast<std::int32_t>(count);
    batch.token_ids = bench.place(ids);
    batch.positions = bench.place(positions);
    batch.sequence_of_token = bench.place(owners);
    batch.query_begin = bench.place(begin);
    batch.context_lengths = bench.place(lengths);
    batch.page_table = bench.place(table);
    batch.index_page_table = batch.page_table;
    batch.page_table_stride = static_cast<std::int32_t>(stride);
    batch.longest_query = static_cast<std::int32_t>(queries);
    batch.longest_context = static_cast<std::int32_t>(context);
  }
  ops::Batch batch;
};

inline std::string sized(std::int64_t tokens) {
  return tokens >= 1 << 20 ? std::to_string(tokens >> 20) + "M"
         : tokens >= 1024  ? std::to_string(tokens >> 10) + "K"
                           : std::to_string(tokens);
}

// The rows, by file.
void bench_linear(Bench& bench);
void bench_experts(Bench& bench);
void bench_select(Bench& bench);
void bench_attention(Bench& bench);
void bench_small(Bench& bench);
void bench_finish(Bench& bench);
void bench_sample(Bench& bench);
void bench_vision(Bench& bench);
void bench_upload(Bench& bench);

}  // namespace m3::gpu_bench
