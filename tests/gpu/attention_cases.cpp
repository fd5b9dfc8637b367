// attend_dense and attend_sparse.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

struct Case {
  int query_heads = 8, kv_heads = 4;
  DType cache = DType::bf16;
  float k_scale = 1, v_scale = 1;
  int window = 0, topk = 16;
  std::int32_t first_page = 0;
  float spread = 1;    // of queries: large ones make one key take all
  bool holes = false;  // every third token goes without block 0
};

// Blocks for every token and KV head: the own one and a random choice of the others, ascending.
std::vector<std::int32_t> choose(const RaggedBatch& batch, const Case& shape, Random& random) {
  std::vector<std::int32_t> all;
  for (std::int32_t t = 0; t < batch.tokens(); ++t) {
    const int own = batch.positions[static_cast<std::size_t>(t)] / 128;
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<std::int32_t> ids;
      for (int block = 0; block < own; ++block) {
        if (shape.holes && block == 0 && t % 3 == 0) continue;
        if (own < shape.topk || random() % 2 == 0) ids.push_back(block);
      }
      while (static_cast<int>(ids.size()) > shape.topk - 1) {
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(random() % ids.size()));
      }
      ids.push_back(own);
      ids.resize(static_cast<std::size_t>(shape.topk), -1);
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  return all;
}

void run(Rig& rig, Results& results, const Case& shape, const std::vector<SequenceShape>& shapes, std::int32_t pool,
         bool sparse, const std::string& what) {
  Random random(7);
  const RaggedBatch batch(shapes, pool, 5);
  PageMemory k(shape.cache, pool, shape.kv_heads), v(shape.cache, pool, shape.kv_heads);
  const std::int64_t columns = std::int64_t{shape.query_heads} * 128;
  const std::vector<float> q = normal_values(random, batch.tokens() * columns, shape.spread);
  k.fill_contexts(batch, random, false, shape.k_scale);
  v.fill_contexts(batch, random, false, shape.v_scale);
  const std::vector<std::int32_t> block_ids = choose(batch, shape, random);
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = static_cast<std::int64_t>(shapes.size());
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = shape.query_heads;
  limits.kv_heads = shape.kv_heads;
  limits.hidden = 128;
  limits.topk_blocks = shape.topk;
  ops::Attention args;
  args.query_heads = shape.query_heads;
  args.kv_heads = shape.kv_heads;
  args.scale = 0.08838834764831845f;
  args.window = shape.window;
  args.topk = shape.topk;
  ops::LayerPages pages;
  pages.k = k.part(), pages.v = v.part();
  pages.k_scale = shape.k_scale, pages.v_scale = shape.v_scale;
  Matrix input(DType::f32, batch.tokens(), columns, q), expected(DType::f32, batch.tokens(), columns);
  expected.fill(NAN);
  ops::Backend& scalar = judge(limits);
  if (sparse) {
    scalar.attend_sparse(batch.view(), args, input.view(), pages, block_ids.data(), expected.view());
  } else {
    scalar.attend_dense(batch.view(), args, input.view(), pages, expected.view());
  }

  rig.bind(limits);
  ops::LayerPages placed = pages;
  const auto move = [&](const PageMemory& memory, ops::PagePart& part) {
    const auto skip = static_cast<std::size_t>(shape.first_page * part.page_bytes);
    part.data = rig.reserve_raw(skip + memory.bytes().size());
    rig->upload(part.data + skip, memory.bytes());
  };
  move(k, placed.k);
  move(v, placed.v);
  RaggedBatch moved = batch;
  for (std::int32_t& page : moved.page_table) page += page >= 0 ? shape.first_page : 0;
  DeviceMatrix input2(rig, DType::bf16, batch.tokens(), columns, q), out(rig, DType::bf16, batch.tokens(), columns);
  const ops::Batch view = rig.place(moved);
  if (sparse) {
    rig->attend_sparse(view, args, input2.view(), placed, rig.place(block_ids), out.view());
  } else {
    rig->attend_dense(view, args, input2.view(), placed, out.view());
  }
  // P is rounded to bf16 before the products with V: 2^-9 of Σ p·|v| at most, and |v| is about 1; of many independent
  // terms far less. Two steps of bf16 of the result, and that.
  const double absolute = 0x1p-8 * shape.v_scale;
  results.add(sparse ? "attend_sparse" : "attend_dense", std::string(dtype_name(shape.cache)),
              bf16_error(out.values(), expected.values(), absolute), "2 steps of bf16 + 2^-8 (P in bf16)", what);
  // Two roundings to bf16, of P and of the result, each 2^-9/√3 of the norm where errors are independent.
  results.add(sparse ? "attend_sparse" : "attend_dense", "norm", norm_error(out.values(), expected.values(), 5e-3),
              "5e-3 of the norm", what);
  rig.clear(results, sparse ? "attend_sparse" : "attend_dense");
}

// Each sequence alone gives the bits it has in the batch, and so does another order of pages: what --deterministic says.
void test_invariance(Rig& rig, Results& results, DType cache, bool sparse) {
  Random random(8);
  const std::vector<SequenceShape> shapes = {{2305, 3}, {1, 1}, {700, 40}, {2048, 1}, {129, 3}};
  Case shape;
  shape.query_heads = 64;
  shape.cache = cache;
  const RaggedBatch batch(shapes, 60, 5);
  PageMemory k(cache, 60, 4), v(cache, 60, 4);
  k.fill_contexts(batch, random, false);
  v.fill_contexts(batch, random, false);
  const std::vector<float> q = normal_values(random, batch.tokens() * 8192);
  const std::vector<std::int32_t> ids = choose(batch, shape, random);
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = 5;
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = 64, limits.kv_heads = 4, limits.hidden = 128, limits.topk_blocks = 16;
  ops::Attention args{64, 4, 0.08838834764831845f, 0, 16};
  rig.bind(limits);
  ops::LayerPages pages;
  pages.k = k.part(), pages.v = v.part();
  pages.k.data = rig.place(k.bytes()), pages.v.data = rig.place(v.bytes());
  const auto attend = [&](std::int32_t first, std::int32_t count) {
    RaggedBatch part({}, 1, 0);
    part.stride = batch.stride;
    std::vector<float> queries(q.begin() + std::int64_t{first} * 8192, q.begin() + std::int64_t{first + count} * 8192);
    std::vector<std::int32_t> chosen(ids.begin() + std::int64_t{first} * 64,
                                     ids.begin() + std::int64_t{first + count} * 64);
    part.context_lengths = batch.context_lengths;
    part.page_table = batch.page_table;
    part.query_begin = batch.query_begin;
    for (std::int32_t t = first; t < first + count; ++t) {
      part.positions.push_back(batch.positions[static_cast<std::size_t>(t)]);
      part.sequence_of_token.push_back(batch.sequence_of_token[static_cast<std::size_t>(t)]);
      part.token_ids.push_back(0);
    }
    DeviceMatrix input(rig, DType::bf16, count, 8192, queries), out(rig, DType::bf16, count, 8192);
    const ops::Batch view = rig.place(part);
    if (sparse) {
      rig->attend_sparse(view, args, input.view(), pages, rig.place(chosen), out.view());
    } else {
      rig->attend_dense(view, args, input.view(), pages, out.view());
    }
    return out.values();
  };
  const std::vector<float> all = attend(0, batch.tokens());
  for (const auto& [first, count] : {std::pair{0, 1}, {4, 40}, {10, 7}, {44, 4}}) {
    const std::vector<float> some = attend(first, count);
    results.add_exact(sparse ? "attend_sparse" : "attend_dense", "invariance",
                      std::equal(some.begin(), some.end(), all.begin() + std::int64_t{first} * 8192),
                      std::string(dtype_name(cache)) + " tokens " + std::to_string(first));
  }
  rig.clear(results, sparse ? "attend_sparse" : "attend_dense");
}

}  // namespace

void test_attention(Rig& rig, Results& results, const Options& options) {
  const std::vector<SequenceShape> mixed = {{1, 1},    {5, 5},   {128, 1},  {129, 3},  {0, 2},   {2048, 1},
                                            {2049, 2}, {700, 5}, {333, 20}, {300, 16}, {2305, 3}};
  const std::vector<SequenceShape> few = {{1, 1}, {129, 3}, {0, 1}, {2305, 2}};
  // Long enough for the kernels that share keys among tokens, beside single tokens and inert ones.
  const std::vector<SequenceShape> prompts = {{300, 300}, {5, 5}, {700, 90}, {1, 1}, {129, 3}, {0, 2}, {2305, 1}};
  const std::vector<SequenceShape> few_prompts = {{130, 60}, {5, 5}, {0, 1}, {300, 1}};
  Rig steady(true);
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    for (const bool sparse : {true, false}) {
      const auto with = [&](Case shape) {
        shape.cache = cache;
        if (cache == DType::f8_e4m3) shape.k_scale = 0.25f, shape.v_scale = 2;
        return shape;
      };
      run(rig, results, with({}), options.quick ? few : mixed, 96, sparse, "8/4");
      run(rig, results, with({.query_heads = 16, .kv_heads = 1}), options.quick ? few_prompts : prompts, 96, sparse,
          "16/1, prompts");
      run(rig, results, with({.query_heads = 32, .kv_heads = 2}), few, 96, sparse, "32/2, few");
      if (options.quick) continue;
      for (const auto& [query, kv] : {std::pair{64, 4}, {32, 2}, {8, 1}, {6, 2}, {20, 1}, {4, 4}}) {
        run(rig, results, with({.query_heads = query, .kv_heads = kv}), mixed, 96, sparse,
            std::to_string(query) + "/" + std::to_string(kv));
      }
      for (const auto& [query, kv, shapes] : {std::tuple{8, 4, &mixed}, {16, 1, &mixed}, {16, 1, &prompts}}) {
        const auto like = [&](Case shape) {
          shape.query_heads = query, shape.kv_heads = kv;
          return with(shape);
        };
        const std::string heads = std::to_string(query) + "/" + std::to_string(kv) + ", ";
        if (sparse) {
          run(rig, results, like({.topk = 3}), *shapes, 96, sparse, heads + "top 3");
          run(rig, results, like({.topk = 19}), *shapes, 96, sparse, heads + "top 19");
          run(rig, results, like({.holes = true}), *shapes, 96, sparse, heads + "holes");
        } else {
          for (const int window : {1, 128, 200}) {
            run(rig, results, like({.window = window}), *shapes, 96, sparse,
                heads + "window " + std::to_string(window));
          }
        }
        run(rig, results, like({.spread = 30}), *shapes, 96, sparse, heads + "sharp");
      }
      run(rig, results, with({.query_heads = 64}), {{2400, 100}, {40, 40}}, 96, sparse, "64/4, prompts");
      run(rig, results, with({.query_heads = 64}), {{9000, 16}}, 110, sparse, "64/4, a verify group");
      run(rig, results, with({.query_heads = 64}), {{9000, 2}, {4096, 1}}, 110, sparse, "long");
      // 65536 elements a page and part.
      for (const auto& [query, kv, shapes] : {std::tuple{8, 4, &few}, {64, 4, &few}, {64, 4, &few_prompts}}) {
        run(rig, results, with({.query_heads = query, .kv_heads = kv, .first_page = 40000}), *shapes, 96, sparse,
            std::to_string(query) + "/" + std::to_string(kv) + ", offsets past 2^31");
      }
      test_invariance(steady, results, cache, sparse);
    }
  }
}

}  // namespace m3::test::gpu
