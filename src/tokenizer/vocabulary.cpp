#include "src/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <utility>

#include "src/tokenizer/byte_symbols.h"

namespace m3 {

namespace {

std::uint32_t hash_of(std::string_view text) { return static_cast<std::uint32_t>(std::hash<std::string_view>()(text)); }

}  // namespace

bool Vocabulary::add(std::uint32_t id, std::string_view content, bool literal) {
  reserve(count_ + 1);
  const std::uint32_t hash = hash_of(content);
  Slot& slot = slots_[slot_of(content, hash)];
  if (slot.id != free_slot || has(id)) return false;
  if (id >= tokens_.size()) tokens_.resize(std::size_t{id} + 1);
  Token& token = tokens_[id];
  token.content = token.bytes = store(content);
  if (!literal) {
    const std::optional<std::string> bytes = bytes_of_symbols(content);
    if (bytes && *bytes != content) token.bytes = store(*bytes);
  }
  slot = {hash, id};
  ++count_;
  return true;
}

void Vocabulary::make_literal(std::uint32_t id) { tokens_[id].bytes = tokens_[id].content; }

std::int32_t Vocabulary::id_of(std::string_view content) const {
  if (slots_.empty()) return -1;
  const std::uint32_t id = slots_[slot_of(content, hash_of(content))].id;
  return id == free_slot ? -1 : static_cast<std::int32_t>(id);
}

bool Vocabulary::has(std::int64_t id) const {
  return id >= 0 && id < size() &&
         tokens_[static_cast<std::size_t>(id)].content.length != std::numeric_limits<std::uint32_t>::max();
}

std::string_view Vocabulary::content(std::uint32_t id) const {
  const Span span = tokens_[id].content;
  return std::string_view(pool_).substr(span.offset, span.length);
}

std::string_view Vocabulary::bytes(std::uint32_t id) const {
  const Span span = tokens_[id].bytes;
  return std::string_view(pool_).substr(span.offset, span.length);
}

Vocabulary::Span Vocabulary::store(std::string_view text) {
  const Span span{static_cast<std::uint32_t>(pool_.size()), static_cast<std::uint32_t>(text.size())};
  pool_.append(text);
  return span;
}

// Where the spelling stands, or the free slot where it would.
std::size_t Vocabulary::slot_of(std::string_view wanted, std::uint32_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].id != free_slot && (slots_[at].hash != hash || content(slots_[at].id) != wanted)) {
    at = (at + 1) & mask;
  }
  return at;
}

void Vocabulary::reserve(std::size_t count) {
  if (2 * count <= slots_.size()) return;
  const std::size_t mask = std::bit_ceil(std::max<std::size_t>(1024, 2 * count)) - 1;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(mask + 1));
  for (const Slot& slot : old) {
    if (slot.id == free_slot) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].id != free_slot) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

}  // namespace m3
