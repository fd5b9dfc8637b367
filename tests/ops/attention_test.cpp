// attend_dense and attend_sparse over ragged batches: the judge against double precision, the others against the judge.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/support/ops_data.h"

namespace m3::test {
namespace {

constexpr float untouched = 12345;

struct Case {
  int query_heads = 8;
  int kv_heads = 4;
  DType cache = DType::bf16;
  float k_scale = 1;
  float v_scale = 1;
  int window = 0;
  int topk = 16;
};

// 1-token contexts, ends inside and at the end of blocks, exactly 16 and 17 blocks, a prompt chunk, verify groups of 5
// and 16, inert rows.
const std::vector<SequenceShape> mixed = {{1, 1},    {5, 5},   {128, 1},  {129, 3},  {0, 2},   {2048, 1},
                                          {2049, 2}, {700, 5}, {333, 20}, {300, 16}, {2305, 3}};
constexpr std::int32_t pool_pages = 96;

ops::Limits limits_for(const RaggedBatch& batch, const Case& shape) {
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = static_cast<std::int64_t>(batch.context_lengths.size());
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = shape.query_heads;
  limits.kv_heads = shape.kv_heads;
  limits.hidden = 128;
  limits.topk_blocks = shape.topk;
  return limits;
}

struct Data {
  Data(const Case& shape, unsigned seed)
      : args(shape),
        batch(mixed, pool_pages, seed),
        k(shape.cache, pool_pages, shape.kv_heads),
        v(shape.cache, pool_pages, shape.kv_heads) {
    Random random(7);
    q = normal_values(random, std::int64_t{batch.tokens()} * shape.query_heads * 128);
    k.fill_contexts(batch, random, false, shape.k_scale);
    v.fill_contexts(batch, random, false, shape.v_scale);
    for (std::int32_t t = 0; t < batch.tokens(); ++t) {
      const int own = batch.positions[static_cast<std::size_t>(t)] / 128;
      for (int head = 0; head < shape.kv_heads; ++head) {
        // The own block and a random choice of the others, ascending.
        std::vector<std::int32_t> ids;
        for (int block = 0; block < own; ++block) {
          if (own < shape.topk || random() % 2 == 0) ids.push_back(block);
        }
        while (static_cast<int>(ids.size()) > shape.topk - 1)
          ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(random() % ids.size()));
        ids.push_back(own);
        ids.resize(static_cast<std::size_t>(shape.topk), -1);
        block_ids.insert(block_ids.end(), ids.begin(), ids.end());
      }
    }
  }

  ops::LayerPages pages() {
    ops::LayerPages result;
    result.k = k.part();
    result.v = v.part();
    result.k_scale = args.k_scale;
    result.v_scale = args.v_scale;
    return result;
  }

  std::vector<float> run(const ops::BackendOptions& options, bool sparse, int threads = 2) {
    TestBackend backend(options, threads, limits_for(batch, args));
    const std::int64_t columns = std::int64_t{args.query_heads} * 128;
    Matrix input(backend.dtype(), batch.tokens(), columns, q);
    Matrix out(backend.dtype(), batch.tokens(), columns);
    out.fill(untouched);
    ops::Attention attention;
    attention.query_heads = args.query_heads;
    attention.kv_heads = args.kv_heads;
    attention.scale = 0.08838834764831845f;
    attention.window = args.window;
    attention.topk = args.topk;
    if (sparse) {
      backend->attend_sparse(batch.view(), attention, input.view(), pages(), block_ids.data(), out.view());
    } else {
      backend->attend_dense(batch.view(), attention, input.view(), pages(), out.view());
    }
    return out.values();
  }

  // The definition in double precision.
  std::vector<float> define(bool sparse) {
    std::vector<float> result;
    const int group = args.query_heads / args.kv_heads;
    for (std::int32_t t = 0; t < batch.tokens(); ++t) {
      const auto token = static_cast<std::size_t>(t);
      const auto sequence = static_cast<std::size_t>(batch.sequence_of_token[token]);
      for (int head = 0; head < args.query_heads; ++head) {
        std::vector<double> out(128, batch.context_lengths[sequence] == 0 ? untouched : 0);
        if (batch.context_lengths[sequence] > 0) {
          const int kv_head = head / group;
          const int position = batch.positions[token];
          std::vector<double> scores;
          std::vector<std::vector<float>> values;
          double highest = -INFINITY;
          for (int p = 0; p <= position; ++p) {
            if (!sparse && args.window > 0 && position - p >= args.window) continue;
            const auto* ids = block_ids.data() +
                              (token * static_cast<std::size_t>(args.kv_heads) + static_cast<std::size_t>(kv_head)) *
                                  static_cast<std::size_t>(args.topk);
            if (sparse && std::find(ids, ids + args.topk, p / 128) == ids + args.topk) continue;
            const std::int32_t page =
                batch.page_table[sequence * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(p / 128)];
            const std::vector<float> key = k.read(page, kv_head, p % 128, args.k_scale);
            double score = 0;
            for (int d = 0; d < 128; ++d) {
              score += double{key[static_cast<std::size_t>(d)]} *
                       q[(token * static_cast<std::size_t>(args.query_heads) + static_cast<std::size_t>(head)) * 128 +
                         static_cast<std::size_t>(d)];
            }
            scores.push_back(score / std::sqrt(128.0));
            highest = std::max(highest, scores.back());
            values.push_back(v.read(page, kv_head, p % 128, args.v_scale));
          }
          double total = 0;
          for (double& score : scores) total += score = std::exp(score - highest);
          for (std::size_t i = 0; i < scores.size(); ++i) {
            for (std::size_t d = 0; d < 128; ++d) out[d] += scores[i] / total * values[i][d];
          }
        }
        for (const double value : out) result.push_back(static_cast<float>(value));
      }
    }
    return result;
  }

  Case args;
  RaggedBatch batch;
  PageMemory k, v;
  std::vector<float> q;
  std::vector<std::int32_t> block_ids;
};

std::string label(const Case& shape, bool sparse) {
  return std::string(sparse ? "sparse " : "dense ") + std::to_string(shape.query_heads) + "/" +
         std::to_string(shape.kv_heads) + " " + std::string(dtype_name(shape.cache));
}

// Σ p·v of values near 1 in fp32: a thousand terms leave 1e-5.
constexpr float absolute = 1e-5f;

TEST(Attention, JudgeFollowsTheDefinition) {
  for (const bool sparse : {false, true}) {
    Case shape;
    Data data(shape, 3);
    expect_bf16_close(data.run(scalar_options(), sparse), data.define(sparse), absolute, label(shape, sparse));
  }
  Case shape;
  shape.window = 100;
  shape.cache = DType::f8_e4m3;
  shape.k_scale = 0.5f;
  shape.v_scale = 2;
  Data data(shape, 4);
  expect_bf16_close(data.run(scalar_options(), false), data.define(false), absolute, "window, fp8");
}

TEST(Attention, CpuAgreesWithTheJudge) {
  std::vector<Case> cases;
  for (const auto& [query, kv] : {std::pair{8, 4}, {64, 4}, {32, 2}, {8, 1}, {6, 2}, {20, 1}}) {
    Case shape;
    shape.query_heads = query;
    shape.kv_heads = kv;
    cases.push_back(shape);
  }
  for (const DType cache : {DType::f32, DType::f8_e4m3}) {
    Case shape;
    shape.cache = cache;
    if (cache == DType::f8_e4m3) shape.k_scale = 0.25f;
    cases.push_back(shape);
  }
  for (const int window : {1, 128, 200}) {
    Case shape;
    shape.window = window;
    cases.push_back(shape);
  }
  for (const Case& shape : cases) {
    for (const bool sparse : {false, true}) {
      Data data(shape, 5);
      const std::vector<float> judged = data.run(scalar_options(), sparse);
      for (const ops::BackendOptions& options : cpu_options()) {
        expect_bf16_close(data.run(options, sparse), judged, absolute, name_of(options) + " " + label(shape, sparse));
      }
    }
  }
}

// Up to 16 blocks all blocks are chosen, and sparse is dense, to the bit.
TEST(Attention, SparseOverAllBlocksEqualsDense) {
  Case shape;
  shape.topk = 19;
  Data data(shape, 6);
  for (const ops::BackendOptions& options : all_options()) {
    EXPECT_EQ(data.run(options, true), data.run(options, false)) << name_of(options);
  }
}

// A drafts' window lets leading pages go: -1 is no key, and no crash.
TEST(Attention, MissingPagesHoldNoKeys) {
  Case shape;
  shape.window = 128;
  Data data(shape, 8);
  for (const ops::BackendOptions& options : all_options()) {
    const std::vector<float> whole = data.run(options, false);
    Data holes(shape, 8);
    for (std::size_t s = 0; s < holes.batch.context_lengths.size(); ++s) {
      const int first = holes.batch.query_begin[s];
      const int oldest = holes.batch.positions[static_cast<std::size_t>(first)];
      for (int block = 0; block < (oldest - 127) / 128; ++block) {
        holes.batch.page_table[s * static_cast<std::size_t>(holes.batch.stride) + static_cast<std::size_t>(block)] = -1;
      }
    }
    EXPECT_EQ(holes.run(options, false), whole) << name_of(options);
  }
}

}  // namespace
}  // namespace m3::test
