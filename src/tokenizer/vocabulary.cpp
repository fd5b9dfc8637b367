#include "src/tokenizer/vocabulary.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "src/tokenizer/byte_symbols.h"

namespace m3 {

bool Vocabulary::add(std::uint32_t id, std::string_view content, bool literal) {
  if (2 * (count_ + 1) > slots_.size()) grow();
  const std::size_t slot = slot_of(content);
  if (slots_[slot] != free_slot || has(id)) return false;
  if (id >= tokens_.size()) tokens_.resize(std::size_t{id} + 1);
  Token& token = tokens_[id];
  token.content = token.bytes = store(content);
  if (!literal) {
    const std::optional<std::string> bytes = bytes_of_symbols(content);
    if (bytes && *bytes != content) token.bytes = store(*bytes);
  }
  slots_[slot] = id;
  ++count_;
  return true;
}

void Vocabulary::make_literal(std::uint32_t id) { tokens_[id].bytes = tokens_[id].content; }

std::int32_t Vocabulary::id_of(std::string_view content) const {
  if (slots_.empty()) return -1;
  const std::uint32_t id = slots_[slot_of(content)];
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
  const Span span{pool_.size(), static_cast<std::uint32_t>(text.size())};
  pool_.append(text);
  return span;
}

// Where the spelling stands, or the free slot where it would.
std::size_t Vocabulary::slot_of(std::string_view content_wanted) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>()(content_wanted) & mask;
  while (slots_[slot] != free_slot && content(slots_[slot]) != content_wanted) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::grow() {
  const std::vector<std::uint32_t> old = std::exchange(
      slots_, std::vector<std::uint32_t>(std::max<std::size_t>(1024, 2 * slots_.size()), free_slot));
  for (const std::uint32_t id : old) {
    if (id != free_slot) slots_[slot_of(content(id))] = id;
  }
}

}  // namespace m3
