// Sampling: the filters one by one, the draw, and its independence of everything but (seed, sample, position).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "src/ops/host/sampler.h"
#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<std::int32_t> draw(const std::vector<std::vector<float>>& rows, const std::vector<ops::SamplingRow>& args,
                               int threads = 1, const ops::BackendOptions& options = scalar_options()) {
  ops::Limits limits;
  limits.vocab = static_cast<std::int64_t>(rows.front().size());
  limits.logits_rows = static_cast<std::int64_t>(rows.size());
  TestBackend backend(options, threads, limits);
  std::vector<float> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  Matrix logits(DType::f32, limits.logits_rows, limits.vocab, values);
  std::vector<std::int32_t> ids(rows.size(), -7);
  backend->sample(logits.view(), args, ids);
  return ids;
}

std::int32_t draw_one(const std::vector<float>& row, const ops::SamplingRow& args) { return draw({row}, {args})[0]; }

// How often each id comes in `count` draws at successive positions.
std::map<std::int32_t, double> shares(const std::vector<float>& row, ops::SamplingRow args, int count) {
  std::map<std::int32_t, double> result;
  std::vector<std::vector<float>> rows(static_cast<std::size_t>(count), row);
  std::vector<ops::SamplingRow> all;
  for (int i = 0; i < count; ++i) {
    args.position = i;
    all.push_back(args);
  }
  for (const std::int32_t id : draw(rows, all)) result[id] += 1.0 / count;
  return result;
}

ops::SamplingRow greedy() {
  ops::SamplingRow row;
  row.temperature = 0;
  return row;
}

TEST(Sample, GreedyTakesTheLargestAndTheLowerIdOfTies) {
  EXPECT_EQ(draw_one({1, 3, 2}, greedy()), 1);
  EXPECT_EQ(draw_one({1, 3, 3, 3}, greedy()), 1);
  std::vector<float> row(1003, -5);
  row[1001] = row[640] = 4;
  EXPECT_EQ(draw_one(row, greedy()), 640);
  row[1002] = 5;  // past the last whole group of lanes
  EXPECT_EQ(draw_one(row, greedy()), 1002);
}

TEST(Sample, NonFiniteLogitsAreNeverDrawn) {
  EXPECT_EQ(draw_one({NAN, infinity, -infinity, -3}, greedy()), 3);
  EXPECT_EQ(draw_one({NAN, infinity, -infinity, -3}, {}), 3);
  EXPECT_EQ(draw_one({NAN, infinity, -infinity}, greedy()), -1);
  EXPECT_EQ(draw_one({NAN, NAN}, {}), -1);
}

TEST(Sample, PhiloxKnownAnswer) {
  // Random123's published vector for philox4x32-10 of zeros begins 6627e8d5 e169c58d.
  EXPECT_EQ(ops::uniform_draw(0, 0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
}

TEST(Sample, DrawIsUniformAndDependsOnEachArgument) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < 20000; ++i) {
    const double u = ops::uniform_draw(42, 0, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / 20000, 0.5, 0.01);
  EXPECT_NEAR(squares / 20000, 1.0 / 3, 0.01);
  const double base = ops::uniform_draw(1, 2, 3);
  EXPECT_NE(base, ops::uniform_draw(2, 2, 3));
  EXPECT_NE(base, ops::uniform_draw(1, 3, 3));
  EXPECT_NE(base, ops::uniform_draw(1, 2, 4));
  EXPECT_NE(base, ops::uniform_draw(1ull << 40, 2, 3));
  EXPECT_EQ(base, ops::uniform_draw(1, 2, 3));
}

TEST(Sample, FollowsTheDistribution) {
  const std::vector<float> row = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  auto share = shares(row, {}, 20000);
  EXPECT_NEAR(share[0], 0.5, 0.015);
  EXPECT_NEAR(share[1], 0.3, 0.015);
  EXPECT_NEAR(share[2], 0.2, 0.015);
  ops::SamplingRow hot;
  hot.temperature = 2;
  share = shares(row, hot, 20000);
  const double total = std::sqrt(0.5) + std::sqrt(0.3) + std::sqrt(0.2);
  EXPECT_NEAR(share[0], std::sqrt(0.5) / total, 0.015);
  EXPECT_NEAR(share[2], std::sqrt(0.2) / total, 0.015);
}

TEST(Sample, TopKKeepsExactlyK) {
  ops::SamplingRow args;
  args.top_k = 2;
  // Three tie for second place: the lowest id has it.
  const auto share = shares({1, 5, 4, 4, 4}, args, 3000);
  EXPECT_EQ(share.size(), 2u);
  EXPECT_TRUE(share.contains(1) && share.contains(2));
  EXPECT_NEAR(share.at(1), 1 / (1 + std::exp(-1.0)), 0.03);
  args.top_k = 1;
  EXPECT_EQ(shares({1, 5, 4}, args, 100).size(), 1u);
  args.top_k = 50;  // more than there are
  EXPECT_EQ(shares({1, 1, 1}, args, 1000).size(), 3u);
}

TEST(Sample, TopPKeepsTheShortestRunThatReachesIt) {
  const std::vector<float> row = {std::log(0.1f), std::log(0.6f), std::log(0.05f), std::log(0.25f)};
  ops::SamplingRow args;
  args.top_p = 0.59f;
  EXPECT_EQ(shares(row, args, 500).size(), 1u);
  args.top_p = 0.8f;
  auto share = shares(row, args, 8000);
  EXPECT_EQ(share.size(), 2u);
  EXPECT_NEAR(share[1], 0.6 / 0.85, 0.02);
  args.top_p = 0.9f;
  EXPECT_EQ(shares(row, args, 4000).size(), 3u);
  args.top_p = 0;  // at least one
  EXPECT_EQ(shares(row, args, 100).size(), 1u);
  // After top-k, over what is left: 0.6 / 0.85 < 0.75.
  args.top_p = 0.75f;
  args.top_k = 2;
  EXPECT_EQ(shares(row, args, 2000).size(), 2u);
  args.top_p = 0.70f;
  EXPECT_EQ(shares(row, args, 500).size(), 1u);
}

TEST(Sample, MinPIsRelativeToTheHighest) {
  const std::vector<float> row = {std::log(0.1f), std::log(0.6f), std::log(0.05f), std::log(0.25f)};
  ops::SamplingRow args;
  args.min_p = 0.4f;  // 0.24
  EXPECT_EQ(shares(row, args, 3000).size(), 2u);
  args.min_p = 0.43f;  // 0.258
  EXPECT_EQ(shares(row, args, 500).size(), 1u);
  args.min_p = 1;
  EXPECT_EQ(shares(row, args, 100).size(), 1u);
}

TEST(Sample, RepetitionDividesPositiveLogitsOnce) {
  const std::vector<std::int32_t> prompt = {0, 0, 0};
  const std::vector<std::int32_t> output = {1, 1, 2};
  ops::SamplingRow args = greedy();
  args.prompt_ids = prompt;
  args.output_ids = output;
  args.repetition_penalty = 2;
  EXPECT_EQ(draw_one({5, 4, 4, 2.4f}, args), 0);  // 2.5 2 2 2.4
  EXPECT_EQ(draw_one({5, 4, 4, 2.6f}, args), 3);
}

TEST(Sample, RepetitionMultipliesNegativeLogits) {
  const std::vector<std::int32_t> seen = {0};
  ops::SamplingRow args = greedy();
  args.output_ids = seen;
  args.repetition_penalty = 2;
  EXPECT_EQ(draw_one({-1, -1.9f}, args), 1);
  EXPECT_EQ(draw_one({-1, -2.1f}, args), 0);
}

TEST(Sample, PresenceAndFrequencyCountOutputsOnly) {
  const std::vector<std::int32_t> prompt = {0, 0, 0};
  const std::vector<std::int32_t> output = {1, 1, 2};
  ops::SamplingRow args = greedy();
  args.prompt_ids = prompt;
  args.output_ids = output;
  args.presence_penalty = 1;
  EXPECT_EQ(draw_one({4.5f, 5, 5}, args), 0);     // 4.5 4 4
  EXPECT_EQ(draw_one({3.5f, 5, 4.5f}, args), 1);  // 3.5 4 3.5
  args.presence_penalty = 0;
  args.frequency_penalty = 1;
  EXPECT_EQ(draw_one({3.5f, 5, 5}, args), 2);  // 3.5 3 4
  args.presence_penalty = -10;                 // negative ones reward
  EXPECT_EQ(draw_one({9, 1, 0.5f}, args), 2);  // 9, 1+10-2, 0.5+10-1
}

TEST(Sample, BiasAndMask) {
  const std::vector<ops::SamplingRow::Bias> bias = {{2, 10}, {0, -10}, {99, 5}, {-1, 5}};  // ids past the row: ignored
  ops::SamplingRow args = greedy();
  args.logit_bias = bias;
  EXPECT_EQ(draw_one({5, 4, 3}, args), 2);
  std::vector<float> row(70);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i);
  std::vector<std::uint32_t> allowed = {0, 1u << 5, 0xffffffffu};
  args = greedy();
  args.allowed = allowed;
  EXPECT_EQ(draw_one(row, args), 69);
  allowed[2] = 0;
  EXPECT_EQ(draw_one(row, args), 37);
  allowed[1] = 0;
  EXPECT_EQ(draw_one(row, args), -1);
  allowed.resize(1);
  allowed[0] = 8;
  args.allowed = allowed;  // shorter than the row: the rest is not allowed
  EXPECT_EQ(draw_one(row, args), 3);
}

// The same row gives the same id alone, in a batch, on any thread, on any backend.
// The sampler works in place; who asks has the row as it was.
TEST(Sample, RawLogitsAreThoseBeforeTheDraw) {
  for (const ops::BackendOptions& options : all_options()) {
    constexpr std::int64_t count = 9, vocab = 517;
    ops::Limits limits;
    limits.vocab = vocab;
    limits.logits_rows = count;
    TestBackend backend(options, 3, limits);
    Random random(3);
    const std::vector<float> values = fp32_values(random, count * vocab, 3);
    const std::vector<ops::SamplingRow::Bias> bias = {{5, 4}, {6, -4}};
    for (int pass = 0; pass < 2; ++pass) {  // the second keeps other rows
      Matrix logits(DType::f32, count, vocab, values);
      std::vector<ops::SamplingRow> rows(count);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        rows[row].logit_bias = bias;
        rows[row].temperature = 0.5f;
        rows[row].keep_raw = (row + static_cast<std::size_t>(pass)) % 4 > 1;
      }
      std::vector<std::int32_t> ids(count);
      backend->sample(logits.view(), rows, ids);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (!rows[row].keep_raw) continue;
        const std::span<const float> raw = backend->raw_logits(static_cast<std::int64_t>(row));
        EXPECT_TRUE(std::ranges::equal(raw, std::span(values).subspan(row * vocab, vocab))) << row;
      }
    }
  }
}

TEST(Sample, DependsOnItsRowAlone) {
  Random random(8);
  const int count = 23;
  std::vector<std::vector<float>> rows;
  std::vector<ops::SamplingRow> args;
  const std::vector<std::int32_t> seen = {1, 2, 3, 3};
  for (int i = 0; i < count; ++i) {
    rows.push_back(fp32_values(random, 5000, 2));
    ops::SamplingRow row;
    row.temperature = i % 4 == 0 ? 0.0f : 0.8f;
    row.top_k = i % 3 == 0 ? 40 : 0;
    row.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    row.repetition_penalty = i % 5 == 0 ? 1.3f : 1.0f;
    row.output_ids = seen;
    row.seed = static_cast<std::uint64_t>(i);
    row.position = i;
    args.push_back(row);
  }
  const std::vector<std::int32_t> together = draw(rows, args, 3);
  for (const ops::BackendOptions& options : all_options()) EXPECT_EQ(draw(rows, args, 2, options), together);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(draw_one(rows[i], args[i]), together[i]);
}

// Filters do not change which id a number means: a filter that removes nothing changes nothing.
TEST(Sample, IdleFiltersDoNotChangeTheDraw) {
  Random random(9);
  const std::vector<float> row = fp32_values(random, 500, 1);
  for (int position = 0; position < 50; ++position) {
    ops::SamplingRow plain;
    plain.position = position;
    ops::SamplingRow filtered = plain;
    filtered.top_k = 500;
    filtered.min_p = 1e-9f;
    EXPECT_EQ(draw_one(row, plain), draw_one(row, filtered));
  }
}

}  // namespace
}  // namespace m3::test
