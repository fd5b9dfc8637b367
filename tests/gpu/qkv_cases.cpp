// qkv_finish and copy_pages.
#include <cmath>
#include <cstring>

#include "src/ops/host/pages.h"
#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

// The largest difference of pages, as a share of what the stored type allows: two steps, for fp8 of its code.
double page_error(const std::vector<std::byte>& actual, const std::vector<std::byte>& expected, DType dtype) {
  if (actual.size() != expected.size()) return INFINITY;
  double worst = 0;
  const std::size_t size = dtype_size(dtype);
  for (std::size_t i = 0; i < actual.size(); i += size) {
    if (std::memcmp(&actual[i], &expected[i], size) == 0) continue;
    float a = 0, e = 0;
    if (dtype == DType::bf16) {
      bf16 half;
      std::memcpy(&half, &actual[i], 2), a = to_float(half);
      std::memcpy(&half, &expected[i], 2), e = to_float(half);
    } else {
      a = e4m3_to_float(static_cast<std::uint8_t>(actual[i]));
      e = e4m3_to_float(static_cast<std::uint8_t>(expected[i]));
    }
    const double step = dtype == DType::bf16 ? std::abs(e) * 0x1p-7 : std::abs(e) * 0x1p-3 + 0x1p-9;
    const double share = std::abs(a - e) / step;
    if (!(share <= worst)) worst = std::isnan(share) ? INFINITY : share;
  }
  return worst;
}

struct Finish {
  DType cache = DType::bf16;
  int rotary_dim = 64;
  bool indexer = true, norms = true;
  int query_heads = 8;
  std::int32_t first_page = 0, first_index_page = 0;  // of pools on the device that begin before the pages at hand
  float size = 1;                                     // a power of two, of what comes in
  float norm_size = 1;                                // of the norms' weights
  std::vector<SequenceShape> shapes = {{1, 1}, {5, 5}, {128, 1}, {129, 3}, {0, 2}, {700, 40}, {2049, 1}};
  std::string what = {};
};

void test_finish(Rig& rig, Results& results, const Finish& test) {
  Random random(1);
  const DType cache = test.cache;
  const int rotary_dim = test.rotary_dim;
  const bool indexer = test.indexer, norms = test.norms;
  const int query_heads = test.query_heads, kv_heads = 4, index_heads = indexer ? 4 : 0;
  const std::int64_t columns = (query_heads + 2 * kv_heads + index_heads + (indexer ? 1 : 0)) * 128;
  std::int32_t pool = 10;
  for (const SequenceShape& shape : test.shapes) pool += static_cast<std::int32_t>((shape.context + 127) / 128);
  RaggedBatch batch(test.shapes, pool, 5);
  // Index keys lie on other pages, and for one block nowhere.
  batch.index_page_table = RaggedBatch(test.shapes, pool, 6).page_table;
  if (test.shapes.size() > 3) batch.index_page_table[static_cast<std::size_t>(batch.stride) * 3 + 1] = -1;
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = std::ssize(test.shapes);
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = query_heads;
  limits.kv_heads = kv_heads;
  limits.hidden = columns;
  const std::vector<float> packed = normal_values(random, batch.tokens() * columns, 2 * test.size);
  std::vector<float> table = fp32_values(random, std::int64_t{batch.tokens()} * rotary_dim, 0.5f);
  std::vector<float> norm[4];
  for (auto& weight : norm) weight = fp32_values(random, 128, 0.3f * test.norm_size);
  ops::QkvFinish args;
  args.query_heads = query_heads;
  args.kv_heads = kv_heads;
  args.index_heads = index_heads;
  args.rotary_dim = rotary_dim;
  args.gemma = rotary_dim == 64;
  ops::QkvFinish placed_args = args;

  PageMemory k(cache, pool, kv_heads), v(cache, pool, kv_heads), index(cache, pool, 1);
  ops::LayerPages pages;
  pages.k = k.part(), pages.v = v.part();
  if (indexer) pages.index_k = index.part();
  if (cache == DType::f8_e4m3) pages.k_scale = 0.5f, pages.v_scale = 2;
  Matrix packed1(DType::f32, batch.tokens(), columns, packed), table1(DType::f32, batch.tokens(), rotary_dim, table);
  Matrix q1(DType::f32, batch.tokens(), query_heads * 128),
      iq1(DType::f32, batch.tokens(), std::max(index_heads, 1) * 128);
  q1.fill(NAN), iq1.fill(NAN);
  if (norms) args.q_norm = norm[0], args.k_norm = norm[1], args.index_q_norm = norm[2], args.index_k_norm = norm[3];

  rig.bind(limits);
  ops::LayerPages placed = pages;
  const auto move = [&](const PageMemory& memory, std::int32_t first_page, ops::PagePart& part) {
    const auto skip = static_cast<std::size_t>(first_page * part.page_bytes);
    part.data = rig.reserve_raw(skip + memory.bytes().size());
    rig->upload(part.data + skip, memory.bytes());
  };
  move(k, test.first_page, placed.k), move(v, test.first_page, placed.v);
  if (indexer) move(index, test.first_index_page, placed.index_k);
  const auto pages_there = [&](const ops::PagePart& part, std::int32_t first_page, const PageMemory& memory) {
    return rig.download(part.data + first_page * part.page_bytes, memory.bytes().size());
  };
  RaggedBatch moved = batch;
  for (std::int32_t& page : moved.page_table) page += page >= 0 ? test.first_page : 0;
  for (std::int32_t& page : moved.index_page_table) page += page >= 0 ? test.first_index_page : 0;
  if (norms) {
    placed_args.q_norm = rig.floats(norm[0]), placed_args.k_norm = rig.floats(norm[1]);
    placed_args.index_q_norm = rig.floats(norm[2]), placed_args.index_k_norm = rig.floats(norm[3]);
  }
  DeviceMatrix packed2(rig, DType::bf16, batch.tokens(), columns, packed);
  DeviceMatrix table2(rig, DType::f32, batch.tokens(), rotary_dim, table, 3);
  DeviceMatrix q2(rig, DType::bf16, batch.tokens(), query_heads * 128);
  DeviceMatrix iq2(rig, DType::bf16, batch.tokens(), std::max(index_heads, 1) * 128);
  rig->qkv_finish(rig.place(moved), placed_args, packed2.view(), table2.view(), placed, q2.view(), iq2.view());
  judge(limits).qkv_finish(batch.view(), args, packed1.view(), table1.view(), pages, q1.view(), iq1.view());

  const std::string name(dtype_name(cache));
  const std::string what =
      std::to_string(rotary_dim) + (indexer ? " indexer" : "") + (norms ? " norms" : "") + test.what;
  // Rotation subtracts products of up to about 10: fp32 leaves 2^-20 of that where they cancel.
  const double absolute = 1e-5 * std::max(1.0f, norms ? test.norm_size : test.size);
  results.add("qkv_finish", "q", bf16_error(q2.values(), q1.values(), absolute), "2 steps of bf16 + 1e-5", what);
  if (indexer) {
    results.add("qkv_finish", "index_q", bf16_error(iq2.values(), iq1.values(), absolute), "2 steps of bf16 + 1e-5",
                what);
    results.add("qkv_finish", "index-K " + name,
                page_error(pages_there(placed.index_k, test.first_index_page, index), index.bytes(), cache),
                "2 steps of the type", what);
  }
  results.add("qkv_finish", "K " + name, page_error(pages_there(placed.k, test.first_page, k), k.bytes(), cache),
              "2 steps of the type", what);
  results.add("qkv_finish", "V " + name, page_error(pages_there(placed.v, test.first_page, v), v.bytes(), cache),
              "2 steps of the type", what);
  rig.clear(results, "qkv_finish");
}

// `first_page`: of a pool on the device that begins before the pages at hand.
void test_copies(Rig& rig, Results& results, DType cache, std::int32_t first_page) {
  Random random(2);
  RaggedBatch batch({{1200, 1}}, 12, 4);
  PageMemory pages(cache, 12, 4);
  pages.fill_contexts(batch, random, false);
  ops::PagePart part = pages.part();
  rig.bind({});
  const auto skip = static_cast<std::size_t>(first_page * part.page_bytes);
  part.data = rig.reserve_raw(skip + pages.bytes().size());
  rig->upload(part.data + skip, pages.bytes());
  const std::vector<std::int32_t> from = {3, 1, 7}, to = {0, 11, 5};
  std::vector<std::int32_t> far_from = from, far_to = to;
  for (std::int32_t& page : far_from) page += first_page;
  for (std::int32_t& page : far_to) page += first_page;
  rig->copy_pages(part, far_from, far_to);
  judge({}).copy_pages(pages.part(), from, to);
  results.add_exact("copy_pages", std::string(dtype_name(cache)),
                    rig.download(part.data + skip, pages.bytes().size()) == pages.bytes(),
                    "from page " + std::to_string(first_page));
  rig.clear(results, "copy_pages");
}

}  // namespace

void test_qkv(Rig& rig, Results& results, const Options& options) {
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    test_finish(rig, results, {.cache = cache});
    test_finish(rig, results, {.cache = cache, .indexer = false});
    test_finish(rig, results, {.cache = cache, .rotary_dim = 128, .indexer = false, .norms = false});
    test_finish(rig, results, {.cache = cache, .rotary_dim = 48});
    // e4m3 saturates; bf16 must be finite still.
    test_finish(rig, results, {.cache = cache, .size = 0x1p10f, .norm_size = 1000, .what = ", large"});
    test_finish(rig, results, {.cache = cache, .rotary_dim = 48, .norm_size = 1000, .what = ", large norms"});
    test_finish(rig, results, {.cache = cache, .norms = false, .size = 0x1p100f, .what = ", huge"});
    test_finish(rig, results, {.cache = cache, .size = 0x1p-100f, .what = ", tiny"});
    test_copies(rig, results, cache, 0);
    if (options.quick) continue;
    // The model's own heads; 256 sequences; many tokens.
    std::vector<SequenceShape> many;
    for (std::int64_t s = 0; s < 256; ++s) many.push_back({s % 40 == 9 ? 0 : 1 + s * s * 31 % 900, 1});
    test_finish(rig, results, {.cache = cache, .query_heads = 64, .shapes = many, .what = ", 256 sequences"});
    test_finish(rig, results,
                {.cache = cache, .query_heads = 64, .shapes = {{1500, 1500}, {700, 90}}, .what = ", 64/4"});
    // 65536 elements a page of K or V, 16384 of index-K.
    test_finish(rig, results,
                {.cache = cache, .first_page = 40000, .first_index_page = 140000, .what = ", offsets past 2^31"});
    test_finish(rig, results,
                {.cache = cache,
                 .rotary_dim = 48,
                 .first_page = 40000,
                 .first_index_page = 140000,
                 .what = ", offsets past 2^31"});
    test_copies(rig, results, cache, 40000);
  }
}

}  // namespace m3::test::gpu
