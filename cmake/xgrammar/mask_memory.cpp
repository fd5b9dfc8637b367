#include "cmake/xgrammar/mask_memory.h"

#include <algorithm>

namespace xgrammar {
namespace {

constexpr std::size_t entry_bytes = 128;  // of a table's entry, beside what it holds

std::size_t size_of(const MaskMemory::Key& key) { return key.size() * sizeof(key.front()) + entry_bytes; }

}  // namespace

std::size_t MaskMemory::Hash::operator()(const Key& key) const {
  std::uint64_t hash = key.size();
  for (const std::int32_t part : key) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return static_cast<std::size_t>(hash);
}

std::int64_t MaskMemory::epoch() {
  if (content_bytes_ > max_bytes_ / 4) {
    numbers_.clear();
    masks_.clear();
    used_.clear();
    mask_bytes_ = content_bytes_ = 0;
    ++epoch_;
  }
  return epoch_;
}

std::int32_t MaskMemory::number_of(const Key& content) {
  const auto found = numbers_.find(content);
  if (found != numbers_.end()) return found->second;
  const auto number = static_cast<std::int32_t>(numbers_.size());
  numbers_.emplace(content, number);
  content_bytes_ += size_of(content);
  return number;
}

bool MaskMemory::recall(const Key& key, std::int32_t* mask, std::size_t words) {
  const auto found = masks_.find(key);
  if (found == masks_.end() || found->second->words.size() != words) return false;
  used_.splice(used_.begin(), used_, found->second);
  std::copy(found->second->words.begin(), found->second->words.end(), mask);
  return true;
}

void MaskMemory::remember(const Key& key, const std::int32_t* mask, std::size_t words) {
  const auto [entry, added] = masks_.try_emplace(key);
  if (!added) return;
  used_.push_front({&entry->first, std::vector<std::int32_t>(mask, mask + words)});
  entry->second = used_.begin();
  const auto bytes_of = [](const Mask& one) { return size_of(*one.key) + one.words.size() * sizeof(std::int32_t); };
  mask_bytes_ += bytes_of(used_.front());
  while (mask_bytes_ > max_bytes_ - max_bytes_ / 4) {
    mask_bytes_ -= bytes_of(used_.back());
    masks_.erase(masks_.find(*used_.back().key));
    used_.pop_back();
  }
}

}  // namespace xgrammar
