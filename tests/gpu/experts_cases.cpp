// route, experts and mlp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

// Two bf16 roundings inside (gate and up, activation) and one at the end: the same bound as for the CPU's.
constexpr double tolerance = 6e-3;

struct Layer {
  Layer(Random& random, WeightFormat format, std::int64_t hidden, std::int64_t width, int count) {
    for (int i = 0; i < count; ++i) add(random, format, hidden, width);
  }
  void add(Random& random, WeightFormat format, std::int64_t hidden, std::int64_t width) {
    for (int part = 0; part < 3; ++part) {
      Weight& weight = part < 2 ? matrices.emplace_back(random, format, width, hidden, false)
                                : matrices.emplace_back(random, format, hidden, width, false);
      // Outputs of about 1.
      std::vector<float> row(static_cast<std::size_t>(weight.view.columns));
      widen_row(weight.view, 0, row.data());
      double squares = 0;
      for (const float value : row) squares += double{value} * value;
      if (format == WeightFormat::fp8 || format == WeightFormat::nvfp4) {
        weight.view.tensor_scale *= static_cast<float>(1 / std::sqrt(squares));
      }
    }
    const std::size_t n = matrices.size();
    experts.push_back({matrices[n - 3].view, matrices[n - 2].view, matrices[n - 1].view});
  }
  std::deque<Weight> matrices;
  std::vector<ops::MlpWeights> experts;
};

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

// `loads`: 0 any experts; 1 all tokens choose the first ones.
Choice random_choice(Random& random, std::int64_t tokens, int experts, int k, int loads) {
  Choice choice;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    if (loads == 0) std::shuffle(order.begin(), order.end(), random);
    order.resize(static_cast<std::size_t>(k));
    std::sort(order.begin(), order.end());
    choice.ids.insert(choice.ids.end(), order.begin(), order.end());
    for (int i = 0; i < k; ++i) choice.weights.push_back(static_cast<float>(1 + random() % 7) / 16);
  }
  return choice;
}

struct Run {
  std::int64_t tokens, hidden, width;
  int experts, k, first, count;
  bool shared;
  int loads = 0;
  WeightFormat shared_format = WeightFormat::bf16;
  bool mixed = false;  // every other expert in the shared one's format
  float x_scale = 1;
};

ops::Limits limits_for(const Run& run) {
  ops::Limits limits;
  limits.tokens = limits.sequences = run.tokens;
  limits.hidden = run.hidden;
  limits.intermediate = run.width;
  limits.experts = run.experts;
  limits.experts_per_token = run.k;
  return limits;
}

// `repeated`: of the first tokens alone, too, which must give the same bits.
void test_format(Rig& rig, Results& results, WeightFormat format, const Run& run, const std::string& name,
                 bool repeated = false) {
  Random random(static_cast<unsigned>(run.tokens) + 1);
  Layer layer(random, format, run.hidden, run.width, run.mixed ? 0 : run.experts);
  for (int e = 0; run.mixed && e < run.experts; ++e) {
    layer.add(random, e % 2 == 0 ? format : run.shared_format, run.hidden, run.width);
  }
  layer.add(random, run.shared_format, run.hidden, run.width);
  const std::vector<float> x = normal_values(random, run.tokens * run.hidden);
  Choice choice = random_choice(random, run.tokens, run.experts, run.k, run.loads);
  const std::span<const ops::MlpWeights> routed(layer.experts.data() + run.first, static_cast<std::size_t>(run.count));
  const ops::MlpWeights* shared = run.shared ? &layer.experts.back() : nullptr;
  Matrix hidden(DType::f32, run.tokens, run.hidden, x), expected(DType::f32, run.tokens, run.hidden);
  const ops::Activation activation;
  judge(limits_for(run))
      .experts(hidden.view(), {run.k, choice.ids.data(), choice.weights.data()}, run.first, routed, shared, 2.0f,
               activation, expected.view());
  rig.bind(limits_for(run));
  std::vector<ops::MlpWeights> placed;
  for (const ops::MlpWeights& expert : routed) placed.push_back(rig.place(expert));
  ops::MlpWeights placed_shared;
  if (run.shared) placed_shared = rig.place(*shared);
  DeviceMatrix hidden2(rig, DType::bf16, run.tokens, run.hidden, x), out(rig, DType::bf16, run.tokens, run.hidden);
  const ops::Routing routing{run.k, rig.place(choice.ids), rig.place(choice.weights)};
  rig->experts(hidden2.view(), routing, run.first, placed, run.shared ? &placed_shared : nullptr, 2.0f, activation,
               out.view());
  const std::string what = std::to_string(run.tokens) + " tokens, " + std::to_string(run.hidden) + " × " +
                           std::to_string(run.width) + ", load " + std::to_string(run.loads) + ", first " +
                           std::to_string(run.first);
  results.add("experts", name, norm_error(out.values(), expected.values(), tolerance), "6e-3 of the norm", what);
  if (repeated) {
    // The first tokens alone: the same bits.
    const std::int64_t some = 11;
    DeviceMatrix hidden3(rig, DType::bf16, some, run.hidden,
                         std::vector<float>(x.begin(), x.begin() + some * run.hidden));
    DeviceMatrix out3(rig, DType::bf16, some, run.hidden);
    rig->experts(hidden3.view(), routing, run.first, placed, run.shared ? &placed_shared : nullptr, 2.0f, activation,
                 out3.view());
    const std::vector<float> all = out.values(), few = out3.values();
    results.add_exact("experts", "invariance", std::equal(few.begin(), few.end(), all.begin()), name + " " + what);
  }
  rig.clear(results, "experts");
}

// Some rows' scales as no checkpoint has them: next to nothing, not a number, far apart.
void make_extreme(Weight& weight, Random& random) {
  const bool nvfp4 = weight.view.format == WeightFormat::nvfp4;
  const auto count = static_cast<std::size_t>(weight.view.scale_row_bytes());
  for (std::size_t row = 0; row < weight.scales.size() / count; ++row) {
    const std::span<std::byte> scales(weight.scales.data() + row * count, count);
    const unsigned lowest = row % 6 == 3 ? 120 + random() % 80 : 10 + random() % 90;
    for (std::byte& scale : scales) {
      if (row % 6 == 1) scale = std::byte{0};
      if (row % 6 >= 3) scale = static_cast<std::byte>(nvfp4 ? random() % 0x7f : lowest + random() % 16);
    }
    if (row % 6 == 2) scales[random() % count] = static_cast<std::byte>(nvfp4 ? 0x7f : 0xff);
  }
}

// The first of a run's tokens, as many as `counts` says; then two calls in a row in a pass that is run, recorded and
// played twice. `extreme`: down's scales.
void test_counts(Rig& rig, Results& results, WeightFormat format, const Run& run,
                 std::initializer_list<std::int64_t> counts, bool extreme = false) {
  const std::string name(weight_format_name(format));
  Random random(static_cast<unsigned>(run.width));
  Layer layer(random, format, run.hidden, run.width, run.mixed ? 0 : run.experts);
  for (int e = 0; run.mixed && e < run.experts; ++e) {
    layer.add(random, e % 2 == 0 ? format : run.shared_format, run.hidden, run.width);
  }
  layer.add(random, run.shared_format, run.hidden, run.width);
  for (std::size_t e = 0; extreme && e < static_cast<std::size_t>(run.experts); ++e) {
    make_extreme(layer.matrices[3 * e + 2], random);
  }
  std::vector<float> x = normal_values(random, run.tokens * run.hidden);
  for (float& value : x) value *= run.x_scale;  // a power of two
  Choice choice = random_choice(random, run.tokens, run.experts, run.k, run.loads);
  const std::span<const ops::MlpWeights> routed(layer.experts.data() + run.first, static_cast<std::size_t>(run.count));
  const ops::MlpWeights* shared = run.shared ? &layer.experts.back() : nullptr;
  Matrix hidden(DType::f32, run.tokens, run.hidden, x), expected(DType::f32, run.tokens, run.hidden);
  judge(limits_for(run))
      .experts(hidden.view(), {run.k, choice.ids.data(), choice.weights.data()}, run.first, routed, shared, 2.0f, {},
               expected.view());
  rig.bind(limits_for(run));
  std::vector<ops::MlpWeights> placed;
  for (const ops::MlpWeights& expert : routed) placed.push_back(rig.place(expert));
  const ops::MlpWeights placed_shared = run.shared ? rig.place(*shared) : ops::MlpWeights{};
  const ops::Routing routing{run.k, rig.place(choice.ids), rig.place(choice.weights)};
  const std::vector<float> values = expected.values();
  const auto compare = [&](const std::vector<float>& out, const std::string& what) {
    const auto rows = static_cast<std::int64_t>(out.size()) / run.hidden;
    const std::vector<float> wanted(values.begin(), values.begin() + rows * run.hidden);
    if (!extreme) {
      results.add("experts", name, norm_error(out, wanted, tolerance), "6e-3 of the norm", what);
      return;
    }
    // Columns apart, since their sizes are; each against all tokens' results, which may be near zero alone.
    double worst = 0;
    for (std::size_t column = 0; column < static_cast<std::size_t>(run.hidden); ++column) {
      double difference = 0, size = 0;
      for (std::size_t at = column; at < values.size(); at += static_cast<std::size_t>(run.hidden)) {
        if (!std::isnan(values[at])) size += double{values[at]} * values[at];
        if (at >= out.size() || (std::isnan(values[at]) && std::isnan(out[at]))) continue;
        difference += (double{out[at]} - values[at]) * (double{out[at]} - values[at]);
      }
      if (std::isnan(difference)) worst = INFINITY;
      if (difference > 0) worst = std::max(worst, std::sqrt(difference / size) / 4e-2);
    }
    results.add("experts", name + " extreme", worst, "4e-2 of a column", what);
  };
  for (const std::int64_t count : counts) {
    const std::string what = std::to_string(count) + " of " + std::to_string(run.tokens) + " tokens, " +
                             std::to_string(run.hidden) + " × " + std::to_string(run.width);
    DeviceMatrix hidden2(rig, DType::bf16, count, run.hidden,
                         std::vector<float>(x.begin(), x.begin() + count * run.hidden));
    DeviceMatrix out(rig, DType::bf16, count, run.hidden), out2(rig, DType::bf16, count, run.hidden);
    const auto call = [&](DeviceMatrix& to) {
      rig->experts(hidden2.view(), routing, run.first, placed, run.shared ? &placed_shared : nullptr, 2.0f, {},
                   to.view());
    };
    call(out);
    const std::vector<float> first = out.values();
    compare(first, what);
    const std::vector<std::byte> nothing(static_cast<std::size_t>(run.hidden) * 2, std::byte{0xff});
    for (int pass = 0; pass < 4; ++pass) {
      for (std::int64_t row = 0; row < count; ++row) {
        rig->upload(out.view().row(row), nothing);
        rig->upload(out2.view().row(row), nothing);
      }
      const bool played = rig->begin_pass(1000 + static_cast<std::uint64_t>(count));
      if (!played) call(out), call(out2);
      rig->end_pass();
      for (DeviceMatrix* each : {&out, &out2}) {
        const std::vector<float> again = each->values();
        results.add_exact("experts", "repeated",
                          std::memcmp(again.data(), first.data(), first.size() * sizeof(float)) == 0,
                          fmt::format("{} {}, pass {}", name, what, pass));
      }
    }
  }
  rig.clear(results, "experts");
}

void test_mlp(Rig& rig, Results& results, WeightFormat format, bool quick) {
  Random random(9);
  struct Shape {
    std::int64_t tokens, columns, width;
  };
  std::vector<Shape> shapes = {{1, 320, 1024}, {40, 320, 1024}, {150, 512, 1024}};
  // M3's own widths.
  if (!quick && format == WeightFormat::bf16)
    shapes.insert(shapes.end(), {{8, 6144, 512}, {1, 6144, 3200}, {3, 3072, 3072}, {8, 512, 6144}});
  for (const auto& [tokens, columns, width] : shapes) {
    const Run run{tokens, columns, width, 1, 1, 0, 0, true};
    Layer layer(random, format, columns, width, 1);
    const std::vector<float> x = normal_values(random, tokens * columns);
    Matrix hidden(DType::f32, tokens, columns, x), expected(DType::f32, tokens, columns);
    judge(limits_for(run)).mlp(hidden.view(), layer.experts[0], {}, expected.view());
    rig.bind(limits_for(run));
    DeviceMatrix hidden2(rig, DType::bf16, tokens, columns, x), out(rig, DType::bf16, tokens, columns);
    rig->mlp(hidden2.view(), rig.place(layer.experts[0]), {}, out.view());
    results.add("mlp", std::string(weight_format_name(format)), norm_error(out.values(), expected.values(), tolerance),
                "6e-3 of the norm",
                std::to_string(tokens) + " tokens, " + std::to_string(columns) + " × " + std::to_string(width));
    rig.clear(results, "mlp");
  }
}

void test_route(Rig& rig, Results& results, const Options& options) {
  Random random(5);
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16}) {
    for (const std::int64_t tokens : {1, 33, 300, 1100, 8300}) {
      for (const std::int64_t columns : {6144, 320, 100}) {
        if (tokens > 1000 && (options.quick || columns == 100 || (tokens > 2000 && columns != 320))) continue;
        const int experts = 128, k = 4;
        const Weight gate(random, format, experts, columns, false);
        const std::vector<float> bias = fp32_values(random, experts, 0.1f);
        const std::vector<float> x = normal_values(random, tokens * columns);
        Run run{tokens, columns, 0, experts, k, 0, 0, false};
        std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * k));
        std::vector<float> weights(ids.size());
        Matrix hidden(DType::f32, tokens, columns, x);
        judge(limits_for(run)).route(hidden.view(), gate.view, bias, {k, ids.data(), weights.data()});
        rig.bind(limits_for(run));
        DeviceMatrix hidden2(rig, DType::bf16, tokens, columns, x);
        auto* ids2 = reinterpret_cast<std::int32_t*>(rig.reserve(ids.size() * 4));
        auto* weights2 = reinterpret_cast<float*>(rig.reserve(ids.size() * 4));
        rig->route(hidden2.view(), rig.place(gate.view), rig.floats(bias), {k, ids2, weights2});
        const std::string what = std::to_string(tokens) + " tokens, " + std::to_string(columns) + " columns";
        const std::string name(weight_format_name(format));
        const auto actual = rig.download(ids2, ids.size());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < ids.size(); ++i) wrong += ids[i] != actual[i] ? 1 : 0;
        results.add_exact("route", name + " ids", wrong == 0, what + ": " + std::to_string(wrong) + " differ");
        if (wrong == 0) {
          // Logits of size |x·w| ≈ 4 err by 2^-20 of that; p / Σp by as much.
          results.add("route", name, absolute_error(rig.download(weights2, ids.size()), weights, 4e-6), "4e-6", what);
        }
        rig.clear(results, "route");
      }
    }
  }
  // Ties go to the lower id, NaN last.
  std::vector<float> rows(6 * 64);
  const std::vector<float> same = normal_values(random, 64);
  for (std::size_t e = 0; e < 6; ++e)
    std::copy(same.begin(), same.end(), rows.begin() + static_cast<std::ptrdiff_t>(e * 64));
  std::fill(rows.begin(), rows.begin() + 64, NAN);
  WeightMatrix gate;
  gate.format = WeightFormat::f32;
  gate.rows = 6;
  gate.columns = 64;
  gate.values = reinterpret_cast<const std::byte*>(rows.data());
  rig.bind(limits_for({1, 64, 0, 6, 3, 0, 0, false}));
  DeviceMatrix hidden(rig, DType::bf16, 1, 64, same);
  auto* ids = reinterpret_cast<std::int32_t*>(rig.reserve(12));
  auto* weights = reinterpret_cast<float*>(rig.reserve(12));
  rig->route(hidden.view(), rig.place(gate), {}, {3, ids, weights});
  results.add_exact("route", "ties", rig.download(ids, 3) == std::vector<std::int32_t>({1, 2, 3}), "");
  rig.clear(results, "route");
}

}  // namespace

void test_experts(Rig& rig, Results& results, const Options& options) {
  Rig fixed(true);
  // Cases of its own kernels, which others (and the emulation) would only take long over.
  const std::string device = rig->description();
  const bool hopper = device.find("sm_90") != std::string::npos && device.find("emulation") == std::string::npos;
  test_route(rig, results, options);
  test_format(rig, results, WeightFormat::bf16, {3, 64, 64, 1024, 32, 0, 1024, false}, "the most experts");
  for (const WeightFormat format : all_formats) {
    const std::string name(weight_format_name(format));
    if (!options.format.empty() && name != options.format) continue;
    std::vector<Run> runs = {{1, 128, 64, 8, 3, 0, 8, true}, {11, 128, 64, 8, 3, 2, 4, false}};
    // Widths that Hopper's kernels of few rows take; then more rows an expert than they take at once.
    if (hopper || !options.quick)
      runs.insert(runs.end(), {{1, 1024, 1024, 8, 3, 0, 8, true, 0, format}, {4, 1024, 1024, 8, 3, 2, 5, true}});
    if (!options.quick) {
      runs.insert(runs.end(), {{40, 1024, 1024, 9, 3, 0, 9, true, 1, WeightFormat::mxfp8},
                               {70, 1024, 1024, 40, 4, 3, 30, false},
                               {9, 1024, 2048, 8, 3, 0, 8, true, 0, WeightFormat::mxfp8, true}});
      runs.insert(runs.end(), {{2, 96, 64, 8, 3, 0, 8, true, 0, WeightFormat::mxfp8},
                               {30, 320, 128, 8, 2, 0, 8, true, 0, WeightFormat::mxfp8},
                               {300, 320, 128, 8, 3, 0, 8, true},
                               {40, 128, 192, 9, 3, 0, 9, true, 1},
                               {700, 128, 64, 12, 4, 3, 6, true, 0, format}});
    }
    for (const Run& run : runs) test_format(rig, results, format, run, name);
    // By the kernels of many rows, where the format has one.
    if (hopper || !options.quick)
      test_format(rig, results, format, {300, 512, 1024, 8, 3, 0, 8, true, 0, format}, name);
    if (!options.quick) {
      test_format(rig, results, format, {900, 1024, 512, 12, 4, 3, 6, true}, name);
      test_format(rig, results, format, {200, 512, 512, 6, 2, 0, 6, false, 1}, name);
      for (const Run& run : runs) {
        if (run.tokens > 20) test_format(fixed, results, format, run, name, true);
      }
    }
    // Tiles of every width of products: all experts but one have all tokens.
    if (hopper && !options.quick && format != WeightFormat::f32 && format != WeightFormat::f16) {
      test_counts(rig, results, format, {300, 512, 512, 5, 4, 0, 5, false, 1},
                  {130, 145, 177, 200, 209, 225, 241, 257, 273, 288, 289, 300});
    }
    // Few tokens in one launch, with widths that it is made for and others; as many as it takes and more.
    if (format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4 || format == WeightFormat::mxfp8) {
      test_counts(rig, results, format, {5, 256, 256, 8, 3, 2, 5, true, 1}, {1, 5}, true);
      if (hopper || !options.quick) {
        test_counts(rig, results, format, {12, 6144, 256, 4, 2, 0, 4, false, 1}, {1, 12});
        test_counts(rig, results, format, {12, 256, 3072, 4, 2, 1, 3, true, 1}, {1, 12}, true);
        // One token, whose experts meet one by one: shares that are uneven or nothing, one expert or none of those chosen
        // here, as many as meet so and more; values that bf16 holds and sums must.
        test_counts(rig, results, format, {3, 2816, 1536, 9, 2, 0, 9, true, 0, format}, {1, 3});
        test_counts(rig, results, format, {1, 1024, 1024, 8, 3, 2, 5, true, 1}, {1});
        test_counts(rig, results, format, {1, 1024, 1024, 8, 3, 3, 5, true, 1}, {1});
        test_counts(rig, results, format, {1, 768, 1280, 12, 8, 0, 12, false}, {1});
        test_counts(rig, results, format, {1, 768, 1280, 12, 9, 0, 12, false}, {1});
        for (const float scale : {0x1p-60f, 0x1p60f}) {
          test_counts(rig, results, format, {2, 1024, 1024, 8, 3, 2, 6, false, 0, format, false, scale}, {1, 2});
        }
      }
      // Three to 64 tokens an expert on average (matmul_narrow_sm90.cuh): experts that have none, one, all, or more than a
      // tile; chosen elsewhere; M3's widths; scales and values far apart.
      if (hopper) {
        test_counts(rig, results, format, {33, 512, 1024, 9, 3, 0, 9, true, 0, format}, {9, 33});
        test_counts(rig, results, format, {20, 512, 512, 8, 3, 2, 5, true, 1}, {20}, true);
      }
      if (hopper && !options.quick) {
        test_counts(rig, results, format, {130, 512, 1024, 9, 3, 0, 9, true, 1},
                    {9, 15, 16, 17, 33, 48, 49, 63, 64, 65, 128, 129, 130});
        test_counts(rig, results, format, {70, 1024, 512, 12, 2, 3, 6, false}, {18, 31, 70});
        test_counts(rig, results, format, {100, 512, 512, 32, 1, 0, 32, false}, {96, 97, 100});
        test_counts(rig, results, format, {40, 6144, 512, 6, 2, 0, 6, true, 0, WeightFormat::mxfp8}, {9, 40});
        test_counts(rig, results, format, {40, 512, 3072, 6, 2, 0, 6, false, 1}, {17, 40});
        test_counts(rig, results, format, {66, 512, 512, 8, 3, 0, 8, true, 0}, {16, 64, 66}, true);
        for (const float scale : {0x1p-60f, 0x1p60f}) {
          test_counts(rig, results, format, {70, 512, 512, 5, 3, 0, 5, false, 0, format, false, scale}, {20, 70});
        }
      }
      if (!options.quick) {
        test_counts(rig, results, format, {257, 1024, 1024, 16, 4, 0, 16, true, 0, format},
                    {1, 2, 7, 33, 64, 65, 128, 129, 256, 257});
        test_counts(rig, results, format, {40, 1024, 1024, 8, 3, 2, 5, true, 0, WeightFormat::mxfp8, true},
                    {1, 17, 40});
        test_counts(rig, results, format, {1, 6144, 3072, 4, 4, 0, 4, true}, {1});
      }
    }
    test_mlp(rig, results, format, options.quick);
  }
  if (!options.quick)
    test_format(rig, results, WeightFormat::mxfp4, {8, 6144, 3072, 6, 4, 0, 6, true, 0, WeightFormat::mxfp8},
                "true widths");
}

}  // namespace m3::test::gpu
