// select_blocks: exact sets on integer data, where every dot product is exact and ties abound.
#include <cmath>

#include "tests/gpu/rig.h"

namespace m3::test::gpu {

namespace {

struct Case {
  int heads = 4, topk = 16, init = 0, local = 1;
  DType cache = DType::bf16;
  std::vector<std::int32_t> dropped = {};
  std::int32_t first_page = 0;  // of the pool on the device
  int holes = 0;                // one in so many pages is not resident; 0: none
};

void run(Rig& rig, Results& results, const Case& shape, const std::vector<SequenceShape>& shapes, std::int32_t pool,
         unsigned seed, const std::string& what) {
  Random random(11);
  RaggedBatch batch(shapes, pool, seed);
  PageMemory keys(shape.cache, pool, 1);
  keys.fill_contexts(batch, random, true);
  const std::int64_t columns = std::int64_t{shape.heads} * 128;
  const std::vector<float> q = integer_values(random, batch.tokens() * columns, 2);
  // Index keys lie where this says; K and V, which are not looked at, on other pages.
  batch.index_page_table = batch.page_table;
  batch.page_table = RaggedBatch(shapes, pool, seed + 1).page_table;
  for (std::size_t s = 0; shape.holes > 0 && s < shapes.size(); ++s) {
    const std::int64_t own = (shapes[s].context - 1) / 128;
    for (std::int64_t block = 0; block < own; ++block) {
      std::int32_t& page =
          batch.index_page_table[s * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(block)];
      if (random() % static_cast<unsigned>(shape.holes) == 0) page = -1;
    }
  }
  ops::Limits limits;
  limits.tokens = batch.tokens();
  limits.sequences = static_cast<std::int64_t>(shapes.size());
  limits.context = std::int64_t{batch.stride} * 128;
  limits.kv_heads = shape.heads;
  limits.topk_blocks = shape.topk;
  ops::SelectBlocks select;
  select.index_heads = shape.heads;
  select.topk = shape.topk;
  select.init_blocks = shape.init;
  select.local_blocks = shape.local;
  select.dropped = shape.dropped;
  const auto count = static_cast<std::size_t>(batch.tokens()) * static_cast<std::size_t>(shape.heads * shape.topk);
  std::vector<std::int32_t> expected(count, 77);
  Matrix input(DType::f32, batch.tokens(), columns, q);
  ops::LayerPages pages;
  pages.index_k = keys.part();
  judge(limits).select_blocks(batch.view(), select, input.view(), pages, expected.data());

  rig.bind(limits);
  ops::LayerPages placed = pages;
  const std::int64_t skip = shape.first_page * pages.index_k.page_bytes;
  std::byte* memory = rig.reserve_raw(static_cast<std::size_t>(skip) + keys.bytes().size());
  rig->upload(memory + skip, keys.bytes());
  placed.index_k.data = memory;
  RaggedBatch moved = batch;
  for (std::int32_t& page : moved.index_page_table) page += page >= 0 ? shape.first_page : 0;
  DeviceMatrix input2(rig, DType::bf16, batch.tokens(), columns, q);
  std::byte* ids = rig.reserve(count * 4);
  rig->select_blocks(rig.place(moved), select, input2.view(), placed, reinterpret_cast<std::int32_t*>(ids));
  const std::vector<std::int32_t> actual = rig.download(reinterpret_cast<const std::int32_t*>(ids), count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += actual[i] != expected[i] ? 1 : 0;
  results.add_exact("select_blocks", std::string(dtype_name(shape.cache)), wrong == 0,
                    what + ": " + std::to_string(wrong) + " of " + std::to_string(count) + " ids differ");
  rig.clear(results, "select_blocks");
}

}  // namespace

void test_select(Rig& rig, Results& results, const Options& options) {
  const std::vector<SequenceShape> mixed = {{1, 1},    {127, 1},  {128, 2},   {129, 1},   {0, 3},   {2047, 1},
                                            {2048, 1}, {2049, 2}, {2700, 70}, {3000, 16}, {2176, 1}};
  const std::vector<SequenceShape> few = {{1, 1}, {0, 1}, {2048, 1}, {2049, 2}, {2700, 5}};
  for (const DType cache : {DType::bf16, DType::f8_e4m3}) {
    const auto with = [&](Case shape) {
      shape.cache = cache;
      return shape;
    };
    run(rig, results, with({}), options.quick ? few : mixed, 160, 9, "mixed");
    for (const int heads : {1, 2, 8})
      run(rig, results, with({.heads = heads}), few, 160, 9, std::to_string(heads) + " heads");
    run(rig, results, with({.topk = 3}), few, 160, 9, "top 3");
    run(rig, results, with({.topk = 1}), few, 160, 9, "top 1");
    run(rig, results, with({.heads = 2, .topk = 128}), {{20000, 1}, {2049, 2}}, 200, 9, "top 128");
    run(rig, results, with({.heads = 64}), {{2700, 2}, {1, 1}}, 160, 9, "64 heads");
    run(rig, results, with({.init = 2, .local = 3}), few, 160, 9, "init 2, local 3");
    run(rig, results, with({.heads = 2, .topk = 4, .init = 1, .local = 0}), few, 160, 9, "init 1, local 0");
    run(rig, results, with({.init = 1, .dropped = {0, 3, 4, 5, 20}}), few, 160, 9, "dropped");
    // More than one launch's constants would hold.
    std::vector<std::int32_t> most;
    for (int block = 0; block < 310; ++block) {
      if (block % 50 != 7) most.push_back(block);
    }
    run(rig, results, with({.dropped = most}), {{40000, 2}, {700, 1}}, 330, 9, "300 dropped");
    run(rig, results, with({.holes = 5}), {{9000, 2}, {128, 1}, {5000, 1}}, 160, 9, "pages not resident");
    const std::vector<SequenceShape> single = {{9000, 1}, {1, 1}, {0, 1}, {2048, 1}, {2049, 2}, {5000, 2}};
    run(rig, results, with({}), single, 160, 9, "decode");
    run(rig, results, with({.topk = 3}), single, 160, 9, "decode, top 3");
    run(rig, results, with({.init = 2, .local = 3}), single, 160, 9, "decode, init 2, local 3");
    run(rig, results, with({.heads = 8}), single, 160, 9, "decode, 8 heads");
    run(rig, results, with({}), {{9000, 4}, {129, 2}, {5000, 3}}, 160, 9, "decode, groups of 4");
    // A warp a row on Hopper, of up to 1024 scores.
    run(rig, results, with({}), {{70000, 3}}, 550, 9, "groups of 3 on 64K");
    run(rig, results, with({}), {{70000, 2}}, 550, 9, "groups of 2 on 64K");
    // Several key blocks a block of threads on Hopper, of one sequence or two.
    run(rig, results, with({}), {{9000, 1}, {5000, 1}, {8192, 1}, {9000, 2}, {6000, 1}, {5000, 1}}, 340, 9,
        "decode, shared");
    const std::vector<SequenceShape> groups = {{9000, 16}, {128, 3}, {5000, 5}, {0, 2}, {129, 2}};
    run(rig, results, with({}), groups, 160, 9, "groups");
    run(rig, results, with({.heads = 1, .init = 1, .local = 2}), groups, 160, 9, "groups, 1 head");
    run(rig, results, with({.holes = 4}), groups, 160, 9, "groups, pages not resident");
    const std::vector<SequenceShape> prompts = {{2600, 100}, {5000, 40}, {130, 130}, {2304, 1}, {0, 3}};
    run(rig, results, with({}), prompts, 160, 4, "prompts");
    run(rig, results, with({.heads = 8, .topk = 5, .init = 1, .local = 2}), prompts, 160, 4, "prompts, 8 heads");
    run(rig, results, with({.heads = 16}), {{2600, 40}, {130, 130}}, 160, 4, "prompts, 16 heads");
    run(rig, results, with({.holes = 4}), prompts, 160, 4, "prompts, pages not resident");
    run(rig, results, with({.topk = 20}), prompts, 160, 4, "prompts, top 20");
    if (options.quick) continue;
    run(rig, results, with({}), {{2600, 500}, {5000, 300}, {130, 130}}, 120, 4, "prefill");
    run(rig, results, with({}), {{20000, 40}, {16384, 1}, {33000, 2}}, 700, 4, "long");
    run(rig, results, with({.holes = 3}), {{131072, 3}, {66000, 4}}, 1560, 4, "groups of 3 and 4 on 128K");
    run(rig, results, with({}), {{140000, 2}, {131073, 1}}, 2200, 4, "past 1024 blocks");
    run(rig, results, with({}), {{262145, 16}, {140000, 3}}, 3300, 4, "groups past 1024 blocks");
    run(rig, results, with({}), {{150000, 70}}, 1300, 4, "prompt past 1024 blocks");
    run(rig, results, with({}), std::vector<SequenceShape>(130, {2300, 1}), 2600, 8, "130 sequences");
    // Pages past 2^31 elements: 16384 a page.
    run(rig, results, with({.first_page = 140000}), few, 160, 9, "offsets past 2^31");
  }
}

}  // namespace m3::test::gpu
