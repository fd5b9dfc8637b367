// route, experts and mlp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

struct Layer {
  Layer(Random& random, WeightFormat format, std::int64_t hidden, std::int64_t width, int count)
      : hidden_size(hidden), width_size(width) {
    for (int i = 0; i < count; ++i) {
      for (int part = 0; part < 2; ++part) matrices.emplace_back(random, format, width, hidden, false);
      matrices.emplace_back(random, format, hidden, width, false);
      scale(matrices[matrices.size() - 3]);
      scale(matrices[matrices.size() - 2]);
      scale(matrices[matrices.size() - 1]);
    }
    for (std::size_t i = 0; i < matrices.size(); i += 3) {
      experts.push_back({matrices[i].view, matrices[i + 1].view, matrices[i + 2].view});
    }
  }
  // Brings every format's random codes to outputs of about 1.
  static void scale(Weight& weight) {
    std::vector<float> row(static_cast<std::size_t>(weight.view.columns));
    widen_row(weight.view, 0, row.data());
    float squares = 0;
    for (const float value : row) squares += value * value;
    const float factor = 1 / std::sqrt(squares);
    if (weight.view.format == WeightFormat::fp8 || weight.view.format == WeightFormat::nvfp4) {
      weight.view.tensor_scale *= factor;
    }
  }
  std::int64_t hidden_size, width_size;
  std::deque<Weight> matrices;
  std::vector<ops::MlpWeights> experts;
};

ops::Limits limits_for(std::int64_t tokens, std::int64_t hidden, std::int64_t width, std::int64_t experts,
                       std::int64_t k) {
  ops::Limits limits;
  limits.tokens = tokens;
  limits.hidden = hidden;
  limits.intermediate = width;
  limits.experts = experts;
  limits.experts_per_token = k;
  return limits;
}

float activate(float gate, float up) {
  const float g = std::min(gate, 7.0f);
  const float u = std::min(std::max(up, -7.0f), 7.0f);
  return static_cast<float>(double{g} / (1 + std::exp(-1.702 * double{g})) * (double{u} + 1));
}

double dot(const WeightMatrix& weight, std::int64_t row, const std::vector<float>& x) {
  std::vector<float> values(static_cast<std::size_t>(weight.columns));
  widen_row(weight, row, values.data());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += double{values[i]} * double{x[i]};
  return sum;
}

// One MLP with the contract's roundings.
std::vector<double> define(const ops::MlpWeights& weights, const std::vector<float>& x) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < weights.gate.rows; ++r) {
    y.push_back(round_to_bf16(activate(round_to_bf16(static_cast<float>(dot(weights.gate, r, x))),
                                       round_to_bf16(static_cast<float>(dot(weights.up, r, x))))));
  }
  std::vector<double> out;
  for (std::int64_t r = 0; r < weights.down.rows; ++r) out.push_back(dot(weights.down, r, y));
  return out;
}

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Choice random_choice(Random& random, std::int64_t tokens, int experts, int k) {
  Choice choice;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(experts));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(static_cast<std::size_t>(k));
    std::sort(ids.begin(), ids.end());
    choice.ids.insert(choice.ids.end(), ids.begin(), ids.end());
    for (int slot = 0; slot < k; ++slot) choice.weights.push_back(1.0f / static_cast<float>(k + slot));
  }
  return choice;
}

std::vector<float> run_experts(const ops::BackendOptions& options, const Layer& layer, const std::vector<float>& x,
                               Choice choice, int k, int first, int count, const ops::MlpWeights* shared) {
  const auto tokens = static_cast<std::int64_t>(x.size()) / layer.hidden_size;
  TestBackend backend(
      options, 2,
      limits_for(tokens, layer.hidden_size, layer.width_size, static_cast<std::int64_t>(layer.experts.size()), k));
  Matrix hidden(backend.dtype(), tokens, layer.hidden_size, x);
  Matrix out(backend.dtype(), tokens, layer.hidden_size);
  out.fill(NAN);
  const ops::Routing routing{k, choice.ids.data(), choice.weights.data()};
  backend->experts(hidden.view(), routing, first,
                   std::span(layer.experts).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                   shared, 2.0f, {}, out.view());
  return out.values();
}

// A flip of one bf16 step in single activations moves a result by less than one step of its own.
constexpr double tolerance = 0x1p-8;

TEST(Experts, FollowTheDefinition) {
  Random random(1);
  const int k = 2;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::nvfp4}) {
    const Layer layer(random, format, 64, 48, 6);
    const std::vector<float> x = normal_values(random, 9 * 64);
    const Choice choice = random_choice(random, 9, 5, k);
    // The whole range, a part of it, and the shared expert (the sixth) with and without.
    for (const auto& [first, count, with_shared] : {std::tuple{0, 5, true}, {1, 3, false}, {0, 0, true}}) {
      const ops::MlpWeights* shared = with_shared ? &layer.experts[5] : nullptr;
      std::vector<float> expected;
      for (std::size_t t = 0; t < 9; ++t) {
        const std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(t * 64),
                                     x.begin() + static_cast<std::ptrdiff_t>(t * 64 + 64));
        std::vector<double> sums(64, 0);
        for (std::size_t slot = 0; slot < k; ++slot) {
          const int expert = choice.ids[t * k + slot];
          if (expert < first || expert >= first + count) continue;
          const std::vector<double> result = define(layer.experts[static_cast<std::size_t>(expert)], row);
          for (std::size_t i = 0; i < 64; ++i) sums[i] += 2.0 * double{choice.weights[t * k + slot]} * result[i];
        }
        if (with_shared) {
          const std::vector<double> result = define(*shared, row);
          for (std::size_t i = 0; i < 64; ++i) sums[i] += result[i];
        }
        for (const double sum : sums) expected.push_back(static_cast<float>(sum));
      }
      for (const ops::BackendOptions& options : all_options()) {
        expect_norm_close(run_experts(options, layer, x, choice, k, first, count, shared), expected, tolerance,
                          name_of(options));
      }
    }
  }
}

// Every format; 1 token, few and many tokens an expert, and a shared expert past one block of 256 tokens.
TEST(Experts, CpuAgreesWithTheJudge) {
  Random random(2);
  const int k = 3;
  for (const WeightFormat format : all_formats) {
    const Layer layer(random, format, 96, 64, 9);
    for (const std::int64_t tokens : {1, 2, 11, 300}) {
      const std::vector<float> x = normal_values(random, tokens * 96);
      const Choice choice = random_choice(random, tokens, 8, k);
      const std::vector<float> judged = run_experts(scalar_options(), layer, x, choice, k, 0, 8, &layer.experts[8]);
      for (const ops::BackendOptions& options : cpu_options()) {
        expect_norm_close(
            run_experts(options, layer, x, choice, k, 0, 8, &layer.experts[8]), judged, tolerance,
            name_of(options) + " " + std::string(weight_format_name(format)) + " " + std::to_string(tokens));
      }
    }
  }
}

TEST(Experts, NoChosenExpertGivesZeros) {
  Random random(3);
  const Layer layer(random, WeightFormat::bf16, 32, 32, 4);
  const std::vector<float> x = normal_values(random, 2 * 32);
  for (const ops::BackendOptions& options : all_options()) {
    EXPECT_EQ(run_experts(options, layer, x, {{0, 1}, {1, 1}}, 1, 2, 2, nullptr), std::vector<float>(64, 0.0f));
  }
}

// Spec §10: the activation's table, through an MLP that picks gate and up out of the input.
TEST(Mlp, ActivationTable) {
  struct Row {
    float gate, up, y;
  };
  const std::vector<Row> table = {
      {1, 0, 0.845795766f},  {1, 1, 1.691591532f}, {-1, 2, -0.462612702f},  {10, 10, 55.999625026f},
      {-10, 10, -3.246e-6f}, {0.5f, -1, 0},        {2, -9, -11.613951739f}, {-60, 3, 0}};
  const std::vector<float> first = {1, 0};
  const std::vector<float> second = {0, 1};
  const std::vector<float> both = {1, 1};
  const auto matrix = [](const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
    WeightMatrix weight;
    weight.format = WeightFormat::f32;
    weight.rows = rows;
    weight.columns = columns;
    weight.values = reinterpret_cast<const std::byte*>(values.data());
    return weight;
  };
  const ops::MlpWeights weights{matrix(first, 1, 2), matrix(second, 1, 2), matrix(both, 2, 1)};
  std::vector<float> x;
  for (const Row& row : table) x.insert(x.end(), {row.gate, row.up});
  std::vector<ops::BackendOptions> backends = all_options();
  backends.push_back(scalar_options(ops::Numerics::fp32));
  for (const ops::BackendOptions& options : backends) {
    const auto rows = static_cast<std::int64_t>(table.size());
    TestBackend backend(options, 1, limits_for(rows, 2, 1, 0, 0));
    Matrix hidden(backend.dtype(), rows, 2, x);
    Matrix out(backend.dtype(), rows, 2);
    backend->mlp(hidden.view(), weights, {}, out.view());
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row& row = table[static_cast<std::size_t>(r)];
      const float step = options.numerics == ops::Numerics::fp32 ? 2e-7f : 0x1p-8f;
      EXPECT_NEAR(out.row(r)[0], row.y, std::abs(row.y) * step + 2e-9f) << name_of(options) << " row " << r;
    }
  }
}

TEST(Mlp, RefusesMatricesThatDoNotFit) {
  Random random(4);
  Layer layer(random, WeightFormat::bf16, 32, 32, 1);
  ops::MlpWeights wrong = layer.experts[0];
  wrong.up.rows = 31;
  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 1, limits_for(1, 32, 32, 0, 0));
    Matrix hidden(backend.dtype(), 1, 32);
    Matrix out(backend.dtype(), 1, 32);
    EXPECT_THROW(backend->mlp(hidden.view(), wrong, {}, out.view()), std::exception);
  }
}

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed run_route(const ops::BackendOptions& options, const std::vector<float>& x, const WeightMatrix& gate,
                 const std::vector<float>& bias, int k) {
  const auto tokens = static_cast<std::int64_t>(x.size()) / gate.columns;
  TestBackend backend(options, 2, limits_for(tokens, gate.columns, 0, gate.rows, k));
  Matrix hidden(backend.dtype(), tokens, gate.columns, x);
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(tokens * k)),
                std::vector<float>(static_cast<std::size_t>(tokens * k))};
  backend->route(hidden.view(), gate, bias, {k, routed.ids.data(), routed.weights.data()});
  return routed;
}

TEST(Route, FollowsTheDefinition) {
  Random random(5);
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16}) {
    const Weight gate(random, format, 128, 100, false);
    const std::vector<float> bias = normal_values(random, 128, 0.1f);
    for (const std::int64_t tokens : {1, 33}) {
      const std::vector<float> x = normal_values(random, tokens * 100);
      for (const ops::BackendOptions& options : all_options()) {
        const Routed routed = run_route(options, x, gate.view, bias, 4);
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::vector<float> row(x.begin() + t * 100, x.begin() + t * 100 + 100);
          std::vector<double> p;
          for (std::int64_t e = 0; e < 128; ++e) p.push_back(1 / (1 + std::exp(-dot(gate.view, e, row))));
          std::vector<std::int32_t> order(128);
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
            const auto i = static_cast<std::size_t>(a);
            const auto j = static_cast<std::size_t>(b);
            return p[i] + double{bias[i]} > p[j] + double{bias[j]};
          });
          order.resize(4);
          std::sort(order.begin(), order.end());
          double sum = 0;
          for (const std::int32_t e : order) sum += p[static_cast<std::size_t>(e)];
          for (std::size_t slot = 0; slot < 4; ++slot) {
            const std::size_t at = static_cast<std::size_t>(t) * 4 + slot;
            ASSERT_EQ(routed.ids[at], order[slot]) << name_of(options);
            ASSERT_NEAR(routed.weights[at], p[static_cast<std::size_t>(order[slot])] / sum, 1e-6) << name_of(options);
          }
        }
      }
    }
  }
}

TEST(Route, TiesGoToTheLowerIdAndNanLast) {
  Random random(6);
  std::vector<float> rows(6 * 32);
  const std::vector<float> same = normal_values(random, 32);
  for (std::size_t e = 0; e < 6; ++e)
    std::copy(same.begin(), same.end(), rows.begin() + static_cast<std::ptrdiff_t>(e * 32));
  std::fill(rows.begin(), rows.begin() + 32, NAN);
  WeightMatrix gate;
  gate.format = WeightFormat::f32;
  gate.rows = 6;
  gate.columns = 32;
  gate.values = reinterpret_cast<const std::byte*>(rows.data());
  for (const ops::BackendOptions& options : all_options()) {
    const Routed routed = run_route(options, same, gate, {}, 3);
    EXPECT_EQ(routed.ids, std::vector<std::int32_t>({1, 2, 3})) << name_of(options);
    EXPECT_FLOAT_EQ(routed.weights[0], 1.0f / 3);
  }
}

}  // namespace
}  // namespace m3::test
