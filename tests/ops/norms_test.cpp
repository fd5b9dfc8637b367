// embed, rotary_table, add_norm, qkv_finish, copy_pages.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

ops::Limits limits_for(std::int64_t tokens, std::int64_t hidden) {
  ops::Limits limits;
  limits.tokens = tokens;
  limits.hidden = hidden;
  limits.vocab = 64;
  return limits;
}

TEST(Embed, TakesRowsOfEveryFormat) {
  Random random(1);
  for (const WeightFormat format : all_formats) {
    const Weight table(random, format, 19, 64, false);
    RaggedBatch batch({{3, 3}, {0, 1}, {2, 2}}, 8, 1);
    // A row, the last one, two of the step before (one of them a failed sample), an inert one, an id past the table.
    batch.token_ids = {4, 18, -2, 7, -1, 19};
    const std::vector<std::int32_t> previous = {-1, 5};
    for (const ops::BackendOptions& options : all_options()) {
      TestBackend backend(options, 2, limits_for(6, 64));
      Matrix residual(backend.dtype(), 6, 64);
      residual.fill(9);
      backend->embed(batch.view(), table.view, previous.data(), residual.view());
      const std::vector<std::int32_t> expected = {4, 18, 5, -2, -1, -1};
      for (std::size_t t = 0; t < expected.size(); ++t) {
        std::vector<float> row(64, expected[t] == -2 ? 9.0f : 0.0f);
        if (expected[t] >= 0) widen_row(table.view, expected[t], row.data());
        for (float& value : row) value = round_to_bf16(value);
        EXPECT_EQ(residual.row(static_cast<std::int64_t>(t)), row)
            << name_of(options) << " " << weight_format_name(format) << ", token " << t;
      }
    }
  }
}

// Spec §10 and addenda §13 "RoPE".
TEST(Rotary, InverseFrequencies) {
  std::vector<float> inv_freq(32);
  ops::plain_inverse_frequencies(5e6, inv_freq);
  EXPECT_FLOAT_EQ(inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(inv_freq[1], 0.6175287581f);
  EXPECT_FLOAT_EQ(inv_freq[2], 0.3813417671f);
  EXPECT_FLOAT_EQ(inv_freq[15], 7.241988160e-4f);
  EXPECT_FLOAT_EQ(inv_freq[16], 4.472135955e-4f);
  EXPECT_FLOAT_EQ(inv_freq[31], 3.238715564e-7f);
}

TEST(Rotary, TableIsFp32AndTheSameEverywhere) {
  std::vector<float> inv_freq(32);
  ops::plain_inverse_frequencies(5e6, inv_freq);
  RaggedBatch batch({{3, 3}, {128, 1}}, 8, 0);
  batch.positions = {0, 1, 1048575, 127};
  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 2, limits_for(4, 64));
    Matrix table(DType::f32, 4, 64);
    backend->rotary_table(batch.view(), inv_freq, 1.25f, table.view());
    for (std::int64_t t = 0; t < 4; ++t) {
      const std::vector<float> row = table.row(t);
      for (std::size_t i = 0; i < 32; ++i) {
        const float angle = static_cast<float>(batch.positions[static_cast<std::size_t>(t)]) * inv_freq[i];
        EXPECT_EQ(row[i], std::cos(angle) * 1.25f);
        EXPECT_EQ(row[32 + i], std::sin(angle) * 1.25f);
      }
    }
  }
}

TEST(AddNorm, FollowsTheDefinition) {
  Random random(2);
  for (const std::int64_t columns : {1, 7, 64, 129, 1000}) {
    const std::int64_t rows = 11;
    const std::vector<float> x = normal_values(random, rows * columns, 3);
    const std::vector<float> d = normal_values(random, rows * columns);
    const std::vector<float> w = normal_values(random, columns, 0.1f);
    for (const bool gemma : {true, false}) {
      for (const bool with_delta : {true, false}) {
        for (const bool with_norm : {true, false}) {
          for (const ops::BackendOptions& options : all_options()) {
            TestBackend backend(options, 2, limits_for(rows, columns));
            Matrix residual(backend.dtype(), rows, columns, x);
            Matrix delta(backend.dtype(), rows, columns, d);
            Matrix normed(backend.dtype(), rows, columns);
            normed.fill(5);
            backend->add_norm(residual.view(), with_delta ? delta.view() : ops::Tensor{}, {w, 1e-6f, gemma},
                              with_norm ? normed.view() : ops::Tensor{}, nullptr);
            std::vector<float> sums(x);
            std::vector<float> expected(x.size(), 5);
            for (std::int64_t r = 0; r < rows; ++r) {
              double squares = 0;
              for (std::int64_t c = 0; c < columns; ++c) {
                const auto at = static_cast<std::size_t>(r * columns + c);
                if (with_delta) sums[at] = round_to_bf16(x[at] + d[at]);
                squares += double{sums[at]} * double{sums[at]};
              }
              const double root = std::sqrt(squares / static_cast<double>(columns) + 1e-6);
              for (std::int64_t c = 0; with_norm && c < columns; ++c) {
                const auto at = static_cast<std::size_t>(r * columns + c);
                const double factor = (gemma ? 1.0 : 0.0) + double{w[static_cast<std::size_t>(c)]};
                expected[at] = static_cast<float>(double{sums[at]} / root * factor);
              }
            }
            EXPECT_EQ(residual.values(), sums) << name_of(options);
            expect_bf16_close(normed.values(), expected, 1e-6f, name_of(options));
          }
        }
      }
    }
  }
}

struct QkvCase {
  int query_heads, kv_heads, index_heads;
  DType cache;
  bool norms;
  int rotary_dim;
};

class QkvFinish : public testing::TestWithParam<QkvCase> {};

TEST_P(QkvFinish, FollowsTheDefinition) {
  const QkvCase shape = GetParam();
  Random random(3);
  RaggedBatch batch({{1, 1}, {130, 5}, {0, 2}, {256, 1}, {300, 2}}, 12, 6);
  batch.page_table[static_cast<std::size_t>(4 * batch.stride + 2)] = -1;  // the last sequence's own page
  const std::int32_t tokens = batch.tokens();
  const std::int64_t heads =
      shape.query_heads + 2 * shape.kv_heads + shape.index_heads + (shape.index_heads > 0 ? 1 : 0);
  const std::vector<float> packed_values = normal_values(random, tokens * heads * 128);
  std::vector<std::vector<float>> weights;
  for (int i = 0; i < 4; ++i) weights.push_back(shape.norms ? normal_values(random, 128, 0.2f) : std::vector<float>());
  ops::QkvFinish args;
  args.query_heads = shape.query_heads;
  args.kv_heads = shape.kv_heads;
  args.index_heads = shape.index_heads;
  args.rotary_dim = shape.rotary_dim;
  args.q_norm = weights[0];
  args.k_norm = weights[1];
  args.index_q_norm = weights[2];
  args.index_k_norm = weights[3];
  std::vector<float> inv_freq(static_cast<std::size_t>(shape.rotary_dim / 2));
  ops::plain_inverse_frequencies(5e6, inv_freq);
  const float k_scale = shape.cache == DType::f8_e4m3 ? 0.5f : 1;

  const auto finished = [&](std::int32_t token, std::int64_t head, int norm) {
    const float* x = packed_values.data() + (token * heads + head) * 128;
    std::vector<double> y(x, x + 128);
    if (norm >= 0 && shape.norms) {
      double squares = 0;
      for (const double value : y) squares += value * value;
      const double root = std::sqrt(squares / 128 + 1e-6);
      for (std::size_t i = 0; i < 128; ++i)
        y[i] = y[i] / root * (1.0 + double{weights[static_cast<std::size_t>(norm)][i]});
    }
    if (norm >= 0) {
      const std::size_t half = inv_freq.size();
      for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(batch.positions[static_cast<std::size_t>(token)]) * inv_freq[i];
        const double a = y[i];
        const double b = y[i + half];
        y[i] = a * std::cos(angle) - b * std::sin(angle);
        y[i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return std::vector<float>(y.begin(), y.end());
  };
  // One step of the stored type: bf16 2^-7, e4m3 2^-3 (2^-10 below its smallest normal number).
  const auto expect_stored = [&](const std::vector<float>& stored, const std::vector<float>& expected,
                                 const std::string& what) {
    for (std::size_t i = 0; i < 128; ++i) {
      const float step = shape.cache == DType::f8_e4m3 ? 0x1p-3f : 0x1p-7f;
      ASSERT_NEAR(stored[i], expected[i], std::abs(expected[i]) * step + 0x1p-10f) << what << " element " << i;
    }
  };

  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 2, limits_for(tokens, 128));
    Matrix packed(backend.dtype(), tokens, heads * 128, packed_values);
    Matrix table(DType::f32, tokens, shape.rotary_dim);
    Matrix q(backend.dtype(), tokens, shape.query_heads * 128);
    Matrix index_q(backend.dtype(), tokens, std::max(1, shape.index_heads) * 128);
    q.fill(9);
    index_q.fill(9);
    PageMemory k(shape.cache, 12, shape.kv_heads);
    PageMemory v(shape.cache, 12, shape.kv_heads);
    PageMemory index_k(shape.cache, 12, 1);
    const std::vector<std::byte> untouched = k.bytes();
    ops::LayerPages pages;
    pages.k = k.part();
    pages.v = v.part();
    pages.index_k = index_k.part();
    pages.k_scale = k_scale;
    backend->rotary_table(batch.view(), inv_freq, 1, table.view());
    backend->qkv_finish(batch.view(), args, packed.view(), table.view(), pages, q.view(), index_q.view());

    std::size_t written = 0;
    for (std::int32_t t = 0; t < tokens; ++t) {
      const auto token = static_cast<std::size_t>(t);
      const auto sequence = static_cast<std::size_t>(batch.sequence_of_token[token]);
      const int position = batch.positions[token];
      const std::int32_t page =
          batch
              .page_table[sequence * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(position / 128)];
      const std::string what = name_of(options) + " token " + std::to_string(t);
      if (batch.context_lengths[sequence] == 0 || page < 0) {
        EXPECT_EQ(q.row(t), std::vector<float>(static_cast<std::size_t>(shape.query_heads * 128), 9.0f)) << what;
        continue;
      }
      const std::vector<float> q_row = q.row(t);
      for (int head = 0; head < shape.query_heads; ++head) {
        expect_bf16_close({q_row.begin() + head * 128, q_row.begin() + head * 128 + 128}, finished(t, head, 0), 1e-6f,
                          what + " q");
      }
      for (int head = 0; head < shape.kv_heads; ++head) {
        expect_stored(k.read(page, head, position % 128, k_scale), finished(t, shape.query_heads + head, 1),
                      what + " k");
        expect_stored(v.read(page, head, position % 128), finished(t, shape.query_heads + shape.kv_heads + head, -1),
                      what + " v");
        ++written;
      }
      const std::vector<float> index_row = index_q.row(t);
      for (int head = 0; head < shape.index_heads; ++head) {
        expect_bf16_close({index_row.begin() + head * 128, index_row.begin() + head * 128 + 128},
                          finished(t, shape.query_heads + 2 * shape.kv_heads + head, 2), 1e-6f, what + " index_q");
      }
      if (shape.index_heads > 0) {
        expect_stored(index_k.read(page, 0, position % 128), finished(t, heads - 1, 3), what + " index_k");
      }
    }
    // Nothing else was written.
    std::size_t changed = 0;
    const std::size_t row_bytes = 128 * dtype_size(shape.cache);
    for (std::size_t at = 0; at < untouched.size(); at += row_bytes) {
      changed += std::equal(untouched.begin() + static_cast<std::ptrdiff_t>(at),
                            untouched.begin() + static_cast<std::ptrdiff_t>(at + row_bytes),
                            k.bytes().begin() + static_cast<std::ptrdiff_t>(at))
                     ? 0
                     : 1;
    }
    EXPECT_EQ(changed, written) << name_of(options);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QkvFinish,
    testing::Values(QkvCase{8, 4, 4, DType::bf16, true, 64}, QkvCase{64, 4, 4, DType::f8_e4m3, true, 64},
                    QkvCase{8, 1, 0, DType::bf16, true, 64}, QkvCase{32, 2, 2, DType::f32, true, 64},
                    QkvCase{4, 4, 0, DType::bf16, false, 128}, QkvCase{2, 1, 1, DType::bf16, true, 20}));

TEST(QkvFinish, RejectsTooNarrowARow) {
  RaggedBatch batch({{1, 1}}, 1, 0);
  for (const ops::BackendOptions& options : all_options()) {
    TestBackend backend(options, 1, limits_for(1, 128));
    Matrix packed(backend.dtype(), 1, 128);
    ops::QkvFinish args;
    args.query_heads = 8;
    args.kv_heads = 4;
    EXPECT_THROW(backend->qkv_finish(batch.view(), args, packed.view(), packed.view(), {}, packed.view(), {}),
                 std::exception);
  }
}

TEST(CopyPages, CopiesWholePages) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    for (const ops::BackendOptions& options : all_options()) {
      TestBackend backend(options, 2, limits_for(1, 128));
      PageMemory memory(dtype, 6, 2);
      Random random(4);
      RaggedBatch batch({{256, 1}}, 2, 0);  // pages 0 and 1
      memory.fill_contexts(batch, random, false);
      const std::vector<std::int32_t> from = {0, 1};
      const std::vector<std::int32_t> to = {5, 3};
      backend->copy_pages(memory.part(), from, to);
      for (int head = 0; head < 2; ++head) {
        for (int slot = 0; slot < 128; ++slot) {
          ASSERT_EQ(memory.read(5, head, slot), memory.read(0, head, slot));
          ASSERT_EQ(memory.read(3, head, slot), memory.read(1, head, slot));
        }
      }
      EXPECT_TRUE(std::isnan(memory.read(2, 0, 0)[0]));
      EXPECT_THROW(backend->copy_pages(memory.part(), from, {to.data(), 1}), std::exception);
    }
  }
}

}  // namespace
}  // namespace m3::test
