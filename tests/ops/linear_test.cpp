// linear and logits: every format, every backend, against the judge and exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

ops::Limits limits_for(std::int64_t tokens, std::int64_t columns, std::int64_t rows) {
  ops::Limits limits;
  limits.tokens = tokens;
  limits.logits_rows = tokens;
  limits.hidden = columns;
  limits.widest_linear = rows;
  limits.vocab = rows;
  limits.experts = rows;
  return limits;
}

std::vector<float> run_linear(const ops::BackendOptions& options, int threads, const std::vector<float>& x,
                              std::int64_t tokens, const std::vector<WeightMatrix>& weights) {
  const std::int64_t columns = weights.front().columns;
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) rows += weight.rows;
  TestBackend backend(options, threads, limits_for(tokens, columns, rows));
  Matrix input(backend.dtype(), tokens, columns, x);
  Matrix out(backend.dtype(), tokens, rows);
  out.fill(NAN);
  backend->linear(input.view(), weights, out.view());
  return out.values();
}

std::string label(WeightFormat format, std::int64_t tokens, std::int64_t rows, std::int64_t columns) {
  return std::string(weight_format_name(format)) + " " + std::to_string(tokens) + " tokens, [" + std::to_string(rows) +
         ", " + std::to_string(columns) + "]";
}

// y = x · Wᵀ of integers small enough to be exact: all backends must agree with plain arithmetic to the last bit.
TEST(Linear, ExactForIntegersInEveryFormat) {
  Random random(1);
  for (const WeightFormat format : all_formats) {
    for (const std::int64_t tokens : {1, 2, 3, 4, 5, 11, 37}) {
      const std::int64_t columns = 160;
      const std::int64_t rows = 53;
      const Weight weight(random, format, rows, columns, true);
      const std::vector<float> x = integer_values(random, tokens * columns, 3);
      std::vector<float> expected;
      std::vector<float> row(static_cast<std::size_t>(columns));
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t r = 0; r < rows; ++r) {
          widen_row(weight.view, r, row.data());
          double sum = 0;
          for (std::int64_t k = 0; k < columns; ++k) {
            sum += double{x[static_cast<std::size_t>(t * columns + k)]} * row[static_cast<std::size_t>(k)];
          }
          expected.push_back(round_to_bf16(static_cast<float>(sum)));
        }
      }
      for (const ops::BackendOptions& options : all_options()) {
        EXPECT_EQ(run_linear(options, 2, x, tokens, {weight.view}), expected)
            << name_of(options) << " " << label(format, tokens, rows, columns);
      }
    }
  }
}

// Widths that end inside every register and slice of K, odd row counts, tokens past one block of 256.
TEST(Linear, AgreesWithTheJudgeOnOddShapes) {
  struct Shape {
    std::int64_t tokens, rows, columns;
  };
  Random random(2);
  for (const WeightFormat format : all_formats) {
    const bool blocks = format == WeightFormat::mxfp8 || format == WeightFormat::mxfp4;
    const bool halves = format == WeightFormat::nvfp4;
    for (const Shape shape : {Shape{1, 1, 32}, Shape{3, 7, 48}, Shape{1, 131, 1000}, Shape{6, 25, 257},
                              Shape{65, 50, 777}, Shape{261, 49, 530}}) {
      const std::int64_t unit = blocks ? 32 : halves ? 16 : 1;
      const std::int64_t columns = (shape.columns + unit - 1) / unit * unit;
      const Weight weight(random, format, shape.rows, columns, false);
      const std::vector<float> x = normal_values(random, shape.tokens * columns);
      const std::vector<float> expected = run_linear(scalar_options(), 2, x, shape.tokens, {weight.view});
      // fp32 sums in two orders: each errs by at most K · 2^-24 · Σ|x·w|; the sums of products of independent values
      // grow with √K, which leaves 2^-18 of the largest row's norm a wide margin.
      std::vector<float> row(static_cast<std::size_t>(columns));
      float norm = 0;
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        widen_row(weight.view, r, row.data());
        float squares = 0;
        for (const float value : row) squares += value * value;
        norm = std::max(norm, std::sqrt(squares));
      }
      const float absolute = norm * std::sqrt(static_cast<float>(columns)) * 0x1p-18f;
      for (const ops::BackendOptions& options : cpu_options()) {
        expect_bf16_close(run_linear(options, 2, x, shape.tokens, {weight.view}), expected, absolute,
                          name_of(options) + " " + label(format, shape.tokens, shape.rows, columns));
      }
    }
  }
}

TEST(Linear, ConcatenatesWeightsOfDifferentFormats) {
  Random random(3);
  std::deque<Weight> weights;
  std::vector<WeightMatrix> views;
  for (const WeightFormat format : all_formats) {
    weights.emplace_back(random, format, 8 + 3 * static_cast<std::int64_t>(weights.size()), 64, true);
    views.push_back(weights.back().view);
  }
  for (const std::int64_t tokens : {1, 9}) {
    const std::vector<float> x = integer_values(random, tokens * 64, 3);
    for (const ops::BackendOptions& options : all_options()) {
      const std::vector<float> together = run_linear(options, 2, x, tokens, views);
      std::size_t first = 0;
      const std::size_t total = together.size() / static_cast<std::size_t>(tokens);
      for (const WeightMatrix& view : views) {
        const std::vector<float> alone = run_linear(options, 2, x, tokens, {view});
        for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
          for (std::size_t r = 0; r < static_cast<std::size_t>(view.rows); ++r) {
            ASSERT_EQ(together[t * total + first + r], alone[t * static_cast<std::size_t>(view.rows) + r])
                << name_of(options) << " " << weight_format_name(view.format);
          }
        }
        first += static_cast<std::size_t>(view.rows);
      }
    }
  }
}

// ptpc_fp8: x becomes e4m3 with one scale a token.
TEST(Linear, QuantisesActivationsByToken) {
  Random random(4);
  Weight weight(random, WeightFormat::fp8, 37, 300, false);
  weight.view.quantized_activations = true;
  for (const std::int64_t tokens : {1, 4, 21}) {
    std::vector<float> x = normal_values(random, tokens * 300);
    std::fill(x.begin(), x.begin() + 300, 0.0f);  // a row of zeros has no scale of its own
    for (float& value : x) value = round_to_bf16(value);
    std::vector<float> expected;
    std::vector<float> row(300);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* values = x.data() + t * 300;
      float largest = 0;
      for (int k = 0; k < 300; ++k) largest = std::max(largest, std::abs(values[k]));
      const float scale = largest > 0 ? largest / 448 : 1;
      for (std::int64_t r = 0; r < 37; ++r) {
        widen_codes(weight.view, r, row.data());
        double sum = 0;
        for (int k = 0; k < 300; ++k) {
          sum += double{e4m3_to_float(float_to_e4m3(values[k] / scale))} * row[static_cast<std::size_t>(k)];
        }
        expected.push_back(round_to_bf16(
            static_cast<float>(sum * double{scale} * double{weight.row_scales[static_cast<std::size_t>(r)]})));
      }
    }
    for (const ops::BackendOptions& options : all_options()) {
      expect_bf16_close(run_linear(options, 2, x, tokens, {weight.view}), expected, 1e-3f, name_of(options));
    }
  }
}

TEST(Linear, Fp32NumericsDoNotRound) {
  Random random(5);
  const Weight weight(random, WeightFormat::f32, 9, 100, false);
  const std::vector<float> x = normal_values(random, 2 * 100);
  const std::vector<float> exact = run_linear(scalar_options(ops::Numerics::fp32), 1, x, 2, {weight.view});
  const std::vector<float> rounded = run_linear(scalar_options(), 1, x, 2, {weight.view});
  int unrounded = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(rounded[i], round_to_bf16(exact[i]));
    unrounded += exact[i] != rounded[i] ? 1 : 0;
  }
  EXPECT_GT(unrounded, 10);
}

TEST(Logits, TakesChosenRowsAndKeepsFp32) {
  Random random(6);
  const std::int64_t vocab = 203;
  const Weight head(random, WeightFormat::bf16, vocab, 96, false);
  const std::vector<float> x = normal_values(random, 7 * 96);
  const std::vector<std::int32_t> rows = {6, 0, 3};
  std::vector<float> judged;
  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 2, limits_for(7, 96, vocab));
    Matrix hidden(backend.dtype(), 7, 96, x);
    Matrix logits(DType::f32, 3, vocab);
    backend->logits(hidden.view(), rows, head.view, logits.view());
    if (options.name == "scalar") judged = logits.values();
    for (std::size_t i = 0; i < judged.size(); ++i)
      ASSERT_NEAR(logits.values()[i], judged[i], 2e-5f) << name_of(options);
  }
  EXPECT_NE(judged[0], round_to_bf16(judged[0]));
}

}  // namespace
}  // namespace m3::test
