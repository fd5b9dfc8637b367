#include "src/kv/prefix_tree.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/base/error.h"

namespace m3::kv {

namespace {

constexpr std::int64_t block_tokens = 128;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace

PrefixTree::Lease::Lease(Lease&& other) noexcept
    : tree_(std::exchange(other.tree_, nullptr)),
      last_(std::exchange(other.last_, nullptr)),
      salt_(std::move(other.salt_)),
      blocks_(std::exchange(other.blocks_, 0)) {}

PrefixTree::Lease& PrefixTree::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  reset();
  tree_ = std::exchange(other.tree_, nullptr);
  last_ = std::exchange(other.last_, nullptr);
  salt_ = std::move(other.salt_);
  blocks_ = std::exchange(other.blocks_, 0);
  return *this;
}

void PrefixTree::Lease::reset() {
  if (tree_ != nullptr) tree_->let_go(last_);
  tree_ = nullptr;
  last_ = nullptr;
  blocks_ = 0;
}

PrefixTree::PrefixTree(PagePool& pool, std::string_view model, std::uint64_t hash_mask)
    : pool_(pool), hash_mask_(hash_mask) {
  for (const char c : model) root_hash_ = mix(root_hash_, static_cast<unsigned char>(c));
}

std::uint64_t PrefixTree::hash_of(const Key& key) const {
  std::uint64_t hash = key.parent != nullptr ? key.parent->hash : root_hash_;
  if (key.parent == nullptr) {
    for (const char c : key.salt) hash = mix(hash, static_cast<unsigned char>(c));
  }
  for (const char c : key.block_salt) hash = mix(hash, static_cast<unsigned char>(c));
  for (const std::int32_t id : key.ids) hash = mix(hash, static_cast<std::uint32_t>(id));
  return hash & hash_mask_;
}

PrefixTree::Node* PrefixTree::find(std::uint64_t hash, const Key& key) const {
  for (auto [at, end] = index_.equal_range(hash); at != end; ++at) {
    Node& node = *at->second;
    if (node.parent == key.parent && (key.parent != nullptr || node.salt == key.salt) &&
        node.block_salt == key.block_salt && std::ranges::equal(node.ids, key.ids)) {
      return &node;
    }
  }
  return nullptr;
}

void PrefixTree::hold(Node& node) {
  if (node.holders++ == 0) held_.splice(held_.end(), idle_, node.self);
}

// From the end of the chain to its start, so that a block comes to stand before its parent.
void PrefixTree::let_go(Node* last) {
  for (Node* node = last; node != nullptr;) {
    Node* parent = node->parent;
    if (--node->holders == 0) {
      if (node->forgotten) {
        forgotten_.erase(node->self);
      } else {
        idle_.splice(idle_.end(), held_, node->self);
      }
    }
    node = parent;
  }
}

PrefixTree::Lease PrefixTree::match(std::string_view salt, std::span<const std::int32_t> ids, std::int64_t max_blocks,
                                    SequencePages& pages, std::span<const std::string> block_salts) {
  Lease lease;
  lease.tree_ = this;
  lease.salt_ = salt;
  max_blocks = std::min(max_blocks, static_cast<std::int64_t>(ids.size()) / block_tokens);
  while (lease.blocks_ < max_blocks) {
    const auto block = ids.subspan(static_cast<std::size_t>(lease.blocks_ * block_tokens), block_tokens);
    const auto index = static_cast<std::size_t>(lease.blocks_);
    const Key key{lease.last_, salt, index < block_salts.size() ? block_salts[index] : std::string_view(), block};
    Node* node = find(hash_of(key), key);
    if (node == nullptr) break;
    hold(*node);
    lease.last_ = node;
    ++lease.blocks_;
    pages.share(node->page);
  }
  return lease;
}

PrefixTree::Lease PrefixTree::share(const Lease& lease) {
  Lease copy;
  copy.tree_ = this;
  copy.salt_ = lease.salt_;
  copy.last_ = lease.last_;
  copy.blocks_ = lease.blocks_;
  for (Node* node = lease.last_; node != nullptr; node = node->parent) ++node->holders;
  return copy;
}

bool PrefixTree::extend(Lease& lease, std::span<const std::int32_t> block_ids, SequencePages& pages,
                        std::string_view block_salt) {
  if (block_ids.size() != block_tokens) fail_internal("a block of {} tokens in the prefix cache", block_ids.size());
  if (lease.tree_ != this) fail_internal("a block for the prefix cache without a lease");
  if (lease.last_ != nullptr && lease.last_->forgotten) return false;
  const Key key{lease.last_, lease.salt_, block_salt, block_ids};
  const std::uint64_t hash = hash_of(key);
  Node* node = find(hash, key);
  if (node != nullptr) {
    hold(*node);
    pages.replace(lease.blocks_, node->page);
  } else {
    const auto self = held_.emplace(held_.end());
    node = &*self;
    node->parent = lease.last_;
    node->hash = hash;
    std::ranges::copy(block_ids, node->ids.begin());
    if (node->parent == nullptr) node->salt = lease.salt_;
    node->block_salt = block_salt;
    node->page = pages.pages()[static_cast<std::size_t>(lease.blocks_)];
    node->holders = 1;
    node->self = self;
    pool_.add_reference(node->page);
    index_.emplace(hash, node);
  }
  lease.last_ = node;
  ++lease.blocks_;
  return true;
}

void PrefixTree::unlist(const Node& node) {
  for (auto [at, end] = index_.equal_range(node.hash); at != end; ++at) {
    if (at->second == &node) {
      index_.erase(at);
      return;
    }
  }
}

bool PrefixTree::evict() {
  if (idle_.empty()) return false;
  const Node& node = idle_.front();
  unlist(node);
  pool_.release(node.page);
  idle_.pop_front();
  return true;
}

void PrefixTree::clear() {
  while (evict()) {}
  for (Node& node : held_) {
    node.forgotten = true;
    pool_.release(node.page);
  }
  forgotten_.splice(forgotten_.end(), held_);
  index_.clear();
}

}  // namespace m3::kv
