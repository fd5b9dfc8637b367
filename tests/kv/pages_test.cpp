// Page layout against spec §7.4's numbers, and the life of pages.
#include <gtest/gtest.h>

#include <set>

#include "src/base/error.h"
#include "src/kv/page_layout.h"
#include "src/kv/page_pool.h"

namespace m3::kv {
namespace {

std::vector<LayerCache> m3_layers() {
  std::vector<LayerCache> layers(60, LayerCache{.kv_heads = 4, .index_k = true});
  for (int i = 0; i < 3; ++i) layers[static_cast<std::size_t>(i)].index_k = false;
  return layers;
}

TEST(PageLayout, BytesPerTokenAreTheSpecs) {
  EXPECT_EQ(make_page_layout(m3_layers(), DType::bf16, DType::bf16, "m").token_bytes(), 137472);
  EXPECT_EQ(make_page_layout(m3_layers(), DType::f8_e4m3, DType::bf16, "m").token_bytes() * 100, 7425 * 1024);
  EXPECT_EQ(make_page_layout(m3_layers(), DType::f8_e4m3, DType::f8_e4m3, "m").token_bytes() * 1000, 67125 * 1024);
}

TEST(PageLayout, FingerprintTellsDtypesAndModelsApart) {
  std::set<std::string> seen;
  for (const char* model : {"a", "b"}) {
    for (const DType kv : {DType::bf16, DType::f8_e4m3}) {
      for (const DType index : {DType::bf16, DType::f8_e4m3}) {
        seen.insert(make_page_layout(m3_layers(), kv, index, model).fingerprint);
      }
    }
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(PageLayout, PartsTileThePageWithoutHolesAndOnlySparseLayersHaveIndexK) {
  const PageLayout layout = make_page_layout(m3_layers(), DType::f8_e4m3, DType::bf16, "m");
  std::int64_t offset = 0;
  for (const Part& part : layout.parts) {
    EXPECT_EQ(part.offset, offset);
    offset += part.bytes;
  }
  EXPECT_EQ(offset, layout.page_bytes);
  EXPECT_EQ(layout.find(2, PartKind::index_k), nullptr);
  ASSERT_NE(layout.find(3, PartKind::index_k), nullptr);
  EXPECT_EQ(layout.find(3, PartKind::index_k)->bytes, 128 * 128 * 2);
  EXPECT_EQ(layout.find(3, PartKind::index_k)->shard_axis, -1);
  EXPECT_EQ(layout.find(3, PartKind::k)->shard_axis, 0);
}

TEST(PageLayout, RefusesOtherDtypes) {
  EXPECT_THROW(make_page_layout(m3_layers(), DType::i32, DType::bf16, "m"), Error);
}

PageLayout small_layout() {
  return make_page_layout({{.kv_heads = 2, .index_k = true}}, DType::bf16, DType::bf16, "m");
}

TEST(PagePool, PartsOfDifferentPagesDoNotOverlap) {
  PagePool pool(small_layout(), 3);
  const ops::LayerPages layer = pool.layer(0);
  EXPECT_EQ(layer.v.data - layer.k.data, 3 * layer.k.page_bytes);
  EXPECT_EQ(layer.index_k.data - layer.v.data, 3 * layer.v.page_bytes);
}

TEST(PagePool, ReferencesKeepAPageAndMisuseIsCaught) {
  PagePool pool(small_layout(), 2);
  const std::int32_t page = pool.allocate();
  pool.add_reference(page);
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_THROW(pool.release(page), Error);
  EXPECT_THROW(pool.add_reference(page), Error);
}

TEST(SequencePages, GrowsByPagesAndTruncatesBack) {
  PagePool pool(small_layout(), 4);
  SequencePages sequence(pool);
  ASSERT_TRUE(sequence.extend(128));
  EXPECT_EQ(sequence.pages().size(), 1u);
  ASSERT_TRUE(sequence.extend(1));
  EXPECT_EQ(sequence.pages().size(), 2u);
  EXPECT_FALSE(sequence.extend(384));
  EXPECT_EQ(sequence.length(), 129);
  EXPECT_EQ(pool.free_pages(), 2);
  sequence.truncate(128);
  EXPECT_EQ(sequence.pages().size(), 1u);
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_THROW(sequence.truncate(129), Error);
  SequencePages moved(std::move(sequence));
  EXPECT_EQ(moved.length(), 128);
  moved.truncate(0);
  EXPECT_EQ(pool.free_pages(), 4);
}

TEST(PagePool, ShuffleHandsOutEveryPageOnceInASeededOrder) {
  PagePool a(small_layout(), 64), b(small_layout(), 64);
  a.shuffle_free_pages(7);
  b.shuffle_free_pages(7);
  std::set<std::int32_t> seen;
  bool in_order = true;
  for (std::int32_t i = 0; i < 64; ++i) {
    const std::int32_t page = a.allocate();
    EXPECT_EQ(page, b.allocate());
    in_order = in_order && page == i;
    seen.insert(page);
  }
  EXPECT_EQ(seen.size(), 64u);
  EXPECT_FALSE(in_order);
  EXPECT_EQ(a.allocate(), -1);
}

TEST(PagePool, RefusesAbsurdSizes) {
  EXPECT_THROW(PagePool(small_layout(), 0), Error);
  PageLayout huge = small_layout();
  huge.page_bytes = std::int64_t{1} << 62;
  EXPECT_THROW(PagePool(huge, 1 << 30), Error);
}

}  // namespace
}  // namespace m3::kv
