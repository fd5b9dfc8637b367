// Products, experts and the router at MiniMax-M3's widths, for prompts of 8192 rows and batches of 256: the judge sees
// some rows, a deterministic backend (whose kernels are others) all of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <tuple>

#include "tests/gpu/seeded.h"

namespace m3::test::gpu {

namespace {

// As in linear_cases.cpp and experts_cases.cpp; rows of these weights have norm 1.
double sum_tolerance(std::int64_t columns) { return std::sqrt(static_cast<double>(columns)) * 0x1p-17; }
constexpr double experts_tolerance = 6e-3;

void test_linear(Rig& rig, Rig& steady, Results& results, WeightFormat format, std::int64_t tokens, std::int64_t rows,
                 std::int64_t columns) {
  const std::string name(weight_format_name(format));
  const std::string what = fmt::format("{} tokens, [{}, {}]", tokens, rows, columns);
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.hidden = columns;
  limits.widest_linear = rows;
  SeededWeight weight(rig, format, rows, columns, 31);
  const std::vector<std::int32_t> sampled = sample_rows(tokens, 6, 1);
  std::vector<float> x;
  const auto run = [&](Rig& on) {
    on.bind(limits);
    const SeededRows input(on, tokens, columns, 32);
    ResultRows out(on, DType::bf16, tokens, rows);
    on->linear(input.view(), {&weight.device(), 1}, out.view());
    x = input.rows(sampled);
    ResultRows::Values values = out.download();
    on.clear(results, "linear");
    return values;
  };
  const ResultRows::Values actual = run(rig);
  weight.need();
  limits.tokens = std::ssize(sampled);
  Matrix input(DType::f32, limits.tokens, columns, x), expected(DType::f32, limits.tokens, rows);
  judge(limits).linear(input.view(), {&weight.host(), 1}, expected.view());
  limits.tokens = tokens;
  results.add("linear", name + " wide", bf16_error(actual.some(sampled), expected.values(), sum_tolerance(columns)),
              "2 steps of bf16 + 2^-17·√K", what);
  results.add("linear", name + " all rows", worst_element(actual, run(steady), sum_tolerance(columns)),
              "2 steps of bf16 + 2^-17·√K", what);
}

void test_logits(Rig& rig, Results& results, SeededWeight& head, std::int64_t count) {
  const std::int64_t columns = head.device().columns, vocab = head.device().rows, tokens = count + 20;
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.logits_rows = count;
  limits.hidden = columns;
  limits.widest_linear = limits.vocab = vocab;
  rig.bind(limits);
  const SeededRows hidden(rig, tokens, columns, 33);
  ResultRows out(rig, DType::f32, count, vocab);
  std::vector<std::int32_t> rows;
  for (std::int64_t i = 0; i < count; ++i) rows.push_back(static_cast<std::int32_t>((i * 37 + 5) % tokens));
  rig->logits(hidden.view(), {rig.place(rows), rows.size()}, head.device(), out.view());
  const ResultRows::Values actual = out.download();
  const std::vector<std::int32_t> sampled = sample_rows(count, 4, 1);
  std::vector<std::int32_t> sources, places;
  for (const std::int32_t row : sampled) {
    places.push_back(static_cast<std::int32_t>(places.size()));
    sources.push_back(rows[static_cast<std::size_t>(row)]);
  }
  limits.tokens = limits.logits_rows = std::ssize(sampled);
  Matrix input(DType::f32, limits.tokens, columns, hidden.rows(sources)), expected(DType::f32, limits.tokens, vocab);
  judge(limits).logits(input.view(), places, head.host(), expected.view());
  const std::string what = fmt::format("{} rows of {}", count, vocab);
  results.add("logits", "wide", absolute_error(actual.some(sampled), expected.values(), sum_tolerance(columns)),
              "2^-17·√K", what);
  results.add_exact("logits", "written", actual.all_numbers(), what);
  rig.clear(results, "logits");
}

void test_route(Rig& rig, Results& results, std::int64_t tokens, std::int64_t columns) {
  constexpr int experts = 128, k = 4;
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.hidden = columns;
  limits.experts = experts;
  limits.experts_per_token = k;
  Random random(2);
  SeededWeight gate(rig, WeightFormat::f32, experts, columns, 34);
  gate.need();
  const std::vector<float> bias = fp32_values(random, experts, 0.1f);
  rig.bind(limits);
  const SeededRows hidden(rig, tokens, columns, 35);
  const auto count = static_cast<std::size_t>(tokens * k);
  auto* ids = reinterpret_cast<std::int32_t*>(rig.reserve(count * 4));
  auto* weights = reinterpret_cast<float*>(rig.reserve(count * 4));
  rig->route(hidden.view(), gate.device(), rig.floats(bias), {k, ids, weights});
  const std::vector<std::int32_t> all_ids = rig.download(ids, count);
  const std::vector<float> all_weights = rig.download(weights, count);
  const std::vector<std::int32_t> sampled = sample_rows(tokens, 200, 1);
  limits.tokens = std::ssize(sampled);
  Matrix input(DType::f32, limits.tokens, columns, hidden.rows(sampled));
  std::vector<std::int32_t> expected(sampled.size() * k);
  std::vector<float> expected_weights(expected.size());
  judge(limits).route(input.view(), gate.host(), bias, {k, expected.data(), expected_weights.data()});
  std::size_t wrong = 0;
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(sampled[i / k]) * k + i % k;
    wrong += expected[i] != all_ids[at] ? 1 : 0;
    worst = std::max(worst, std::abs(double{expected_weights[i]} - all_weights[at]));
  }
  const std::string what = fmt::format("{} tokens, {} columns", tokens, columns);
  results.add_exact("route", "wide ids", wrong == 0, fmt::format("{}: {} differ", what, wrong));
  if (wrong == 0) results.add("route", "wide", worst / 4e-6, "4e-6", what);
  rig.clear(results, "route");
}

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

constexpr int k = 4;

// Every token chooses the expert `busy`, one alone the one before the last, nobody the last quarter.
Choice skewed(std::int64_t tokens, int experts, Random& random) {
  const int busy = experts / 3, once = experts * 3 / 4 - 1;
  Choice choice;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int32_t> ids = {busy};
    if (t == tokens / 2) ids.push_back(once);
    while (ids.size() < k) {
      const auto expert = static_cast<std::int32_t>(random() % static_cast<unsigned>(once));
      if (std::find(ids.begin(), ids.end(), expert) == ids.end()) ids.push_back(expert);
    }
    std::sort(ids.begin(), ids.end());
    choice.ids.insert(choice.ids.end(), ids.begin(), ids.end());
    for (int i = 0; i < k; ++i) choice.weights.push_back(static_cast<float>(1 + random() % 7) / 16);
  }
  return choice;
}

struct Layer {
  Layer(Rig& rig, WeightFormat format, std::int64_t hidden, std::int64_t width, int experts)
      : name(weight_format_name(format)) {
    for (int e = 0; e <= experts; ++e) {
      const auto key = 100 + 3 * static_cast<std::uint64_t>(e);
      const SeededWeight& gate = matrices.emplace_back(rig, format, width, hidden, key);
      const SeededWeight& up = matrices.emplace_back(rig, format, width, hidden, key + 1);
      const SeededWeight& down = matrices.emplace_back(rig, format, hidden, width, key + 2);
      device.push_back({gate.device(), up.device(), down.device()});
      host.push_back({gate.host(), up.host(), down.host()});
    }
  }
  void need(std::size_t expert) {
    for (std::size_t part = 0; part < 3; ++part) matrices[3 * expert + part].need();
  }
  std::string name;
  std::deque<SeededWeight> matrices;
  std::vector<ops::MlpWeights> device, host;  // the last is the shared one
};

// The judge takes some tokens, of which one chose what nobody else did, and needs only their experts.
void test_experts(Rig& rig, Rig* steady, Results& results, Layer& layer, std::int64_t tokens, std::int64_t judged) {
  const std::int64_t hidden = layer.device[0].gate.columns, width = layer.device[0].gate.rows;
  const auto experts = layer.device.size() - 1;
  ops::Limits limits;
  limits.tokens = limits.sequences = tokens;
  limits.hidden = hidden;
  limits.intermediate = width;
  limits.experts = static_cast<std::int64_t>(experts);
  limits.experts_per_token = k;
  Random random(static_cast<unsigned>(tokens));
  const Choice choice = skewed(tokens, static_cast<int>(experts), random);
  std::vector<std::int32_t> sampled = sample_rows(tokens, judged, 1);
  if (std::find(sampled.begin(), sampled.end(), tokens / 2) == sampled.end())
    sampled[sampled.size() / 2] = static_cast<std::int32_t>(tokens / 2);
  std::vector<float> x;
  const std::span<const ops::MlpWeights> routed(layer.device.data(), experts);
  const auto run = [&](Rig& on) {
    on.bind(limits);
    const SeededRows input(on, tokens, hidden, 36);
    ResultRows out(on, DType::bf16, tokens, hidden);
    on->experts(input.view(), {k, on.place(choice.ids), on.place(choice.weights)}, 0, routed, &layer.device.back(),
                2.0f, {}, out.view());
    x = input.rows(sampled);
    ResultRows::Values values = out.download();
    on.clear(results, "experts");
    return values;
  };
  const ResultRows::Values actual = run(rig);
  Choice some;
  for (const std::int32_t row : sampled) {
    for (std::size_t i = 0; i < k; ++i) {
      const std::size_t at = static_cast<std::size_t>(row) * k + i;
      some.ids.push_back(choice.ids[at]);
      some.weights.push_back(choice.weights[at]);
      layer.need(static_cast<std::size_t>(choice.ids[at]));
    }
  }
  layer.need(experts);
  limits.tokens = std::ssize(sampled);
  Matrix input(DType::f32, limits.tokens, hidden, x), expected(DType::f32, limits.tokens, hidden);
  judge(limits).experts(input.view(), {k, some.ids.data(), some.weights.data()}, 0, {layer.host.data(), experts},
                        &layer.host.back(), 2.0f, {}, expected.view());
  limits.tokens = tokens;
  const std::string what = fmt::format("{} tokens, {} experts of {} × {}", tokens, experts, hidden, width);
  results.add("experts", layer.name + " wide", norm_error(actual.some(sampled), expected.values(), experts_tolerance),
              "6e-3 of the norm", what);
  results.add_exact("experts", "written", actual.all_numbers(), layer.name + ", " + what);
  if (steady == nullptr) return;
  results.add("experts", layer.name + " all rows", worst_row(actual, run(*steady), 2 * experts_tolerance),
              "1.2e-2 of a row", what);
}

}  // namespace

void test_wide(Rig& rig, Results& results, const Options& options) {
  Rig steady(true);
  if (options.quick) {
    for (const WeightFormat format : all_formats) {
      test_linear(rig, steady, results, format, 40, 50, 256);
      Layer layer(rig, format, 128, 64, 8);
      test_experts(rig, &steady, results, layer, 20, 4);
    }
    SeededWeight head(rig, WeightFormat::bf16, 500, 128, 37);
    head.need();
    test_logits(rig, results, head, 9);
    test_route(rig, results, 30, 256);
    return;
  }
  for (const auto& [tokens, rows, columns] : {std::tuple{8192, 9856, 6144},
                                              {8191, 6144, 8192},
                                              {256, 9856, 6144},
                                              {256, 6144, 8192},
                                              {129, 9856, 6144},
                                              {64, 9856, 6144}})
    test_linear(rig, steady, results, WeightFormat::bf16, tokens, rows, columns);
  for (const WeightFormat format : all_formats) {
    test_linear(rig, steady, results, format, 8192, 3072, 6144);
    test_linear(rig, steady, results, format, 256, 3072, 6144);
  }
  {
    SeededWeight head(rig, WeightFormat::bf16, 200064, 6144, 37);
    head.need();
    for (const std::int64_t count : {1, 8, 64, 256}) test_logits(rig, results, head, count);
  }
  for (const std::int64_t tokens : {1, 256, 8192}) test_route(rig, results, tokens, 6144);
  for (const WeightFormat format : all_formats) {
    Layer layer(rig, format, 6144, 3072, 128);
    const bool plain = format == WeightFormat::f32 || format == WeightFormat::f16;  // have one kernel
    for (const std::int64_t tokens : {1, 8, 32, 256}) test_experts(rig, nullptr, results, layer, tokens, 3);
    if (!plain) test_experts(rig, &steady, results, layer, 8192, 3);
  }
}

}  // namespace m3::test::gpu
