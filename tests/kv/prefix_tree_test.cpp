// The prefix cache against a naive one: a map from whole prefixes to pages.
#include "src/kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "m3/error.h"

namespace m3::kv {
namespace {

PageLayout layout() { return make_page_layout({{.kv_heads = 1, .index_k = true}}, DType::bf16, DType::bf16, "m"); }

using Prefix = std::pair<std::string, std::vector<std::int32_t>>;  // salt, ids

struct Held {
  explicit Held(PagePool& pool) : pages(pool) {}
  SequencePages pages;
  PrefixTree::Lease lease;
  Prefix prefix;
};

std::vector<std::int32_t> blocks(const std::vector<std::int32_t>& values) {
  std::vector<std::int32_t> ids;
  for (const std::int32_t value : values) {
    ids.insert(ids.end(), 127, 7);
    ids.push_back(value);  // blocks differ in their last id only
  }
  return ids;
}

class Cache {
 public:
  Cache(std::int32_t size, std::uint64_t hash_mask) : pool(layout(), size), tree(pool, "m", hash_mask) {}

  // A sequence that takes what is known and computes the rest, as the engine does.
  std::unique_ptr<Held> begin(const std::string& salt, const std::vector<std::int32_t>& ids) {
    auto held = std::make_unique<Held>(pool);
    held->prefix = {salt, ids};
    const auto count = static_cast<std::int64_t>(ids.size()) / 128;
    held->lease = tree.match(salt, ids, count, held->pages);
    EXPECT_EQ(held->lease.blocks(), known_blocks(salt, ids));
    while (held->lease.blocks() < count) {
      while (pool.free_pages() == 0) {
        if (!evict()) return nullptr;
      }
      EXPECT_TRUE(held->pages.extend(128));
      const std::int64_t block = held->lease.blocks();
      const Prefix prefix = prefix_of(salt, ids, block + 1);
      const bool known = pages.contains(prefix);
      if (!known) pages[prefix] = held->pages.pages()[static_cast<std::size_t>(block)];
      EXPECT_TRUE(
          tree.extend(held->lease, std::span(ids).subspan(static_cast<std::size_t>(block * 128), 128), held->pages));
    }
    check_pages(*held);
    return held;
  }

  void end(std::unique_ptr<Held> held) {
    for (std::int64_t count = held->lease.blocks(); count > 0; --count)
      released[prefix_of(held->prefix.first, held->prefix.second, count)] = ++clock;
    held->lease.reset();
  }

  // Takes one block from the tree; it must be the one released longest ago, with none after it.
  bool evict() {
    std::map<Prefix, std::int32_t> before = pages;
    if (!tree.evict()) return false;
    std::erase_if(before, [&](const auto& entry) { return pool.references(entry.second) > 0; });
    EXPECT_EQ(before.size(), 1u);
    const Prefix gone = before.begin()->first;
    for (const auto& [prefix, page] : pages) {
      if (prefix == gone || pool.references(page) > 1) continue;
      EXPECT_LT(released[gone], released[prefix]);
    }
    pages.erase(gone);
    return true;
  }

  std::int64_t known_blocks(const std::string& salt, const std::vector<std::int32_t>& ids) const {
    std::int64_t count = 0;
    while ((count + 1) * 128 <= static_cast<std::int64_t>(ids.size()) &&
           pages.contains(prefix_of(salt, ids, count + 1)))
      ++count;
    return count;
  }

  void check_pages(const Held& held) const {
    for (std::int64_t block = 0; block < held.lease.blocks(); ++block) {
      EXPECT_EQ(held.pages.pages()[static_cast<std::size_t>(block)],
                pages.at(prefix_of(held.prefix.first, held.prefix.second, block + 1)));
    }
  }

  static Prefix prefix_of(const std::string& salt, const std::vector<std::int32_t>& ids, std::int64_t blocks) {
    return {salt, {ids.begin(), ids.begin() + blocks * 128}};
  }

  PagePool pool;
  PrefixTree tree;
  std::map<Prefix, std::int32_t> pages;
  std::map<Prefix, std::int64_t> released;
  std::int64_t clock = 0;
};

class PrefixTreeRandom : public testing::TestWithParam<std::uint64_t> {};

// Whatever the hash: with a mask of 0 all blocks collide.
TEST_P(PrefixTreeRandom, FindsExactlyWhatANaiveOneFinds) {
  std::mt19937 random(5);
  Cache cache(24, GetParam());
  std::vector<std::unique_ptr<Held>> held;
  const auto pick = [&](std::uint32_t count) { return random() % count; };
  for (int round = 0; round < 1500; ++round) {
    const std::uint32_t action = pick(10);
    if (action < 5 && held.size() < 5) {
      std::vector<std::int32_t> values(1 + pick(4));
      for (std::int32_t& value : values) value = static_cast<std::int32_t>(pick(3));
      if (auto begun = cache.begin(pick(3) == 0 ? "other" : "", blocks(values))) held.push_back(std::move(begun));
    } else if (action < 9 && !held.empty()) {
      const std::size_t index = pick(static_cast<std::uint32_t>(held.size()));
      std::swap(held[index], held.back());
      cache.end(std::move(held.back()));
      held.pop_back();
    } else if (action == 9) {
      cache.evict();
    }
    for (const auto& sequence : held) cache.check_pages(*sequence);
    ASSERT_EQ(static_cast<std::size_t>(cache.tree.size()), cache.pages.size());
  }
  for (auto& sequence : held) cache.end(std::move(sequence));
  EXPECT_EQ(static_cast<std::size_t>(cache.tree.idle()), cache.pages.size());
  while (cache.evict()) {}
  EXPECT_EQ(cache.pool.free_pages(), 24);
}

INSTANTIATE_TEST_SUITE_P(HashMasks, PrefixTreeRandom, testing::Values(~std::uint64_t{0}, 3u, 0u));

TEST(PrefixTree, SaltsDoNotMix) {
  Cache cache(8, ~std::uint64_t{0});
  const std::vector<std::int32_t> ids = blocks({1, 2});
  const auto one = cache.begin("a", ids);
  const auto two = cache.begin("b", ids);
  EXPECT_NE(one->pages.pages()[0], two->pages.pages()[0]);
  EXPECT_EQ(cache.begin("a", ids)->pages.pages()[1], one->pages.pages()[1]);
}

TEST(PrefixTree, TwoThatComputedTheSameShareOnePage) {
  Cache cache(8, ~std::uint64_t{0});
  const std::vector<std::int32_t> ids = blocks({1});
  Held first(cache.pool), second(cache.pool);
  first.lease = cache.tree.match("", ids, 1, first.pages);
  second.lease = cache.tree.match("", ids, 1, second.pages);
  ASSERT_TRUE(first.pages.extend(128) && second.pages.extend(128));
  EXPECT_TRUE(cache.tree.extend(first.lease, ids, first.pages));
  EXPECT_TRUE(cache.tree.extend(second.lease, ids, second.pages));
  EXPECT_EQ(first.pages.pages()[0], second.pages.pages()[0]);
  EXPECT_EQ(cache.pool.free_pages(), 7);
}

TEST(PrefixTree, ClearForgetsAndLeavesHeldPagesToTheirHolders) {
  Cache cache(8, ~std::uint64_t{0});
  const std::vector<std::int32_t> ids = blocks({1, 2});
  auto held = cache.begin("", ids);
  cache.end(cache.begin("", blocks({5})));
  cache.tree.clear();
  cache.pages.clear();
  EXPECT_EQ(cache.tree.size(), 0);
  EXPECT_EQ(cache.pool.free_pages(), 6);
  EXPECT_FALSE(cache.tree.extend(held->lease, std::span(ids).first(128), held->pages));
  SequencePages other(cache.pool);
  EXPECT_EQ(cache.tree.match("", ids, 2, other).blocks(), 0);
  held.reset();
  EXPECT_EQ(cache.pool.free_pages(), 8);
}

TEST(PrefixTree, AForksShareHoldsTheBlocks) {
  Cache cache(2, ~std::uint64_t{0});
  auto held = cache.begin("", blocks({1, 2}));
  SequencePages pages(cache.pool);
  SequencePages::Copy copy;
  ASSERT_TRUE(pages.fork(held->pages, copy));
  EXPECT_EQ(copy.to, -1);
  {
    const PrefixTree::Lease lease = cache.tree.share(held->lease);
    held.reset();
    EXPECT_FALSE(cache.tree.evict());
    pages.truncate(0);
  }
  EXPECT_TRUE(cache.tree.evict());
  EXPECT_TRUE(cache.tree.evict());
  EXPECT_EQ(cache.pool.free_pages(), 2);
}

TEST(SequencePages, AForkSharesFullPagesAndCopiesThePartialOne) {
  PagePool pool(layout(), 4);
  SequencePages first(pool), second(pool), third(pool), fourth(pool);
  ASSERT_TRUE(first.extend(130));
  SequencePages::Copy copy;
  ASSERT_TRUE(second.fork(first, copy));
  EXPECT_EQ(second.length(), 130);
  EXPECT_EQ(second.pages()[0], first.pages()[0]);
  EXPECT_EQ(copy.from, first.pages()[1]);
  EXPECT_EQ(copy.to, second.pages()[1]);
  EXPECT_NE(copy.to, copy.from);
  ASSERT_TRUE(third.fork(first, copy));
  EXPECT_FALSE(fourth.fork(first, copy));  // no page is left
  EXPECT_EQ(fourth.length(), 0);
  EXPECT_THROW(second.share(first.pages()[0]), Error);  // 130 is inside a page
}

// Placeholder ids are the same for every picture; what a block's content depends on besides its ids is compared too,
// even where every hash is equal.
TEST(PrefixTree, BlocksWithOtherPicturesAreOthers) {
  for (const std::uint64_t mask : {~std::uint64_t{0}, std::uint64_t{0}}) {
    Cache cache(8, mask);
    const std::vector<std::int32_t> ids = blocks({1, 2, 3});
    const auto begin = [&](const std::vector<std::string>& salts) {
      auto held = std::make_unique<Held>(cache.pool);
      held->lease = cache.tree.match("", ids, 3, held->pages, salts);
      const std::int64_t found = held->lease.blocks();
      EXPECT_TRUE(held->pages.extend((3 - found) * 128));
      for (std::int64_t block = found; block < 3; ++block) {
        const auto at = static_cast<std::size_t>(block);
        EXPECT_TRUE(cache.tree.extend(held->lease, std::span(ids).subspan(at * 128, 128), held->pages,
                                      at < salts.size() ? salts[at] : std::string()));
      }
      return found;
    };
    EXPECT_EQ(begin({"", "a"}), 0);
    EXPECT_EQ(begin({"", "a"}), 3);
    EXPECT_EQ(begin({"", "b"}), 1);  // the block before the picture is shared, the one after it is not
    EXPECT_EQ(begin({"", "b"}), 3);
    EXPECT_EQ(begin({}), 1);
    EXPECT_EQ(begin({"", "a", "c"}), 2);
  }
}

}  // namespace
}  // namespace m3::kv
