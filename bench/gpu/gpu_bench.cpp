// Times of the CUDA backend's operations at M3's true sizes, each beside the limit that the same run measured: reading
// for decode, matrix products for prefill. Decode runs as a recorded pass over operands that rotate past the L2.
// gpu_bench [--filter NAME] [--seconds S]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/upload_bench.h"
#include "src/ops/backends.h"
#include "src/ops/cuda/cuda_backend.h"
#include "src/ops/cuda/machine_limits.h"

namespace {

using namespace m3;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t hidden = 6144, width = 3072, experts = 128, per_token = 4;
constexpr std::int64_t past_l2 = std::int64_t{400} << 20;  // bytes between two uses of an operand

class Bench {
 public:
  explicit Bench(double seconds) : pool_(1), seconds_(seconds) {
    ops::BackendOptions options;
    options.name = "cuda";
    backend = ops::make_backend(options, pool_);
  }

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
                        ? random(scales, {.kind = RandomFill::Kind::f8_e4m3, .parameter = 2})
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
  // Seconds of one call, from recorded passes of `copies` calls: call(i) uses operand i.
  double time(int copies, const std::function<void(int)>& call) {
    const std::uint64_t key = ++pass_key_;
    const auto pass = [&] {
      if (!backend->begin_pass(key)) {
        for (int i = 0; i < copies; ++i) call(i);
      }
      backend->end_pass();
    };
    for (int i = 0; i < 3; ++i) pass();
    backend->synchronize();
    auto begin = Clock::now();
    pass();
    backend->synchronize();
    const double once = std::chrono::duration<double>(Clock::now() - begin).count();
    const int times = std::clamp(static_cast<int>(seconds_ / once), 2, 400);
    std::vector<double> rounds;
    for (int round = 0; round < 3; ++round) {
      begin = Clock::now();
      for (int i = 0; i < times; ++i) pass();
      backend->synchronize();
      rounds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / times / copies);
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
    std::printf("%-14s %-34s %10.3f ms  limit %8.3f ms  %5.1f %% of matmul\n", operation, what.c_str(), seconds * 1e3,
                operations / matmul_rate * 1e3, 100 * operations / matmul_rate / seconds);
    std::fflush(stdout);
  }

 private:
  ThreadPool pool_;
  double seconds_;
  std::vector<ops::Memory> memory_;
  ops::Memory workspace_;
  std::uint64_t key_ = 0, pass_key_ = 0;
};

ops::Limits limits_for(std::int64_t tokens, std::int64_t context) {
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

int copies_for(double bytes) { return std::clamp(static_cast<int>(static_cast<double>(past_l2) / bytes) + 1, 2, 60); }

void bench_linear(Bench& bench) {
  struct Case {
    const char* name;
    std::vector<std::int64_t> rows;
    std::int64_t columns;
    WeightFormat format;
  };
  const std::vector<Case> cases = {{"6144 -> 9856", {8192, 512, 512, 512, 128}, 6144, WeightFormat::bf16},
                                   {"8192 -> 6144", {6144}, 8192, WeightFormat::bf16},
                                   {"6144 -> 9856 mxfp8", {8192, 512, 512, 512, 128}, 6144, WeightFormat::mxfp8},
                                   {"head 6144 -> 200064", {200064}, 6144, WeightFormat::bf16}};
  for (const Case& shape : cases) {
    const std::int64_t rows = std::accumulate(shape.rows.begin(), shape.rows.end(), std::int64_t{0});
    for (const std::int64_t tokens : {1, 8, 32}) {
      if (rows > 100000 && tokens > 1) continue;
      bench.bind(limits_for(tokens, 128));
      std::vector<std::vector<WeightMatrix>> weights;
      double bytes = 0;
      const int copies = [&] {
        WeightMatrix one;
        one.format = shape.format;
        one.columns = shape.columns;
        one.rows = rows;
        bytes = static_cast<double>(rows * (one.row_bytes() + one.scale_row_bytes()));
        return copies_for(bytes);
      }();
      for (int i = 0; i < copies; ++i) {
        auto& set = weights.emplace_back();
        for (const std::int64_t part : shape.rows) set.push_back(bench.weight(shape.format, part, shape.columns));
      }
      const ops::Tensor x = bench.activations(tokens, shape.columns), out = bench.activations(tokens, rows);
      const double seconds =
          bench.time(copies, [&](int i) { bench.backend->linear(x, weights[static_cast<std::size_t>(i)], out); });
      bench.row_read("linear", std::string(shape.name) + ", " + std::to_string(tokens) + " tokens", seconds, bytes);
      bench.clear();
    }
  }
  struct Prefill {
    std::int64_t tokens, rows, columns;
    WeightFormat format = WeightFormat::bf16;
  };
  const std::vector<Prefill> prefills = {{128, 9856, 6144},
                                         {512, 9856, 6144},
                                         {2048, 9856, 6144},
                                         {8192, 9856, 6144},
                                         {8192, 6144, 8192},
                                         {8192, 9856, 6144, WeightFormat::fp8},
                                         {8192, 9856, 6144, WeightFormat::mxfp8},
                                         {8192, 9856, 6144, WeightFormat::mxfp4},
                                         {8192, 9856, 6144, WeightFormat::nvfp4}};
  for (const Prefill& shape : prefills) {
    ops::Limits limits = limits_for(shape.tokens, 128);
    limits.hidden = std::max(shape.columns, shape.rows);
    bench.bind(limits);
    const WeightMatrix weight = bench.weight(shape.format, shape.rows, shape.columns);
    const ops::Tensor x = bench.activations(shape.tokens, shape.columns),
                      out = bench.activations(shape.tokens, shape.rows);
    const double seconds = bench.time(2, [&](int) { bench.backend->linear(x, {&weight, 1}, out); });
    bench.row_matmul("linear",
                     std::to_string(shape.columns) + " -> " + std::to_string(shape.rows) + ", " +
                         std::to_string(shape.tokens) + " tokens, " + std::string(weight_format_name(shape.format)),
                     seconds, 2.0 * static_cast<double>(shape.tokens * shape.rows * shape.columns));
    bench.clear();
  }
}

void bench_experts(Bench& bench) {
  std::mt19937 random(5);
  for (const WeightFormat format :
       {WeightFormat::bf16, WeightFormat::mxfp4, WeightFormat::mxfp8, WeightFormat::nvfp4}) {
    const std::string name(weight_format_name(format));
    std::vector<ops::MlpWeights> mlps;
    for (int e = 0; e < experts; ++e) {
      mlps.push_back({bench.weight(format, width, hidden), bench.weight(format, width, hidden),
                      bench.weight(format, hidden, width)});
    }
    const ops::MlpWeights shared = {bench.weight(WeightFormat::bf16, width, hidden),
                                    bench.weight(WeightFormat::bf16, width, hidden),
                                    bench.weight(WeightFormat::bf16, hidden, width)};
    const auto stored = [](const WeightMatrix& w) { return w.rows * (w.row_bytes() + w.scale_row_bytes()); };
    const auto expert_bytes = static_cast<double>(stored(mlps[0].gate) + stored(mlps[0].up) + stored(mlps[0].down));
    for (const std::int64_t tokens : {1, 8, 32, 128, 1024, 8192}) {
      bench.bind(limits_for(tokens, 128));
      const int copies = tokens >= 1024 ? 2 : copies_for(expert_bytes * 4) + 4;
      std::vector<ops::Routing> routings;
      double loaded = 0;
      for (int i = 0; i < copies; ++i) {
        std::vector<std::int32_t> ids;
        std::vector<bool> used(experts, false);
        for (std::int64_t t = 0; t < tokens; ++t) {
          std::vector<std::int32_t> order(experts);
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), random);
          std::sort(order.begin(), order.begin() + per_token);
          ids.insert(ids.end(), order.begin(), order.begin() + per_token);
        }
        for (const std::int32_t id : ids) used[static_cast<std::size_t>(id)] = true;
        loaded += static_cast<double>(std::count(used.begin(), used.end(), true)) / copies;
        routings.push_back(
            {static_cast<int>(per_token), bench.place(ids), bench.place(std::vector<float>(ids.size(), 0.25f))});
      }
      const ops::Tensor x = bench.activations(tokens, hidden), out = bench.activations(tokens, hidden);
      const double seconds = bench.time(copies, [&](int i) {
        bench.backend->experts(x, routings[static_cast<std::size_t>(i)], 0, mlps, nullptr, 2.0f, {}, out);
      });
      const std::string what = name + ", " + std::to_string(tokens) + " tokens";
      if (tokens >= 1024) {
        bench.row_matmul("experts", what, seconds, 6.0 * static_cast<double>(tokens * per_token * hidden * width));
      } else {
        bench.row_read("experts", what + " (" + std::to_string(static_cast<int>(loaded + 0.5)) + " experts)", seconds,
                       loaded * expert_bytes);
        // As a layer has it. The shared expert's weights are larger than the L2.
        const double both = bench.time(copies, [&](int i) {
          bench.backend->experts(x, routings[static_cast<std::size_t>(i)], 0, mlps, &shared, 2.0f, {}, out);
        });
        bench.row_read("experts", what + " and a shared one (bf16)", both,
                       loaded * expert_bytes + static_cast<double>(6 * hidden * width));
      }
    }
    bench.clear();
  }
}

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

std::string sized(std::int64_t tokens) {
  return tokens >= 1 << 20 ? std::to_string(tokens >> 20) + "M"
         : tokens >= 1024  ? std::to_string(tokens >> 10) + "K"
                           : std::to_string(tokens);
}

void bench_select(Bench& bench) {
  struct Case {
    std::int64_t sequences, queries, context;
    DType dtype = DType::bf16;
  };
  const std::vector<Case> cases = {{1, 1, 8192},    {1, 1, 131072},    {1, 1, 1 << 20},   {16, 1, 131072},
                                   {64, 1, 65536},  {16, 1, 8192},     {64, 1, 8192},     {64, 1, 8192, DType::f8_e4m3},
                                   {1, 8192, 8192}, {1, 8192, 131072}, {1, 32768, 32768}, {1, 2048, 526336}};
  for (const Case& shape : cases) {
    bench.bind(limits_for(shape.sequences * shape.queries, shape.context));
    const bool decode = shape.queries == 1;
    const std::int64_t element = shape.dtype == DType::bf16 ? 2 : 1;
    const std::int64_t pages = shape.sequences * ((shape.context + 127) / 128);
    const double bytes = static_cast<double>(shape.sequences * shape.context * 128 * element);
    const int copies = decode ? copies_for(bytes) : 2;
    std::vector<ops::LayerPages> layers;
    for (int i = 0; i < copies; ++i) {
      ops::LayerPages& layer = layers.emplace_back();
      const auto kind = shape.dtype == DType::bf16 ? RandomFill::Kind::bf16 : RandomFill::Kind::f8_e4m3;
      layer.index_k = {shape.dtype, bench.random(pages * 128 * 128 * element, {.kind = kind, .parameter = 1}),
                       128 * 128 * element};
    }
    const Sequences sequences(bench, shape.sequences, shape.queries, shape.context, pages);
    const ops::Tensor q = bench.activations(sequences.batch.tokens, 512);
    auto* ids = reinterpret_cast<std::int32_t*>(bench.memory(std::int64_t{sequences.batch.tokens} * 4 * 16 * 4));
    ops::SelectBlocks args;
    args.index_heads = 4;
    args.topk = 16;
    const double seconds = bench.time(copies, [&](int i) {
      bench.backend->select_blocks(sequences.batch, args, q, layers[static_cast<std::size_t>(i)], ids);
    });
    const std::string fp8 = shape.dtype == DType::bf16 ? "" : " fp8";
    if (decode) {
      bench.row_read("select_blocks", std::to_string(shape.sequences) + " x " + sized(shape.context) + fp8, seconds,
                     bytes);
    } else {
      const double first = static_cast<double>(shape.context - shape.queries);
      const double pairs = static_cast<double>(shape.queries) * (first + static_cast<double>(shape.queries) / 2);
      bench.row_matmul("select_blocks", std::to_string(shape.queries) + " on " + sized(shape.context - shape.queries),
                       seconds, pairs * 4 * 128 * 2);
    }
    bench.clear();
  }
}

void bench_attention(Bench& bench) {
  struct Case {
    std::int64_t sequences, queries, context;
    DType dtype = DType::bf16;
    bool dense = false;
  };
  const std::vector<Case> cases = {{1, 1, 8192},
                                   {16, 1, 8192},
                                   {64, 1, 8192},
                                   {128, 1, 32768},
                                   {64, 1, 8192, DType::f8_e4m3},
                                   {1, 1, 8192, DType::bf16, true},
                                   {32, 1, 8192, DType::bf16, true},
                                   {1, 8192, 8192},
                                   {1, 32768, 32768},
                                   {1, 8192, 131072},
                                   {1, 8192, 8192, DType::f8_e4m3},
                                   {1, 32768, 32768, DType::f8_e4m3},
                                   {1, 8192, 131072, DType::f8_e4m3},
                                   {1, 8192, 8192, DType::bf16, true},
                                   {1, 8192, 8192, DType::f8_e4m3, true},
                                   {1, 2048, 124928, DType::bf16, true}};
  std::mt19937 random(9);
  for (const Case& shape : cases) {
    bench.bind(limits_for(shape.sequences * shape.queries, shape.context));
    const bool decode = shape.queries == 1;
    const std::int64_t element = shape.dtype == DType::bf16 ? 2 : 1;
    const std::int64_t pages = shape.sequences * ((shape.context + 127) / 128);
    const std::int64_t page_bytes = 4 * 128 * 128 * element;
    const double keys = shape.dense ? static_cast<double>(shape.context) : 2048;
    const double bytes = static_cast<double>(shape.sequences) * keys * 4 * 128 * 2 * static_cast<double>(element);
    const int copies = decode ? std::min<int>(copies_for(bytes), 24) : 2;
    std::vector<ops::LayerPages> layers;
    for (int i = 0; i < copies; ++i) {
      ops::LayerPages& layer = layers.emplace_back();
      const auto kind = shape.dtype == DType::bf16 ? RandomFill::Kind::bf16 : RandomFill::Kind::f8_e4m3;
      layer.k = {shape.dtype, bench.random(pages * page_bytes, {.kind = kind, .parameter = 1}), page_bytes};
      layer.v = {shape.dtype, bench.random(pages * page_bytes, {.kind = kind, .parameter = 1}), page_bytes};
    }
    const Sequences sequences(bench, shape.sequences, shape.queries, shape.context, pages);
    std::vector<std::int32_t> ids;
    double useful = 0;
    for (std::int64_t s = 0; s < shape.sequences; ++s) {
      for (std::int64_t i = 0; i < shape.queries; ++i) {
        const std::int64_t position = shape.context - shape.queries + i;
        const auto own = static_cast<std::int32_t>(position / 128);
        for (int head = 0; head < 4; ++head) {
          std::vector<std::int32_t> chosen;
          while (static_cast<int>(chosen.size()) < std::min(own, 15)) {
            const auto block = static_cast<std::int32_t>(random() % static_cast<unsigned>(own));
            if (std::find(chosen.begin(), chosen.end(), block) == chosen.end()) chosen.push_back(block);
          }
          chosen.push_back(own);
          std::sort(chosen.begin(), chosen.end());
          useful += static_cast<double>(chosen.size() - 1) * 128 + static_cast<double>(position % 128 + 1);
          chosen.resize(16, -1);
          ids.insert(ids.end(), chosen.begin(), chosen.end());
        }
      }
    }
    const std::int32_t* block_ids = bench.place(ids);
    const ops::Tensor q = bench.activations(sequences.batch.tokens, 8192),
                      out = bench.activations(sequences.batch.tokens, 8192);
    const ops::Attention args{64, 4, 0.0883883f, 0, 16};
    const double seconds = bench.time(copies, [&](int i) {
      const ops::LayerPages& layer = layers[static_cast<std::size_t>(i)];
      if (shape.dense) {
        bench.backend->attend_dense(sequences.batch, args, q, layer, out);
      } else {
        bench.backend->attend_sparse(sequences.batch, args, q, layer, block_ids, out);
      }
    });
    const std::string fp8 = shape.dtype == DType::bf16 ? "" : " fp8";
    const char* name = shape.dense ? "attend_dense" : "attend_sparse";
    if (decode) {
      bench.row_read(name, std::to_string(shape.sequences) + " x " + sized(shape.context) + fp8, seconds, bytes);
    } else {
      if (shape.dense)
        useful = static_cast<double>(shape.queries) *
                 (static_cast<double>(shape.context) - static_cast<double>(shape.queries) / 2) * 4;
      bench.row_matmul(name, std::to_string(shape.queries) + " on " + sized(shape.context - shape.queries) + fp8,
                       seconds, useful * 16 * 128 * 4);
    }
    bench.clear();
  }
}

void bench_small(Bench& bench) {
  for (const std::int64_t tokens : {1, 32, 8192}) {
    bench.bind(limits_for(tokens, 8192));
    const WeightMatrix gate = bench.weight(WeightFormat::f32, experts, hidden);
    const ops::Tensor x = bench.activations(tokens, hidden), delta = bench.activations(tokens, hidden),
                      y = bench.activations(tokens, hidden);
    const ops::NormWeight norm{
        {reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, hidden).values), hidden}, 1e-6f, true};
    const ops::Routing routing{4, bench.place(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * 4), 0)),
                               bench.place(std::vector<float>(static_cast<std::size_t>(tokens * 4), 0))};
    const double norm_seconds = bench.time(8, [&](int) { bench.backend->add_norm(x, delta, norm, y, nullptr); });
    bench.row_read("add_norm", std::to_string(tokens) + " tokens", norm_seconds,
                   static_cast<double>(tokens * hidden * 2 * 4));
    const double route_seconds = bench.time(8, [&](int) { bench.backend->route(x, gate, {}, routing); });
    bench.row_read("route", std::to_string(tokens) + " tokens", route_seconds,
                   static_cast<double>(experts * hidden * 4 + tokens * hidden * 2));
    bench.clear();
  }
}

void bench_upload(Bench& bench) {
  constexpr std::int64_t bytes = std::int64_t{16} << 30;
  const UploadTimes times = time_upload(*bench.backend, bytes);
  const double rate = static_cast<double>(bytes) / times.seconds, limit = std::min(times.cache_rate, times.bus_rate);
  std::printf("%-14s %-36s %9.2f GB/s  page cache %.1f, bus %.1f GB/s  %5.1f %% of the lower\n", "upload",
              "16 GiB from a mapped file", rate * 1e-9, times.cache_rate * 1e-9, times.bus_rate * 1e-9,
              100 * rate / limit);
}

// The tower's operations on a picture of 672 x 672 pixels, then on a block of rows of one of 2016 x 2016.
void bench_vision(Bench& bench) {
  struct Case {
    std::int64_t rows, segment;
  };
  constexpr std::int64_t tower = 1280, inner = 5120, patch = 1176;
  for (const Case& shape : {Case{2304, 2304}, Case{8192, 20736}}) {
    bench.bind({.vision_rows = shape.rows,
                .vision_columns = std::int64_t{4} * hidden,
                .vision_inner = hidden,
                .vision_segment = shape.segment});
    const std::int64_t rows = shape.rows;
    const auto floats = [&](std::int64_t count) {
      return std::span(reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, count).values),
                       static_cast<std::size_t>(count));
    };
    const auto operations = [&](std::int64_t a, std::int64_t b) { return 2.0 * static_cast<double>(rows * a * b); };
    const std::string what = std::to_string(rows) + " patches";
    const RandomFill unit{.kind = RandomFill::Kind::f32, .parameter = 1};
    const ops::Tensor x = bench.activations(rows, tower), delta = bench.activations(rows, tower);
    const ops::Tensor y = bench.activations(rows, tower), packed = bench.activations(shape.segment, 3 * tower);
    const ops::Tensor table{DType::f32, rows, 78, 78, bench.random(rows * 78 * 4, unit)};
    const ops::Tensor pixels{DType::f32, rows, patch, patch, bench.random(rows * patch * 4, unit)};
    ops::Tensor qkv = packed;
    qkv.rows = rows;

    const WeightMatrix embedding = bench.weight(WeightFormat::f32, tower, patch);
    bench.row_matmul("patch_embed", what, bench.time(2, [&](int) { bench.backend->patch_embed(pixels, embedding, y); }),
                     operations(patch, tower));
    const ops::LayerNormWeight norm{floats(tower), floats(tower), 1e-5f};
    bench.row_read("layer_norm", what, bench.time(8, [&](int) { bench.backend->layer_norm(x, delta, norm, y); }),
                   static_cast<double>(rows * tower * 2 * 4));
    const std::vector<WeightMatrix> in = {bench.weight(WeightFormat::bf16, tower, tower),
                                          bench.weight(WeightFormat::bf16, tower, tower),
                                          bench.weight(WeightFormat::bf16, tower, tower)};
    const std::span<const float> in_bias = floats(3 * tower), out_bias = floats(tower);
    bench.row_matmul("linear_bias", what + ", 1280 -> 3840",
                     bench.time(2, [&](int) { bench.backend->linear_bias(x, in, in_bias, qkv); }),
                     operations(tower, 3 * tower));
    bench.row_matmul("linear_bias", what + ", 1280 -> 1280",
                     bench.time(2,
                                [&](int) {
                                  bench.backend->linear_bias(x, {&in[0], 1}, out_bias, y);
                                }),
                     operations(tower, tower));
    const ops::VisionHeads heads{.heads = 16, .scale = 0.1118034f};
    bench.row_read("vision_qkv", what, bench.time(8, [&](int) { bench.backend->vision_qkv_finish(heads, qkv, table); }),
                   static_cast<double>(rows * (2 * tower * 2 * 2 + 78 * 4)));
    const std::vector<std::int32_t> segments = {0, static_cast<std::int32_t>(shape.segment)};
    bench.row_matmul("attend_segments", std::to_string(rows) + " on " + std::to_string(shape.segment),
                     bench.time(2, [&](int) { bench.backend->attend_segments(heads, packed, segments, 0, y); }),
                     2 * operations(tower, shape.segment));
    const auto mlp = [&](std::int64_t columns, std::int64_t middle, std::int64_t out, std::int64_t count) {
      const ops::GeluMlpWeights weights{bench.weight(WeightFormat::bf16, middle, columns), floats(middle),
                                        bench.weight(WeightFormat::bf16, out, middle), floats(out)};
      const ops::Tensor from = bench.activations(count, columns), to = bench.activations(count, out);
      bench.row_matmul("gelu_mlp",
                       std::to_string(count) + " x " + std::to_string(columns) + " -> " + std::to_string(middle) +
                           " -> " + std::to_string(out),
                       bench.time(2, [&](int) { bench.backend->gelu_mlp(from, weights, to); }),
                       2.0 * static_cast<double>(count * middle * (columns + out)));
    };
    mlp(tower, inner, tower, rows);
    mlp(tower, hidden, hidden, rows);
    mlp(4 * hidden, hidden, hidden, rows / 4);
    bench.clear();
  }
}

// Norm, rotation and the caches' rows of one layer, at the end of contexts of 8K.
void bench_finish(Bench& bench) {
  for (const std::int64_t tokens : {1, 32, 8192}) {
    const std::int64_t sequences = tokens == 8192 ? 1 : tokens, context = 8192, heads = 64 + 2 * 4 + 4 + 1;
    bench.bind(limits_for(tokens, context));
    const std::int64_t pages = sequences * (context / 128);
    const Sequences batch(bench, sequences, tokens / sequences, context, pages);
    ops::LayerPages layer;
    layer.k = layer.v = {DType::bf16, nullptr, 4 * 128 * 128 * 2};
    layer.k.data = bench.memory(pages * layer.k.page_bytes);
    layer.v.data = bench.memory(pages * layer.v.page_bytes);
    layer.index_k = {DType::bf16, bench.memory(pages * 128 * 128 * 2), 128 * 128 * 2};
    const auto norm = [&] {
      return std::span(reinterpret_cast<const float*>(bench.weight(WeightFormat::f32, 1, 128).values), 128);
    };
    ops::QkvFinish args;
    args.query_heads = 64, args.kv_heads = args.index_heads = 4;
    args.q_norm = norm(), args.k_norm = norm(), args.index_q_norm = norm(), args.index_k_norm = norm();
    const ops::Tensor packed = bench.activations(tokens, heads * 128), q = bench.activations(tokens, 64 * 128),
                      index_q = bench.activations(tokens, 4 * 128);
    const ops::Tensor table{DType::f32, tokens, 64, 64,
                            bench.random(tokens * 64 * 4, {.kind = RandomFill::Kind::f32, .parameter = 1})};
    const double seconds =
        bench.time(8, [&](int) { bench.backend->qkv_finish(batch.batch, args, packed, table, layer, q, index_q); });
    bench.row_read("qkv_finish", std::to_string(tokens) + " tokens", seconds,
                   static_cast<double>(tokens * (heads * 128 * 2 * 2 + 64 * 4)));
    bench.clear();
  }
}

// With the upload of the rows' numbers and the wait for the ids.
void bench_sample(Bench& bench) {
  const std::int64_t vocab = 200064;
  struct Case {
    std::int64_t rows;
    float temperature;
    int top_k;
    float top_p;
  };
  for (const Case& shape : {Case{1, 0, 0, 1}, Case{32, 0, 0, 1}, Case{256, 0, 0, 1}, Case{1, 1, 40, 0.95f},
                            Case{32, 1, 40, 0.95f}, Case{32, 1, 0, 0.95f}}) {
    ops::Limits limits = limits_for(shape.rows, 128);
    limits.logits_rows = shape.rows;
    limits.vocab = vocab;
    bench.bind(limits);
    const ops::Tensor logits{DType::f32, shape.rows, vocab, vocab,
                             bench.random(shape.rows * vocab * 4, {.kind = RandomFill::Kind::f32, .parameter = 3})};
    std::vector<ops::SamplingRow> rows(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].temperature = shape.temperature;
      rows[i].top_k = shape.top_k;
      rows[i].top_p = shape.top_p;
      rows[i].seed = i;
    }
    std::vector<std::int32_t> ids(rows.size());
    const int times = 50;
    for (int i = 0; i < 3; ++i) bench.backend->sample(logits, rows, ids);
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) bench.backend->sample(logits, rows, ids);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / times;
    const std::string how = shape.temperature == 0 ? "greedy" : shape.top_k > 0 ? "top-k 40, top-p .95" : "top-p .95";
    bench.row_read("sample", std::to_string(shape.rows) + " rows, " + how, seconds,
                   static_cast<double>(shape.rows * vocab * 4));
    bench.clear();
  }
}

struct Group {
  const char* name;
  void (*run)(Bench&);
};
constexpr Group groups[] = {{"linear", bench_linear},       {"experts", bench_experts}, {"select", bench_select},
                            {"attention", bench_attention}, {"small", bench_small},     {"finish", bench_finish},
                            {"sample", bench_sample},       {"vision", bench_vision},   {"upload", bench_upload}};

}  // namespace

int main(int argc, char** argv) {
  std::string filter;
  double seconds = 0.03;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
      filter = argv[++i];
    } else if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::stod(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "gpu_bench [--seconds S of each time] [--filter "
                   "linear|experts|select|attention|small|finish|sample|vision|upload]\n");
      return 2;
    }
  }
  if (const std::string reason = m3::ops::cuda::no_device_reason(); !reason.empty()) {
    std::fprintf(stderr, "gpu_bench: %s\n", reason.c_str());
    return 1;
  }
  try {
    Bench bench(seconds);
    bench.read_rate = m3::ops::cuda::measure_read_bandwidth();
    bench.matmul_rate = m3::ops::cuda::measure_matmul_peak();
    std::printf("%s\nreading %.2f TB/s, bf16 products %.0f TFLOP/s%s\n", bench.backend->description().c_str(),
                bench.read_rate * 1e-12, bench.matmul_rate * 1e-12,
                bench.matmul_rate == 0 ? " (no cuBLAS here: shares are of 788)" : "");
    if (bench.matmul_rate == 0) bench.matmul_rate = 788e12;
    for (const Group& group : groups) {
      if (!filter.empty() && filter != group.name) continue;
      try {
        group.run(bench);
      } catch (const std::exception& error) {
        std::printf("%s: FAILED: %s\n", group.name, error.what());
        bench.clear();
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
