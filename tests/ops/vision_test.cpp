// patch_embed, vision_rotary_table, layer_norm, linear_bias, vision_qkv_finish, attend_segments, gelu_mlp: every backend
// against the judge, the judge against plain arithmetic, and what must not change a bit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

constexpr int head_size = ops::vision_head_dim;

ops::Limits vision_limits(std::int64_t rows, std::int64_t columns, std::int64_t inner, std::int64_t segment) {
  return {.vision_rows = rows, .vision_columns = columns, .vision_inner = inner, .vision_segment = segment};
}

// fp32 sums in two orders, where terms may cancel: see linear_test.cpp.
float cancelled(const WeightMatrix& weight, float largest_x) {
  std::vector<float> row(static_cast<std::size_t>(weight.columns));
  float norm = 0;
  for (std::int64_t r = 0; r < weight.rows; ++r) {
    widen_row(weight, r, row.data());
    norm = std::max(norm, std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0f)));
  }
  return largest_x * norm * std::sqrt(static_cast<float>(weight.columns)) * 0x1p-18f;
}

TEST(PatchEmbed, MultipliesUnroundedPixels) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::f16}) {
    for (const std::int64_t patches : {1, 3, 4, 5, 130}) {
      const std::int64_t columns = 1176, width = 53;
      const Weight weight(random, format, width, columns, false);
      const std::vector<float> pixels = fp32_values(random, patches * columns);
      const auto run = [&](const ops::BackendOptions& options) {
        TestBackend backend(options, 2, vision_limits(patches, columns, 1, 0));
        Matrix x(DType::f32, patches, columns, pixels);
        Matrix out(backend.dtype(), patches, width);
        out.fill(NAN);
        backend->patch_embed(x.view(), weight.view, out.view());
        return out.values();
      };
      const std::vector<float> expected = run(scalar_options());
      const std::vector<float> exact = run(scalar_options(ops::Numerics::fp32));
      std::vector<float> row(static_cast<std::size_t>(columns));
      for (std::int64_t r = 0; r < width; ++r) {
        widen_row(weight.view, r, row.data());
        double sum = 0;
        for (std::size_t k = 0; k < row.size(); ++k) sum += double{pixels[k]} * row[k];
        ASSERT_NEAR(exact[static_cast<std::size_t>(r)], sum, cancelled(weight.view, 4));
      }
      for (const ops::BackendOptions& options : cpu_options()) {
        expect_bf16_close(run(options), expected, cancelled(weight.view, 4),
                          name_of(options) + " " + std::string(weight_format_name(format)));
      }
    }
  }
}

// Spec §10 "Vision f_j" and §4.5.
TEST(VisionRotary, AnglesOfThreeAxes) {
  std::vector<float> inv_freq(13);
  ops::plain_inverse_frequencies(10000, inv_freq);
  EXPECT_FLOAT_EQ(inv_freq[1], 0.4923882632f);
  EXPECT_FLOAT_EQ(inv_freq[6], 1.425102670e-2f);
  EXPECT_FLOAT_EQ(inv_freq[12], 2.030917621e-4f);
  const std::vector<std::int32_t> positions = {0, 0, 0, 3, 143, 20};
  std::vector<std::vector<float>> all;
  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 2, {});
    Matrix table(DType::f32, 2, 78);
    backend->vision_rotary_table(positions, inv_freq, table.view());
    all.push_back(table.values());
    EXPECT_EQ(all.back(), all.front()) << name_of(options);
  }
  for (std::size_t i = 0; i < 39; ++i) {
    EXPECT_EQ(all[0][i], 1.0f);
    EXPECT_EQ(all[0][39 + i], 0.0f);
    const double angle = double{static_cast<float>(positions[3 + i / 13])} * inv_freq[i % 13];
    EXPECT_NEAR(all[0][78 + i], std::cos(angle), 1e-5);
    EXPECT_NEAR(all[0][78 + 39 + i], std::sin(angle), 1e-5);
  }
}

TEST(LayerNorm, AddsAndNormalisesWithBias) {
  Random random(2);
  for (const std::int64_t columns : {1, 7, 16, 160, 1283}) {
    for (const bool with_delta : {false, true}) {
      const std::int64_t rows = 11;
      std::vector<float> x = normal_values(random, rows * columns);
      for (float& value : x) value = round_to_bf16(value + 3);  // a mean to take out
      const std::vector<float> delta = normal_values(random, rows * columns);
      const std::vector<float> weight = fp32_values(random, columns);
      const std::vector<float> bias = fp32_values(random, columns);
      const auto run = [&](const ops::BackendOptions& options, bool norm) {
        TestBackend backend(options, 2, {});
        Matrix residual(backend.dtype(), rows, columns, x);
        Matrix added(backend.dtype(), rows, columns, delta);
        Matrix normed(backend.dtype(), rows, columns);
        backend->layer_norm(residual.view(), with_delta ? added.view() : ops::Tensor{}, {weight, bias, 1e-5f},
                            norm ? normed.view() : ops::Tensor{});
        return std::pair(residual.values(), normed.values());
      };
      const auto [sums, judged] = run(scalar_options(), true);
      for (std::int64_t row = 0; row < rows; ++row) {
        double mean = 0, variance = 0;
        const float* at = sums.data() + row * columns;
        for (std::int64_t i = 0; i < columns; ++i) mean += at[i] / static_cast<double>(columns);
        for (std::int64_t i = 0; i < columns; ++i)
          variance += (at[i] - mean) * (at[i] - mean) / static_cast<double>(columns);
        for (std::int64_t i = 0; i < columns; ++i) {
          const auto c = static_cast<std::size_t>(i);
          const double y = (at[i] - mean) / std::sqrt(variance + 1e-5) * weight[c] + bias[c];
          ASSERT_NEAR(judged[static_cast<std::size_t>(row * columns + i)], y, std::abs(y) * 0x1p-7 + 1e-4);
        }
      }
      for (const ops::BackendOptions& options : cpu_options()) {
        const auto [ours, normed] = run(options, true);
        EXPECT_EQ(ours, sums) << name_of(options) << ", " << columns << " columns";
        expect_bf16_close(normed, judged, 1e-4f, name_of(options) + ", " + std::to_string(columns) + " columns");
        EXPECT_EQ(run(options, false).first, sums) << name_of(options);
      }
    }
  }
}

TEST(LayerNorm, ABrokenRowStaysBroken) {
  const std::vector<float> ones(32, 1.0f);
  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 1, {});
    std::vector<float> values(2 * 32, 1.0f);
    values[3] = INFINITY;
    Matrix residual(backend.dtype(), 2, 32, values);
    Matrix normed(backend.dtype(), 2, 32);
    backend->layer_norm(residual.view(), {}, {ones, ones, 1e-5f}, normed.view());
    for (const float value : normed.row(0)) EXPECT_TRUE(std::isnan(value)) << name_of(options);
    for (const float value : normed.row(1)) EXPECT_EQ(value, 1.0f) << name_of(options);
  }
}

TEST(LinearBias, AddsBeforeTheOneRounding) {
  Random random(3);
  for (const std::int64_t tokens : {1, 4, 5, 131}) {
    const Weight first(random, WeightFormat::bf16, 37, 160, true);
    const Weight second(random, WeightFormat::f32, 50, 160, true);
    const std::vector<WeightMatrix> weights = {first.view, second.view};
    const std::vector<float> x = integer_values(random, tokens * 160, 3);
    std::vector<float> bias = integer_values(random, 87, 40);
    for (float& value : bias) value += 0.25f;
    std::vector<float> expected, row(160);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t r = 0; r < 87; ++r) {
        widen_row(r < 37 ? first.view : second.view, r < 37 ? r : r - 37, row.data());
        double sum = bias[static_cast<std::size_t>(r)];
        for (std::size_t k = 0; k < 160; ++k) sum += double{x[static_cast<std::size_t>(t) * 160 + k]} * row[k];
        expected.push_back(round_to_bf16(static_cast<float>(sum)));
      }
    }
    for (const ops::BackendOptions& options : all_options()) {
      TestBackend backend(options, 2, vision_limits(tokens, 160, 1, 0));
      Matrix input(backend.dtype(), tokens, 160, x);
      Matrix out(backend.dtype(), tokens, 87);
      backend->linear_bias(input.view(), weights, bias, out.view());
      EXPECT_EQ(out.values(), expected) << name_of(options) << ", " << tokens << " tokens";
    }
  }
}

TEST(VisionQkvFinish, RotatesQAndKAndLeavesTheRest) {
  Random random(4);
  for (const int heads : {1, 3}) {
    const std::int64_t rows = 9, width = heads * head_size;
    const std::vector<float> packed = normal_values(random, rows * 3 * width);
    const std::vector<float> table = fp32_values(random, rows * 78);
    std::vector<float> expected = packed;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (int head = 0; head < 2 * heads; ++head) {
        const auto at = static_cast<std::size_t>(row * 3 * width + head * head_size);
        for (std::size_t i = 0; i < 39; ++i) {
          const float cosine = table[static_cast<std::size_t>(row) * 78 + i];
          const float sine = table[static_cast<std::size_t>(row) * 78 + 39 + i];
          expected[at + i] = round_to_bf16(packed[at + i] * cosine - packed[at + 39 + i] * sine);
          expected[at + 39 + i] = round_to_bf16(packed[at + 39 + i] * cosine + packed[at + i] * sine);
        }
      }
    }
    for (const ops::BackendOptions& options : all_options()) {
      TestBackend backend(options, 2, {});
      Matrix x(backend.dtype(), rows, 3 * width, packed);
      Matrix angles(DType::f32, rows, 78, table);
      backend->vision_qkv_finish({.heads = heads}, x.view(), angles.view());
      EXPECT_EQ(x.values(), expected) << name_of(options) << ", " << heads << " heads";
    }
  }
}

struct Segments {
  std::vector<std::int32_t> begin;
  std::int64_t rows() const { return begin.back(); }
};

// In blocks of `block` rows.
std::vector<float> attend(const ops::BackendOptions& options, int threads, const Segments& segments, int heads,
                          const std::vector<float>& packed, std::int64_t block) {
  const std::int64_t width = heads * head_size;
  std::int64_t longest = 0;
  for (std::size_t s = 0; s + 1 < segments.begin.size(); ++s)
    longest = std::max<std::int64_t>(longest, segments.begin[s + 1] - segments.begin[s]);
  TestBackend backend(options, threads, vision_limits(block, width, 1, longest));
  Matrix x(backend.dtype(), segments.rows(), 3 * width, packed);
  Matrix out(backend.dtype(), segments.rows(), width);
  out.fill(NAN);
  const ops::VisionHeads args{.heads = heads, .scale = 1 / std::sqrt(80.0f)};
  for (std::int64_t first = 0; first < segments.rows(); first += block) {
    ops::Tensor rows = out.view();
    rows.data = rows.row(first);
    rows.rows = std::min(block, segments.rows() - first);
    backend->attend_segments(args, x.view(), segments.begin, first, rows);
  }
  return out.values();
}

const std::vector<Segments> segment_shapes = {
    {{0, 1}}, {{0, 4}}, {{0, 1, 3, 7, 67}}, {{0, 60, 180}}, {{0, 129, 130, 300}}, {{0, 61, 62, 63}}, {{0, 33, 321}}};

TEST(AttendSegments, AgreesWithPlainArithmetic) {
  Random random(5);
  for (const Segments& segments : segment_shapes) {
    const int heads = 2;
    const std::int64_t width = heads * head_size;
    const std::vector<float> packed = normal_values(random, segments.rows() * 3 * width);
    std::vector<float> expected;
    for (std::size_t s = 0; s + 1 < segments.begin.size(); ++s) {
      for (std::int64_t row = segments.begin[s]; row < segments.begin[s + 1]; ++row) {
        for (int head = 0; head < heads; ++head) {
          const auto at = [&](std::int64_t r, std::int64_t part) {
            return packed.data() + r * 3 * width + part * width + head * head_size;
          };
          std::vector<double> sums(head_size);
          double total = 0;
          for (std::int64_t key = segments.begin[s]; key < segments.begin[s + 1]; ++key) {
            double score = 0;
            for (int d = 0; d < head_size; ++d) score += double{at(row, 0)[d]} * at(key, 1)[d];
            const double p = std::exp(score / std::sqrt(80.0));
            total += p;
            for (int d = 0; d < head_size; ++d) sums[static_cast<std::size_t>(d)] += p * at(key, 2)[d];
          }
          for (const double sum : sums) expected.push_back(static_cast<float>(sum / total));
        }
      }
    }
    for (const ops::BackendOptions& options : all_options()) {
      expect_bf16_close(attend(options, 2, segments, heads, packed, segments.rows()), expected, 2e-5f,
                        name_of(options) + ", " + std::to_string(segments.rows()) + " rows");
    }
  }
}

// Large scores: the softmax must not overflow, and the highest key wins.
TEST(AttendSegments, LargeScoresStayFinite) {
  Random random(6);
  const Segments segments{{0, 90}};
  const std::vector<float> packed = normal_values(random, 90 * 3 * head_size, 60);
  const std::vector<float> judged = attend(scalar_options(), 1, segments, 1, packed, 90);
  for (const float value : judged) ASSERT_TRUE(std::isfinite(value));
  for (const ops::BackendOptions& options : cpu_options()) {
    expect_norm_close(attend(options, 2, segments, 1, packed, 90), judged, 1e-2, name_of(options));
  }
}

TEST(AttendSegments, BlocksCompanyAndThreadsChangeNothing) {
  Random random(7);
  for (const Segments& segments : segment_shapes) {
    const std::int64_t row = 3 * 2 * head_size;
    const std::vector<float> packed = normal_values(random, segments.rows() * row);
    for (const ops::BackendOptions& options : all_options()) {
      const std::vector<float> whole = attend(options, 1, segments, 2, packed, segments.rows());
      for (const std::int64_t block : {1, 7, 128, 200}) {
        EXPECT_EQ(attend(options, 3, segments, 2, packed, block), whole) << name_of(options) << ", blocks of " << block;
      }
      const std::int32_t first = segments.begin[segments.begin.size() - 2];
      const std::vector<float> last(packed.begin() + first * row, packed.end());
      const std::int64_t count = segments.rows() - first;
      const std::vector<float> alone = attend(options, 2, {{0, static_cast<std::int32_t>(count)}}, 2, last, count);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + first * 2 * head_size)) << name_of(options);
    }
  }
}

std::vector<float> run_gelu_mlp(const ops::BackendOptions& options, int threads, const std::vector<float>& x,
                                std::int64_t rows, const ops::GeluMlpWeights& weights) {
  const std::int64_t columns = weights.fc1.columns;
  TestBackend backend(options, threads, vision_limits(rows, columns, weights.fc1.rows, 0));
  Matrix input(backend.dtype(), rows, columns, x);
  Matrix out(backend.dtype(), rows, weights.fc2.rows);
  out.fill(NAN);
  backend->gelu_mlp(input.view(), weights, out.view());
  return out.values();
}

// fc1 = fc2 = identity without bias: the activation itself, over its whole range.
TEST(GeluMlp, IsTheExactGelu) {
  const std::int64_t count = 96;
  std::vector<float> identity(static_cast<std::size_t>(count * count));
  for (std::int64_t i = 0; i < count; ++i) identity[static_cast<std::size_t>(i * count + i)] = 1;
  const WeightMatrix matrix{WeightFormat::f32, count, count, reinterpret_cast<const std::byte*>(identity.data())};
  const std::vector<float> none(static_cast<std::size_t>(count));
  std::vector<float> x;
  for (int i = 0; i < 8 * count; ++i) x.push_back(round_to_bf16(-14.0f + 28.0f * static_cast<float>(i) / (8 * count)));
  std::vector<float> expected;
  for (const float value : x) {
    expected.push_back(static_cast<float>(double{value} * 0.5 * std::erfc(-double{value} / std::sqrt(2.0))));
  }
  for (const ops::BackendOptions& options : all_options()) {
    expect_bf16_close(run_gelu_mlp(options, 2, x, 8, {matrix, none, matrix, none}), expected, 1e-37f, name_of(options));
  }
}

TEST(GeluMlp, AgreesWithTheJudge) {
  struct Shape {
    std::int64_t rows, columns, inner, out;
  };
  Random random(8);
  for (const Shape shape : {Shape{1, 160, 64, 160}, Shape{3, 33, 100, 7}, Shape{135, 130, 257, 70}}) {
    const Weight fc1(random, WeightFormat::bf16, shape.inner, shape.columns, false);
    const Weight fc2(random, WeightFormat::bf16, shape.out, shape.inner, false);
    const std::vector<float> fc1_bias = fp32_values(random, shape.inner), fc2_bias = fp32_values(random, shape.out);
    const std::vector<float> x = normal_values(random, shape.rows * shape.columns);
    const ops::GeluMlpWeights weights{fc1.view, fc1_bias, fc2.view, fc2_bias};
    const std::vector<float> judged = run_gelu_mlp(scalar_options(), 2, x, shape.rows, weights);
    for (const ops::BackendOptions& options : cpu_options()) {
      const std::vector<float> ours = run_gelu_mlp(options, 2, x, shape.rows, weights);
      expect_norm_close(ours, judged, 4e-3, name_of(options));
      EXPECT_EQ(run_gelu_mlp(options, 1, x, shape.rows, weights), ours) << name_of(options);
      const std::vector<float> last(x.end() - static_cast<std::ptrdiff_t>(shape.columns), x.end());
      const std::vector<float> alone = run_gelu_mlp(options, 2, last, 1, weights);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), ours.end() - static_cast<std::ptrdiff_t>(shape.out)))
          << name_of(options) << ", a row alone";
    }
  }
}

// Pictures: rows of features stand for tokens' embeddings, and only where they are named.
TEST(Embed, TakesRowsOfFeatures) {
  Random random(9);
  const Weight table(random, WeightFormat::bf16, 19, 64, false);
  RaggedBatch batch({{4, 4}, {0, 1}}, 8, 1);
  batch.token_ids = {4, 5, 6, 7, 8};
  const std::vector<std::int32_t> rows = {-1, 1, 0, -1, 0};
  const std::vector<float> values = normal_values(random, 2 * 64);
  for (const ops::BackendOptions& options : all_options()) {
    ops::Limits limits;
    limits.tokens = 5;
    limits.hidden = 64;
    TestBackend backend(options, 2, limits);
    std::vector<std::byte> features(values.size() * dtype_size(backend.dtype()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (backend.dtype() == DType::f32) {
        reinterpret_cast<float*>(features.data())[i] = values[i];
      } else {
        reinterpret_cast<bf16*>(features.data())[i] = to_bf16(values[i]);
      }
    }
    ops::Batch view = batch.view();
    view.feature_rows = rows.data();
    view.features = features.data();
    Matrix residual(backend.dtype(), 5, 64);
    residual.fill(9);
    backend->embed(view, table.view, nullptr, residual.view());
    std::vector<float> row(64);
    for (const std::int64_t token : {0, 3}) {
      widen_row(table.view, batch.token_ids[static_cast<std::size_t>(token)], row.data());
      EXPECT_EQ(residual.row(token), row) << name_of(options);
    }
    EXPECT_EQ(residual.row(1), std::vector<float>(values.begin() + 64, values.end())) << name_of(options);
    EXPECT_EQ(residual.row(2), std::vector<float>(values.begin(), values.begin() + 64)) << name_of(options);
    EXPECT_EQ(residual.row(4), std::vector<float>(64, 9.0f)) << name_of(options) << ": an inert row";
  }
}

}  // namespace
}  // namespace m3::test
