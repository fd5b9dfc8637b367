// linear, logits and experts.
#include "bench/gpu/bench.h"

namespace m3::gpu_bench {

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
                                   {"8192 -> 6144 mxfp8", {6144}, 8192, WeightFormat::mxfp8},
                                   {"6144 -> 9856 mxfp4", {8192, 512, 512, 512, 128}, 6144, WeightFormat::mxfp4},
                                   {"6144 -> 9856 nvfp4", {8192, 512, 512, 512, 128}, 6144, WeightFormat::nvfp4},
                                   {"head 6144 -> 200064", {200064}, 6144, WeightFormat::bf16}};
  for (const Case& shape : cases) {
    const std::int64_t rows = std::accumulate(shape.rows.begin(), shape.rows.end(), std::int64_t{0});
    for (const std::int64_t tokens : {1, 8, 9, 16, 32, 48, 64}) {
      const std::string what = std::string(shape.name) + ", " + std::to_string(tokens) + " tokens";
      if (!bench.is_wanted("linear", what)) continue;
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
      bench.row_read("linear", what, seconds, bytes);
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
    const std::string what = std::to_string(shape.columns) + " -> " + std::to_string(shape.rows) + ", " +
                             std::to_string(shape.tokens) + " tokens, " + std::string(weight_format_name(shape.format));
    if (!bench.is_wanted("linear", what)) continue;
    ops::Limits limits = limits_for(shape.tokens, 128);
    limits.hidden = std::max(shape.columns, shape.rows);
    bench.bind(limits);
    const WeightMatrix weight = bench.weight(shape.format, shape.rows, shape.columns);
    const ops::Tensor x = bench.activations(shape.tokens, shape.columns),
                      out = bench.activations(shape.tokens, shape.rows);
    const double seconds = bench.time(
        2,
        [&](int) {
          bench.backend->linear(x, {&weight, 1}, out);
        },
        true);
    bench.row("linear", what, seconds,
              static_cast<double>(weight.rows * (weight.row_bytes() + weight.scale_row_bytes())),
              2.0 * static_cast<double>(shape.tokens * shape.rows * shape.columns));
    bench.clear();
  }
}

void bench_experts(Bench& bench) {
  std::mt19937 random(5);
  for (const WeightFormat format :
       {WeightFormat::bf16, WeightFormat::mxfp4, WeightFormat::mxfp8, WeightFormat::nvfp4}) {
    const std::string name(weight_format_name(format));
    constexpr std::int64_t counts[] = {1, 8, 32, 64, 96, 128, 256, 512, 1024, 2048, 8192};
    const auto is_wanted = [&](std::int64_t tokens) {
      return bench.is_wanted("experts", name + ", " + std::to_string(tokens) + " tokens");
    };
    if (std::ranges::none_of(counts, is_wanted)) continue;
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
    for (const std::int64_t tokens : counts) {
      if (!is_wanted(tokens)) continue;
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
      const auto routed = [&](int i) {
        bench.backend->experts(x, routings[static_cast<std::size_t>(i)], 0, mlps, nullptr, 2.0f, {}, out);
      };
      const double seconds = bench.time(copies, routed, tokens >= 2048);
      const std::string what = name + ", " + std::to_string(tokens) + " tokens (" +
                               std::to_string(static_cast<int>(loaded + 0.5)) + " experts)";
      bench.row("experts", what, seconds, loaded * expert_bytes,
                6.0 * static_cast<double>(tokens * per_token * hidden * width));
      if (tokens > 128) continue;
      // As a layer has it. The shared expert's weights are larger than the L2.
      const double both = bench.time(copies, [&](int i) {
        bench.backend->experts(x, routings[static_cast<std::size_t>(i)], 0, mlps, &shared, 2.0f, {}, out);
      });
      bench.row_read("experts", what + ", shared", both,
                     loaded * expert_bytes + static_cast<double>(6 * hidden * width));
    }
    bench.clear();
  }
}

}  // namespace m3::gpu_bench
