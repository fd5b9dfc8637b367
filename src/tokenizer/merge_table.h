// The merges of byte-pair encoding, by pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace m3 {

struct Merge {
  std::uint32_t left = 0;
  std::uint32_t right = 0;
  std::uint32_t result = 0;
};

// An open-addressing table of 8-byte entries, so that a look-up is one cache line: left id, right id and rank
// share one word, which bounds ids to 21 bits and ranks to 22 (M3: 200,064 ids, about 200,000 merges). At
// most half full.
class MergeTable {
 public:
  static constexpr std::uint32_t id_limit = (1U << 21) - 1;   // ids are below
  static constexpr std::size_t merge_limit = (1U << 22) - 1;  // at most so many merges
  static constexpr std::uint32_t no_rank = ~std::uint32_t{0};

  MergeTable() : MergeTable(std::span<const Merge>{}) {}
  // Rank = position in `merges`, whose ids are below id_limit and whose pairs are distinct (see
  // first_duplicate).
  explicit MergeTable(std::span<const Merge> merges);

  // The rank of merging the two, or no_rank.
  std::uint32_t rank(std::uint32_t left, std::uint32_t right) const {
    const std::uint64_t pair = (static_cast<std::uint64_t>(left) << 21) | right;
    for (std::size_t slot = home(pair);; slot = (slot + 1) & mask_) {
      const std::uint64_t entry = slots_[slot];
      if (entry >> 22 == pair) return static_cast<std::uint32_t>(entry & merge_limit);
      if (entry == empty) return no_rank;
    }
  }
  std::uint32_t result(std::uint32_t rank) const { return results_[rank]; }

  // The later and earlier position of a pair that stands twice, found while building.
  struct Duplicate {
    std::size_t later = 0;
    std::size_t earlier = 0;
  };
  const std::optional<Duplicate>& duplicate() const { return duplicate_; }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};

  std::size_t home(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15ULL) >> shift_);
  }

  std::vector<std::uint64_t> slots_;
  std::vector<std::uint32_t> results_;
  std::size_t mask_ = 0;
  unsigned shift_ = 0;
  std::optional<Duplicate> duplicate_;
};

}  // namespace m3
