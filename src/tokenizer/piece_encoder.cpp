#include "src/tokenizer/piece_encoder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <unordered_map>

namespace m3 {

namespace {

// Up to here scanning all ranks for the lowest beats keeping a heap (measured: equal near 200 bytes).
constexpr std::size_t short_piece = 160;
// Scratch memory for longer pieces (some 30 bytes a byte) is given back at once.
constexpr std::size_t kept_piece = std::size_t{1} << 16;

unsigned byte_of(std::string_view piece, std::size_t position) { return static_cast<unsigned char>(piece[position]); }

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

void BpeModel::index_byte_pairs(std::span<const Merge> of_merges) {
  std::unordered_map<std::uint32_t, std::size_t> byte_of_id;
  for (std::size_t byte = 0; byte < 256; ++byte) byte_of_id.emplace(byte_ids[byte], byte);
  byte_pair_ranks.assign(std::size_t{256} * 256, MergeTable::no_rank);
  for (std::size_t rank = 0; rank < of_merges.size(); ++rank) {
    const auto left = byte_of_id.find(of_merges[rank].left);
    const auto right = byte_of_id.find(of_merges[rank].right);
    if (left == byte_of_id.end() || right == byte_of_id.end()) continue;
    byte_pair_ranks[left->second * 256 + right->second] = static_cast<std::uint32_t>(rank);
  }
}

PieceEncoder::PieceEncoder(const BpeModel& model) : model_(model), cache_(entries) {}

void PieceEncoder::encode(std::string_view piece, std::vector<std::int32_t>& ids) {
  if (piece.size() > key_bytes) return merge(piece, ids);
  std::array<std::uint64_t, key_bytes / 8> key{};
  std::memcpy(key.data(), piece.data(), piece.size());
  const std::uint64_t hash = fold(key[0] ^ 0xA0761D6478BD642FULL, key[1] ^ (0xE7037ED1A0B428DBULL + piece.size())) ^
                             fold(key[2] ^ 0x8EBC6AF09C88C6E3ULL, key[3] ^ 0x589965CC75374CC3ULL);
  Entry& entry = cache_[hash & (entries - 1)];
  if (entry.length == piece.size() && entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  merge(piece, ids);
  const std::size_t count = ids.size() - before;
  if (count > key_ids) return;
  entry.key = key;
  entry.length = static_cast<std::uint16_t>(piece.size());
  entry.count = static_cast<std::uint16_t>(count);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
}

void PieceEncoder::merge(std::string_view piece, std::vector<std::int32_t>& ids) {
  const std::size_t count = piece.size();
  symbols_.resize(count);
  ranks_.resize(count);
  for (std::size_t i = 0; i < count; ++i) symbols_[i] = model_.byte_ids[byte_of(piece, i)];
  for (std::size_t i = 0; i + 1 < count; ++i) {
    ranks_[i] = model_.byte_pair_ranks[byte_of(piece, i) * 256 + byte_of(piece, i + 1)];
  }
  ranks_[count - 1] = MergeTable::no_rank;
  if (count <= short_piece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void PieceEncoder::merge_short(std::string_view piece, std::vector<std::int32_t>& ids) {
  std::size_t count = piece.size();
  std::uint32_t* symbols = symbols_.data();
  std::uint32_t* ranks = ranks_.data();
  while (true) {
    std::uint32_t lowest = MergeTable::no_rank;
    for (std::size_t i = 0; i < count; ++i) lowest = std::min(lowest, ranks[i]);
    if (lowest == MergeTable::no_rank) break;
    const auto at = static_cast<std::size_t>(std::find(ranks, ranks + count, lowest) - ranks);
    --count;
    const std::size_t moved = (count - at - 1) * sizeof(std::uint32_t);
    std::memmove(symbols + at + 1, symbols + at + 2, moved);
    std::memmove(ranks + at, ranks + at + 1, moved + sizeof(std::uint32_t));
    symbols[at] = model_.merges.result(lowest);
    ranks[at] = at + 1 < count ? model_.merges.rank(symbols[at], symbols[at + 1]) : MergeTable::no_rank;
    if (at > 0) ranks[at - 1] = model_.merges.rank(symbols[at - 1], symbols[at]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void PieceEncoder::release_scratch() {
  for (auto* scratch : {&symbols_, &ranks_, &previous_, &next_}) *scratch = {};
  heap_ = {};
}

void PieceEncoder::merge_long(std::string_view piece, std::vector<std::int32_t>& ids) {
  const auto count = static_cast<std::uint32_t>(piece.size());
  constexpr std::uint32_t none = ~std::uint32_t{0};
  previous_.resize(count);
  next_.resize(count);
  heap_.clear();
  const auto entry_of = [&](std::uint32_t position) {
    return (static_cast<std::uint64_t>(ranks_[position]) << 32) | position;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    previous_[i] = i - 1;  // none for the first
    next_[i] = i + 1 < count ? i + 1 : none;
    if (ranks_[i] != MergeTable::no_rank) heap_.push_back(entry_of(i));
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  const auto update = [&](std::uint32_t position) {
    const std::uint32_t right = next_[position];
    ranks_[position] = right == none ? MergeTable::no_rank : model_.merges.rank(symbols_[position], symbols_[right]);
    if (ranks_[position] == MergeTable::no_rank) return;
    heap_.push_back(entry_of(position));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto rank = static_cast<std::uint32_t>(heap_.back() >> 32);
    const auto position = static_cast<std::uint32_t>(heap_.back());
    heap_.pop_back();
    if (ranks_[position] != rank) continue;  // the pair there has changed since
    const std::uint32_t eaten = next_[position];
    symbols_[position] = model_.merges.result(rank);
    next_[position] = next_[eaten];
    ranks_[eaten] = MergeTable::no_rank;
    if (next_[eaten] != none) previous_[next_[eaten]] = position;
    update(position);
    if (previous_[position] != none) update(previous_[position]);
  }
  for (std::uint32_t i = 0; i != none; i = next_[i]) ids.push_back(static_cast<std::int32_t>(symbols_[i]));
  if (count > kept_piece) release_scratch();
}

}  // namespace m3
