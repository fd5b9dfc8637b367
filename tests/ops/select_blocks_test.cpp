// Block choice: exact sets, on integer data where every dot product is exact and ties abound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

struct Case {
  int heads = 4;
  int topk = 16;
  int init = 0;
  int local = 1;
  DType cache = DType::bf16;
  std::vector<std::int32_t> dropped;
};

struct Data {
  Data(const Case& shape, const std::vector<SequenceShape>& shapes, unsigned seed, bool integers = true)
      : args(shape), batch(shapes, 160, seed), keys(shape.cache, 160, 1) {
    Random random(11);
    keys.fill_contexts(batch, random, integers);
    const std::int64_t count = std::int64_t{batch.tokens()} * shape.heads * 128;
    q = integers ? integer_values(random, count, 2) : normal_values(random, count);
  }

  std::vector<std::int32_t> run(const ops::BackendOptions& options, int threads = 2) {
    ops::Limits limits;
    limits.tokens = batch.tokens();
    limits.context = std::int64_t{batch.stride} * 128;
    limits.kv_heads = args.heads;
    limits.topk_blocks = args.topk;
    TestBackend backend(options, threads, limits);
    Matrix input(backend.dtype(), batch.tokens(), std::int64_t{args.heads} * 128, q);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(batch.tokens() * args.heads * args.topk), 77);
    ops::SelectBlocks select;
    select.index_heads = args.heads;
    select.topk = args.topk;
    select.init_blocks = args.init;
    select.local_blocks = args.local;
    select.dropped = args.dropped;
    ops::LayerPages pages;
    pages.index_k = keys.part();
    backend->select_blocks(batch.view(), select, input.view(), pages, ids.data());
    return ids;
  }

  std::vector<double> scores(std::int32_t token, int head) {
    const auto t = static_cast<std::size_t>(token);
    const auto sequence = static_cast<std::size_t>(batch.sequence_of_token[t]);
    std::vector<double> result;
    for (int p = 0; p <= batch.positions[t]; ++p) {
      const std::int32_t page =
          batch.page_table[sequence * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(p / 128)];
      const std::vector<float> key = keys.read(page, 0, p % 128);
      double score = 0;
      for (std::size_t d = 0; d < 128; ++d) {
        const float element = q[(t * static_cast<std::size_t>(args.heads) + static_cast<std::size_t>(head)) * 128 + d];
        const bool fp8 = args.cache == DType::f8_e4m3;
        score += double{key[d]} * (fp8 ? e4m3_to_float(float_to_e4m3(element)) : element);
      }
      if (p % 128 == 0) result.push_back(-INFINITY);
      if (score > result.back()) result.back() = score;
    }
    return result;
  }

  const std::vector<std::vector<std::int32_t>>& defined() {
    if (!definition.empty()) return definition;
    for (std::int32_t token = 0; token < batch.tokens(); ++token) {
      for (int head = 0; head < args.heads; ++head) definition.push_back(define(token, head));
    }
    return definition;
  }

  // The definition: forced blocks, then the highest, ties to the lower id, ascending.
  std::vector<std::int32_t> define(std::int32_t token, int head) {
    std::vector<std::int32_t> ids;
    const auto sequence = static_cast<std::size_t>(batch.sequence_of_token[static_cast<std::size_t>(token)]);
    if (batch.context_lengths[sequence] > 0) {
      const std::vector<double> score = scores(token, head);
      const auto blocks = static_cast<std::int32_t>(score.size());
      std::vector<std::int32_t> order(score.size());
      std::iota(order.begin(), order.end(), 0);
      const auto forced = [&](std::int32_t b) { return b < args.init || b >= blocks - args.local; };
      const auto dropped = [&](std::int32_t b) {
        return !forced(b) && std::find(args.dropped.begin(), args.dropped.end(), b) != args.dropped.end();
      };
      order.erase(std::remove_if(order.begin(), order.end(), dropped), order.end());
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        if (forced(a) != forced(b)) return forced(a);
        return !forced(a) && score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
      });
      order.resize(std::min(order.size(), static_cast<std::size_t>(args.topk)));
      std::sort(order.begin(), order.end());
      ids = order;
    }
    ids.resize(static_cast<std::size_t>(args.topk), -1);
    return ids;
  }

  void expect_defined(const ops::BackendOptions& options, const std::string& what) {
    const std::vector<std::int32_t> ids = run(options);
    for (std::int32_t token = 0; token < batch.tokens(); ++token) {
      for (int head = 0; head < args.heads; ++head) {
        const auto begin = ids.begin() + (token * args.heads + head) * args.topk;
        ASSERT_EQ(std::vector<std::int32_t>(begin, begin + args.topk), define(token, head))
            << name_of(options) << " " << what << ", token " << token << ", head " << head;
      }
    }
  }

  Case args;
  RaggedBatch batch;
  PageMemory keys;
  std::vector<float> q;
  std::vector<std::vector<std::int32_t>> definition;  // [tokens · heads], made once
};

const std::vector<SequenceShape> mixed = {{1, 1},    {127, 1},  {128, 2},   {129, 1},   {0, 3},   {2047, 1},
                                          {2048, 1}, {2049, 2}, {2700, 70}, {3000, 16}, {2176, 1}};

const std::vector<SequenceShape> few = {{1, 1}, {0, 1}, {2048, 1}, {2049, 2}, {2700, 5}};

TEST(SelectBlocks, FollowsTheDefinitionWithTies) {
  std::vector<Case> cases(1);
  for (const int heads : {1, 2, 8}) cases.push_back({heads, 16, 0, 1, DType::bf16, {}});
  cases.push_back({4, 3, 0, 1, DType::bf16, {}});
  cases.push_back({4, 1, 0, 1, DType::bf16, {}});
  cases.push_back({4, 16, 2, 3, DType::bf16, {}});
  cases.push_back({2, 4, 1, 0, DType::bf16, {}});
  cases.push_back({4, 16, 1, 1, DType::bf16, {0, 3, 4, 5, 20}});
  cases.push_back({4, 16, 0, 1, DType::f8_e4m3, {}});
  cases.push_back({4, 16, 0, 1, DType::f32, {}});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Data data(cases[i], i == 0 ? mixed : few, 9);
    for (const ops::BackendOptions& options : all_options()) data.expect_defined(options, "case " + std::to_string(i));
  }
}

// Equal keys everywhere: all scores tie, so the lowest ids win beside the own block.
TEST(SelectBlocks, TiesGoToTheLowerId) {
  Data data({4, 16, 0, 1, DType::bf16, {}}, {{2600, 1}}, 2);
  const std::vector<float> key(128, 1.0f);
  for (int p = 0; p < 2600; ++p)
    data.keys.write(data.batch.page_table[static_cast<std::size_t>(p / 128)], 0, p % 128, key);
  std::vector<std::int32_t> expected(15);
  std::iota(expected.begin(), expected.end(), 0);
  expected.push_back(20);
  for (const ops::BackendOptions& options : all_options()) {
    const std::vector<std::int32_t> ids = data.run(options);
    for (int head = 0; head < 4; ++head) {
      EXPECT_EQ(std::vector<std::int32_t>(ids.begin() + head * 16, ids.begin() + head * 16 + 16), expected)
          << name_of(options);
    }
  }
}

// Spec §10: t = 127, 128, 2047, 2048.
TEST(SelectBlocks, UnitCases) {
  for (const ops::BackendOptions& options : all_options()) {
    const auto chosen = [&](std::int64_t t) {
      Data data({1, 16, 0, 1, DType::bf16, {}}, {{t + 1, 1}}, 5);
      std::vector<std::int32_t> ids = data.run(options);
      ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
      return ids;
    };
    EXPECT_EQ(chosen(127), std::vector<std::int32_t>({0}));
    EXPECT_EQ(chosen(128), std::vector<std::int32_t>({0, 1}));
    std::vector<std::int32_t> all(16);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(chosen(2047), all);
    const std::vector<std::int32_t> last = chosen(2048);
    EXPECT_EQ(last.size(), 16u);
    EXPECT_EQ(last.back(), 16);
  }
}

TEST(SelectBlocks, NanIsLowest) {
  Data data({2, 3, 0, 1, DType::bf16, {}}, {{1000, 1}}, 3);
  // Block 2 is all NaN; block 4 has one NaN beside the highest score of all.
  const std::vector<float> nan(128, NAN);
  for (int slot = 0; slot < 128; ++slot) data.keys.write(data.batch.page_table[2], 0, slot, nan);
  data.keys.write(data.batch.page_table[4], 0, 0, nan);
  for (int head = 0; head < 2; ++head) {
    const std::vector<float> own(data.q.begin() + head * 128, data.q.begin() + head * 128 + 128);
    std::vector<float> strong = own;
    for (float& value : strong) value *= 100;
    data.keys.write(data.batch.page_table[4], 0, 1 + head, strong);
  }
  for (const ops::BackendOptions& options : all_options()) {
    data.expect_defined(options, "NaN");
    const std::vector<std::int32_t> ids = data.run(options);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 0) << name_of(options);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 4), 2) << name_of(options);
  }
}

// Real-valued data: sets may differ only where scores agree to fp32 rounding; here none are that close.
TEST(SelectBlocks, RealValues) {
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    Data data({4, 16, 0, 1, cache, {}}, {{4200, 9}, {2900, 1}}, 4, false);
    for (const ops::BackendOptions& options : all_options()) data.expect_defined(options, "real values");
  }
}

}  // namespace
}  // namespace m3::test
