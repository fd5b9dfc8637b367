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

void test_finish(Rig& rig, Results& results, DType cache, int rotary_dim, bool indexer, bool norms) {
  Random random(1);
  const int query_heads = 8, kv_heads = 4, index_heads = indexer ? 4 : 0;
  const std::int64_t columns = (query_heads + 2 * kv_heads + index_heads + (indexer ? 1 : 0)) * 128;
  RaggedBatch batch({{1, 1}, {5, 5}, {128, 1}, {129, 3}, {0, 2}, {700, 40}, {2049, 1}}, 40, 5);
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = 16;
  limits.context = std::int64_t{batch.stride} * 128;
  limits.query_heads = query_heads;
  limits.kv_heads = kv_heads;
  limits.hidden = columns;
  const std::vector<float> packed = normal_values(random, batch.tokens() * columns, 2);
  std::vector<float> table = fp32_values(random, std::int64_t{batch.tokens()} * rotary_dim, 0.5f);
  std::vector<float> norm[4];
  for (auto& weight : norm) weight = fp32_values(random, 128, 0.3f);
  ops::QkvFinish args;
  args.query_heads = query_heads;
  args.kv_heads = kv_heads;
  args.index_heads = index_heads;
  args.rotary_dim = rotary_dim;
  args.gemma = rotary_dim == 64;
  ops::QkvFinish placed_args = args;

  PageMemory k(cache, 40, kv_heads), v(cache, 40, kv_heads), index(cache, 40, 1);
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
  placed.k.data = rig.place(k.bytes());
  placed.v.data = rig.place(v.bytes());
  if (indexer) placed.index_k.data = rig.place(index.bytes());
  if (norms) {
    placed_args.q_norm = rig.floats(norm[0]), placed_args.k_norm = rig.floats(norm[1]);
    placed_args.index_q_norm = rig.floats(norm[2]), placed_args.index_k_norm = rig.floats(norm[3]);
  }
  DeviceMatrix packed2(rig, DType::bf16, batch.tokens(), columns, packed);
  DeviceMatrix table2(rig, DType::f32, batch.tokens(), rotary_dim, table, 3);
  DeviceMatrix q2(rig, DType::bf16, batch.tokens(), query_heads * 128);
  DeviceMatrix iq2(rig, DType::bf16, batch.tokens(), std::max(index_heads, 1) * 128);
  rig->qkv_finish(rig.place(batch), placed_args, packed2.view(), table2.view(), placed, q2.view(), iq2.view());
  judge(limits).qkv_finish(batch.view(), args, packed1.view(), table1.view(), pages, q1.view(), iq1.view());

  const std::string name(dtype_name(cache));
  const std::string what = std::to_string(rotary_dim) + (indexer ? " indexer" : "") + (norms ? " norms" : "");
  // Rotation subtracts products of up to about 10: fp32 leaves 2^-20 of that where they cancel.
  results.add("qkv_finish", "q", bf16_error(q2.values(), q1.values(), 1e-5), "2 steps of bf16 + 1e-5", what);
  if (indexer) {
    results.add("qkv_finish", "index_q", bf16_error(iq2.values(), iq1.values(), 1e-5), "2 steps of bf16 + 1e-5", what);
    results.add("qkv_finish", "index-K " + name,
                page_error(rig.download(placed.index_k.data, index.bytes().size()), index.bytes(), cache),
                "2 steps of the type", what);
  }
  results.add("qkv_finish", "K " + name, page_error(rig.download(placed.k.data, k.bytes().size()), k.bytes(), cache),
              "2 steps of the type", what);
  results.add("qkv_finish", "V " + name, page_error(rig.download(placed.v.data, v.bytes().size()), v.bytes(), cache),
              "2 steps of the type", what);
  rig.clear(results, "qkv_finish");
}

void test_copies(Rig& rig, Results& results) {
  Random random(2);
  RaggedBatch batch({{1200, 1}}, 12, 4);
  PageMemory pages(DType::bf16, 12, 2);
  pages.fill_contexts(batch, random, false);
  ops::PagePart part = pages.part();
  rig.bind({});
  part.data = rig.place(pages.bytes());
  const std::vector<std::int32_t> from = {3, 1, 7}, to = {0, 11, 5};
  rig->copy_pages(part, from, to);
  judge({}).copy_pages(pages.part(), from, to);
  results.add_exact("copy_pages", "bf16", rig.download(part.data, pages.bytes().size()) == pages.bytes(), "");
  rig.clear(results, "copy_pages");
}

}  // namespace

void test_qkv(Rig& rig, Results& results, const Options&) {
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    test_finish(rig, results, cache, 64, true, true);
    test_finish(rig, results, cache, 64, false, true);
    test_finish(rig, results, cache, 128, false, false);
    test_finish(rig, results, cache, 48, true, true);
  }
  test_copies(rig, results);
}

}  // namespace m3::test::gpu
