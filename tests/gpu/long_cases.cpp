// Choosing blocks and attention on contexts up to 1M, over pools past 2^31 elements, for 256 sequences at once and for
// prompts of 8192 rows. The judge sees some rows; all of them are compared with a deterministic backend, whose kernels
// are others.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/gpu/seeded.h"

namespace m3::test::gpu {

namespace {

using Shapes = std::vector<SequenceShape>;

constexpr int kv_heads = 4, query_heads = 64, topk = 16;

struct Case {
  std::string what;
  Shapes shapes;
  std::int64_t judged = 0;  // rows
  bool all = false;         // rows against the deterministic backend
};

ops::Limits limits_for(const RaggedBatch& batch) {
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = std::ssize(batch.context_lengths);
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = query_heads;
  limits.kv_heads = kv_heads;
  limits.hidden = 128;
  limits.topk_blocks = topk;
  return limits;
}

// 256 sequences of one context after another, a few inert, one as long as `longest`.
Shapes many_sequences(std::int64_t contexts, std::int64_t longest, std::int64_t queries) {
  Shapes shapes;
  for (std::int64_t s = 0; s < 256; ++s) {
    std::int64_t context = s % 50 == 7 ? 0 : queries + s * s * 7919 % contexts;
    if (s < 8) context = queries + 124 + s;  // about a block's end
    if (s == 200) context = longest;
    shapes.push_back({context, queries});
  }
  return shapes;
}

// Blocks for every token and KV head, ascending, the own one among them; early and late ones more often than others.
std::vector<std::int32_t> choose(const RaggedBatch& batch, Random& random) {
  std::vector<std::int32_t> all;
  std::vector<std::int32_t> ids;
  for (const std::int32_t position : batch.positions) {
    const int own = position / 128;
    for (int head = 0; head < kv_heads; ++head) {
      ids.assign(1, own);
      const auto wanted = static_cast<std::size_t>(std::min(topk, own + 1));
      while (ids.size() < wanted) {
        const auto any = static_cast<int>(random() % static_cast<unsigned>(own));
        const int block = random() % 4 == 0 ? any % 8 : random() % 4 == 0 ? own - 1 - any % 8 : any;
        if (block >= 0 && std::find(ids.begin(), ids.end(), block) == ids.end()) ids.push_back(block);
      }
      std::sort(ids.begin(), ids.end());
      ids.resize(topk, -1);
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  return all;
}

class Selection {
 public:
  Selection(Rig& rig, Rig& steady, Results& results, SeededPages& keys)
      : rig_(rig), steady_(steady), results_(results), keys_(keys), name_(dtype_name(keys.dtype())) {}

  void run(const Case& test) {
    Random random(11);
    const RaggedBatch batch = shared_batch(test.shapes, keys_.pages(), 9);
    const std::vector<float> q = integer_values(random, batch.tokens() * columns, 2);
    const std::vector<std::int32_t> actual = select(rig_, batch, q);
    const std::vector<std::int32_t> rows = sample_rows(batch.tokens(), test.judged, 3);
    const RaggedBatch some = rows_of(batch, rows);
    keys_.need(some);
    std::vector<float> some_q;
    for (const std::int32_t row : rows)
      some_q.insert(some_q.end(), &q[at(row, columns)], &q[at(row, columns)] + columns);
    Matrix input(DType::f32, some.tokens(), columns, some_q);
    ops::LayerPages pages;
    pages.index_k = keys_.host();
    std::vector<std::int32_t> expected(at(some.tokens(), ids_a_row), 77);
    judge(limits_for(some)).select_blocks(some.view(), args(), input.view(), pages, expected.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int32_t* row = &expected[at(static_cast<int>(i), ids_a_row)];
      wrong += std::equal(row, row + ids_a_row, &actual[at(rows[i], ids_a_row)]) ? 0 : 1;
    }
    results_.add_exact(
        "select_blocks", name_ + " long", wrong == 0,
        test.what + ": " + std::to_string(wrong) + " of " + std::to_string(rows.size()) + " rows differ");
    if (test.all) {
      results_.add_exact("select_blocks", name_ + " long", select(steady_, batch, q) == actual,
                         test.what + ": not all rows are the deterministic backend's");
    }
  }

  // All keys are equal: the first blocks and the own one.
  void run_tied(const Case& test) {
    Random random(12);
    const RaggedBatch batch = shared_batch(test.shapes, keys_.pages(), 9);
    const std::vector<float> q = integer_values(random, batch.tokens() * columns, 2);
    const std::vector<std::int32_t> actual = select(rig_, batch, q);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const auto slot = static_cast<std::int32_t>(i % topk);
      const std::int32_t own = batch.positions[i / ids_a_row] / 128;
      const std::int32_t expected = own < topk ? (slot <= own ? slot : -1) : slot < topk - 1 ? slot : own;
      wrong += actual[i] == expected ? 0 : 1;
    }
    results_.add_exact("select_blocks", name_ + " tied", wrong == 0,
                       test.what + ": " + std::to_string(wrong) + " ids differ");
  }

 private:
  static constexpr std::int64_t columns = kv_heads * 128, ids_a_row = kv_heads * topk;
  static std::size_t at(std::int64_t row, std::int64_t width) { return static_cast<std::size_t>(row * width); }
  static ops::SelectBlocks args() {
    ops::SelectBlocks select;
    select.index_heads = kv_heads;
    select.topk = topk;
    return select;
  }

  std::vector<std::int32_t> select(Rig& on, const RaggedBatch& batch, const std::vector<float>& q) {
    on.bind(limits_for(batch));
    DeviceMatrix input(on, DType::bf16, batch.tokens(), columns, q);
    ops::LayerPages pages;
    pages.index_k = keys_.device();
    const std::size_t count = at(batch.tokens(), ids_a_row);
    auto* ids = reinterpret_cast<std::int32_t*>(on.reserve(count * 4));
    on->select_blocks(on.place(batch), args(), input.view(), pages, ids);
    std::vector<std::int32_t> chosen = on.download(ids, count);
    on.clear(results_, "select_blocks");
    return chosen;
  }

  Rig& rig_;
  Rig& steady_;
  Results& results_;
  SeededPages& keys_;
  std::string name_;
};

class Attending {
 public:
  Attending(Rig& rig, Rig& steady, Results& results, SeededPages& k, SeededPages& v)
      : rig_(rig), steady_(steady), results_(results), k_(k), v_(v), name_(dtype_name(k.dtype())) {
    args_ = {query_heads, kv_heads, 0.08838834764831845f, 0, topk};
    if (k.dtype() == DType::f8_e4m3) k_scale_ = 0.5f, v_scale_ = 2;
  }

  void run(const Case& test, bool sparse) {
    Random random(7);
    const RaggedBatch batch = shared_batch(test.shapes, k_.pages(), 5);
    std::vector<std::int32_t> ids;
    if (sparse) ids = choose(batch, random);
    std::vector<std::int32_t> rows = sample_rows(batch.tokens(), test.judged, 3);
    std::erase_if(rows, [&](std::int32_t row) { return batch.context_lengths[sequence_of(batch, row)] == 0; });
    std::vector<float> q;
    const ResultRows::Values actual = attend(rig_, batch, sparse, ids, rows, &q);
    const RaggedBatch some = rows_of(batch, rows);
    Matrix input(DType::f32, some.tokens(), columns, q), expected(DType::f32, some.tokens(), columns);
    ops::LayerPages pages = scaled(k_.host(), v_.host());
    if (sparse) {
      std::vector<std::int32_t> some_ids, used;
      for (const std::int32_t row : rows) {
        for (int i = 0; i < kv_heads * topk; ++i) {
          const std::int32_t block = ids[static_cast<std::size_t>(row) * kv_heads * topk + static_cast<std::size_t>(i)];
          some_ids.push_back(block);
          if (block >= 0)
            used.push_back(batch.page_table[sequence_of(batch, row) * static_cast<std::size_t>(batch.stride) +
                                            static_cast<std::size_t>(block)]);
        }
      }
      k_.need(used), v_.need(used);
      judge(limits_for(some)).attend_sparse(some.view(), args_, input.view(), pages, some_ids.data(), expected.view());
    } else {
      k_.need(some), v_.need(some);
      judge(limits_for(some)).attend_dense(some.view(), args_, input.view(), pages, expected.view());
    }
    check(actual.some(rows), expected.values(), sparse, test.what);
    const bool inert =
        std::find(batch.context_lengths.begin(), batch.context_lengths.end(), 0) != batch.context_lengths.end();
    if (!inert) results_.add_exact(operation(sparse), name_ + " written", actual.all_numbers(), test.what);
    if (test.all) {
      const ResultRows::Values other = attend(steady_, batch, sparse, ids, {}, nullptr);
      // Twice what one of them may err by, which is 5e-3 of the norm.
      results_.add(operation(sparse), name_ + " all rows", worst_row(actual, other, 1e-2), "1e-2 of a row", test.what);
    }
  }

  // One token and a context that the judge could not take whole: one KV head, its query heads as tokens of one head.
  void run_one_head(std::int64_t context, int head) {
    const int group = query_heads / kv_heads;
    const RaggedBatch batch = shared_batch({{context, 1}}, k_.pages(), 5);
    std::vector<float> q;
    const ResultRows::Values actual = attend(rig_, batch, false, {}, std::vector<std::int32_t>{0}, &q);
    const RaggedBatch as_tokens = rows_of(batch, std::vector<std::int32_t>(static_cast<std::size_t>(group), 0));
    const auto first = q.begin() + std::ptrdiff_t{head} * group * 128;
    Matrix input(DType::f32, group, 128, std::vector<float>(first, first + group * 128));
    Matrix expected(DType::f32, group, 128);
    k_.need(as_tokens), v_.need(as_tokens);
    ops::LayerPages pages = scaled(k_.host(), v_.host());
    const std::int64_t skip = std::int64_t{head} * 128 * 128 * static_cast<std::int64_t>(dtype_size(k_.dtype()));
    pages.k.data += skip, pages.v.data += skip;
    ops::Limits limits = limits_for(as_tokens);
    limits.query_heads = limits.kv_heads = 1;
    ops::Attention args = args_;
    args.query_heads = args.kv_heads = 1;
    judge(limits).attend_dense(as_tokens.view(), args, input.view(), pages, expected.view());
    std::vector<float> ours;
    for (int i = 0; i < group * 128; ++i) ours.push_back(actual.at(0, std::int64_t{head} * group * 128 + i));
    const std::string what = "one token on " + std::to_string(context);
    check(ours, expected.values(), false, what);
    const ResultRows::Values other = attend(steady_, batch, false, {}, {}, nullptr);
    results_.add("attend_dense", name_ + " all rows", worst_row(actual, other, 1e-2), "1e-2 of a row", what);
  }

 private:
  static constexpr std::int64_t columns = query_heads * 128;
  static std::string operation(bool sparse) { return sparse ? "attend_sparse" : "attend_dense"; }
  static std::size_t sequence_of(const RaggedBatch& batch, std::int32_t row) {
    return static_cast<std::size_t>(batch.sequence_of_token[static_cast<std::size_t>(row)]);
  }

  ops::LayerPages scaled(const ops::PagePart& k, const ops::PagePart& v) const {
    ops::LayerPages pages;
    pages.k = k, pages.v = v, pages.k_scale = k_scale_, pages.v_scale = v_scale_;
    return pages;
  }

  void check(const std::vector<float>& actual, const std::vector<float>& expected, bool sparse,
             const std::string& what) {
    // As in attention_cases.cpp.
    results_.add(operation(sparse), name_ + " long", bf16_error(actual, expected, 0x1p-8 * v_scale_),
                 "2 steps of bf16 + 2^-8 (P in bf16)", what);
    results_.add(operation(sparse), name_ + " long norm", norm_error(actual, expected, 5e-3), "5e-3 of the norm", what);
  }

  ResultRows::Values attend(Rig& on, const RaggedBatch& batch, bool sparse, const std::vector<std::int32_t>& ids,
                            std::span<const std::int32_t> rows, std::vector<float>* q) {
    on.bind(limits_for(batch));
    const SeededRows input(on, batch.tokens(), columns, 21);
    ResultRows out(on, DType::bf16, batch.tokens(), columns);
    const ops::LayerPages pages = scaled(k_.device(), v_.device());
    if (sparse) {
      on->attend_sparse(on.place(batch), args_, input.view(), pages, on.place(ids), out.view());
    } else {
      on->attend_dense(on.place(batch), args_, input.view(), pages, out.view());
    }
    if (q != nullptr) *q = input.rows(rows);
    ResultRows::Values values = out.download();
    on.clear(results_, operation(sparse));
    return values;
  }

  Rig& rig_;
  Rig& steady_;
  Results& results_;
  SeededPages& k_;
  SeededPages& v_;
  std::string name_;
  ops::Attention args_;
  float k_scale_ = 1, v_scale_ = 1;
};

constexpr std::int64_t million = 1 << 20;

void test_selection(Rig& rig, Rig& steady, Results& results, bool quick) {
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    // 16384 elements a page: past 2^31.
    const std::int32_t pool = quick ? 60 : 140000;
    SeededPages keys(rig, cache, pool, 1, exact_fill(cache, 5, cache == DType::f8_e4m3));
    Selection selection(rig, steady, results, keys);
    std::vector<Case> cases = {{"one on 6000", {{6000, 1}}, 1, true}, {"a prompt", {{3000, 40}}, 5}};
    if (!quick) {
      cases = {{"one on 1M", {{million, 1}}, 1, true},
               {"two on 1M", {{million, 1}, {million - 77, 1}}, 2, true},
               {"a group of 4 on 1M", {{million - 2, 4}}, 4, true},
               {"a group of 16 on 1M", {{million, 16}}, 6, true},
               {"300 rows on 512K", {{million / 2, 300}}, 8, true},
               {"520 rows on 1M", {{million, 520}}, 6, true},
               {"8192 rows on 120K", {{131072, 8192}}, 24, true},
               {"256 sequences", many_sequences(16000, 131072, 1), 256, true},
               {"256 groups of 4", many_sequences(8000, 40000, 4), 256, true},
               {"256 chunks of 20", many_sequences(4000, 20000, 20), 128, true}};
    }
    for (const Case& test : cases) selection.run(test);
    results.add_exact("select_blocks", "canaries", keys.intact(), "the pool of keys");

    SeededPages equal(rig, cache, quick ? 60 : 10000, 1, equal_fill(cache));
    Selection tied(rig, steady, results, equal);
    if (quick) {
      tied.run_tied({"2300 and 5000", {{2300, 40}, {3000, 1}}});
      continue;
    }
    tied.run_tied({"one on 1M", {{million, 1}}});
    tied.run_tied({"a group of 8 on 1M", {{million, 8}}});
    tied.run_tied({"8192 rows on 120K", {{131072, 8192}}});
    tied.run_tied({"300 rows on 1M", {{million, 300}}});
    tied.run_tied({"a prompt from its beginning", {{4096, 4096}}});
    results.add_exact("select_blocks", "canaries", equal.intact(), "the pool of equal keys");
  }
}

void test_attending(Rig& rig, Rig& steady, Results& results, bool quick) {
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    // 65536 elements a page and part: past 2^31.
    const std::int32_t pool = quick ? 30 : 40000;
    SeededPages k(rig, cache, pool, kv_heads, random_fill(cache, 6)),
        v(rig, cache, pool, kv_heads, random_fill(cache, 7));
    Attending attending(rig, steady, results, k, v);
    std::vector<Case> sparse = {{"one on 3000", {{3000, 1}}, 1, true}, {"a prompt", {{2300, 17}}, 3}};
    std::vector<Case> dense = {{"a prompt", {{150, 17}}, 3}};
    if (!quick) {
      sparse = {{"one on 1M", {{million, 1}}, 1, true},
                {"two on 1M", {{million, 1}, {million - 77, 1}}, 2, true},
                {"a group of 16 on 1M", {{million, 16}}, 16, true},
                {"256 sequences", many_sequences(60000, million, 1), 256},
                {"256 groups of 4", many_sequences(8000, 300000, 4), 256},
                {"256 chunks of 20", many_sequences(4000, 20000, 20), 128},
                {"8192 rows on 120K", {{131072, 8192}}, 32, true},
                {"8192 rows on 1M", {{million, 8192}}, 32, true}};
      dense = {{"256 sequences", many_sequences(2000, 60000, 1), 256},
               {"8192 rows", {{8192, 8192}}, 16, true},
               {"2000 rows on 24K", {{24000, 2000}, {700, 700}}, 8, true}};
    }
    for (const Case& test : sparse) attending.run(test, true);
    for (const Case& test : dense) attending.run(test, false);
    attending.run_one_head(quick ? 300 : million - 5, 2);
    results.add_exact("attend_dense", "canaries", k.intact() && v.intact(), "the pools of K and V");
  }
}

}  // namespace

void test_long(Rig& rig, Results& results, const Options& options) {
  Rig steady(true);
  test_selection(rig, steady, results, options.quick);
  test_attending(rig, steady, results, options.quick);
}

}  // namespace m3::test::gpu
