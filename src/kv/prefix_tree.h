// The prefix cache: whole 128-token blocks that some sequence has computed, kept for others that begin the same.
//
// A block is found by its ids and its parent block, so by everything before it, at the root by the salt, and by what
// else its content depends on (the pictures whose placeholders its ids are); a hash only narrows the search, all of it
// is always compared. K, V and index-K of a block are one page (spec §7.4). Blocks that
// a sequence holds stay; the others wait in order of last use and are given up, ends of chains first, when the pool
// needs a page. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "src/kv/page_pool.h"

namespace m3::kv {

class PrefixTree {
 private:
  struct Node;

 public:
  // A sequence's hold on the blocks that it shares with the tree. Must not outlive the tree.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { reset(); }
    std::int64_t blocks() const { return blocks_; }
    void reset();

   private:
    friend class PrefixTree;
    PrefixTree* tree_ = nullptr;
    Node* last_ = nullptr;  // null: at the root
    std::string salt_;
    std::int64_t blocks_ = 0;
  };

  // `model` names what decides a page's content (PageLayout::fingerprint). The hash keeps only the bits of
  // `hash_mask`: tests thin it, to see that nothing hangs on it.
  PrefixTree(PagePool& pool, std::string_view model, std::uint64_t hash_mask = ~std::uint64_t{0});
  ~PrefixTree() { clear(); }
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest known run of whole blocks at the start of `ids`, `max_blocks` at most; their pages become the start
  // of `pages`, which is empty. `block_salts`: of the first blocks, "" for those after them.
  Lease match(std::string_view salt, std::span<const std::int32_t> ids, std::int64_t max_blocks, SequencePages& pages,
              std::span<const std::string> block_salts = {});
  // A hold on the same blocks, for a fork.
  Lease share(const Lease& lease);
  // Block number lease.blocks() of the sequence is full and accepted: the tree keeps its page, or the sequence
  // changes to the page that the tree has for it. False when the lease is from before a clear(): nothing is kept.
  bool extend(Lease& lease, std::span<const std::int32_t> block_ids, SequencePages& pages,
              std::string_view block_salt = {});

  // Gives up the block that was used least recently. False: all are held.
  bool evict();
  // Forgets everything; pages that sequences hold become theirs alone.
  void clear();

  std::int32_t idle() const { return static_cast<std::int32_t>(idle_.size()); }  // blocks nobody holds
  std::int32_t size() const { return static_cast<std::int32_t>(idle_.size() + held_.size()); }

 private:
  struct Node {
    Node* parent = nullptr;
    std::uint64_t hash = 0;
    std::array<std::int32_t, 128> ids{};
    std::string salt;  // of a first block
    std::string block_salt;
    std::int32_t page = -1;
    std::int32_t holders = 0;
    bool forgotten = false;  // by clear(); goes with its last holder
    std::list<Node>::iterator self;
  };

  // What a block is found by.
  struct Key {
    const Node* parent = nullptr;
    std::string_view salt, block_salt;
    std::span<const std::int32_t> ids;
  };
  std::uint64_t hash_of(const Key& key) const;
  Node* find(std::uint64_t hash, const Key& key) const;
  void hold(Node& node);
  void let_go(Node* last);
  void unlist(const Node& node);

  PagePool& pool_;
  std::uint64_t root_hash_ = 0;
  std::uint64_t hash_mask_ = 0;
  std::list<Node> idle_;  // least recently used first; a block always stands before its parent
  std::list<Node> held_, forgotten_;
  std::unordered_multimap<std::uint64_t, Node*> index_;
};

}  // namespace m3::kv
