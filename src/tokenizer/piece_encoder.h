// Byte-pair encoding of one piece, with a cache of the pieces seen.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/tokenizer/merge_table.h"

namespace m3 {

// What the encoder needs of the vocabulary. Ids are below MergeTable::id_limit.
struct BpeModel {
  std::array<std::uint32_t, 256> byte_ids{};
  MergeTable merges;
  // Rank of two neighbouring bytes: half of all look-ups, and here without hashing.
  std::vector<std::uint32_t> byte_pair_ranks;

  // From the merges the table was built of.
  void index_byte_pairs(std::span<const Merge> of_merges);
};

// Scratch memory and cache of one thread of encoding; reads the model, which outlives it.
class PieceEncoder {
 public:
  explicit PieceEncoder(const BpeModel& model);

  // Appends the ids of a non-empty piece of fewer than 2³² bytes: the pair of lowest rank is merged first,
  // the leftmost of equals, until none is left. O(n log n).
  void encode(std::string_view piece, std::vector<std::int32_t>& ids);

  // Without the cache.
  void merge(std::string_view piece, std::vector<std::int32_t>& ids);

 private:
  // One cache line. Longer pieces, or pieces of more tokens, repeat too rarely to be kept.
  static constexpr std::size_t key_bytes = 32;
  static constexpr std::size_t key_ids = 7;
  struct alignas(64) Entry {
    std::array<std::uint64_t, key_bytes / 8> key{};
    std::array<std::int32_t, key_ids> ids{};
    std::uint16_t length = 0;  // of the piece in bytes; 0 = free
    std::uint16_t count = 0;
  };
  static constexpr std::size_t entries = std::size_t{1} << 15;  // 2 MiB

  void merge_short(std::string_view piece, std::vector<std::int32_t>& ids);
  void merge_long(std::string_view piece, std::vector<std::int32_t>& ids);
  void release_scratch();

  const BpeModel& model_;
  std::vector<Entry> cache_;
  // Short pieces: symbols still there and the rank of each with its right neighbour.
  std::vector<std::uint32_t> symbols_;
  std::vector<std::uint32_t> ranks_;
  // Long pieces: a linked list over the same arrays, and a heap of (rank, position).
  std::vector<std::uint32_t> previous_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint64_t> heap_;
};

}  // namespace m3
