// Token ids, spellings and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace m3 {

class Vocabulary {
 public:
  // Room for `count` tokens.
  void reserve(std::size_t count);
  // Adds a token under a free id; false (and nothing changes) where the id or the spelling is taken.
  // `literal`: the spelling is the token's text itself (an added token). Otherwise it is written in byte
  // symbols, unless a character of it is none.
  bool add(std::uint32_t id, std::string_view content, bool literal);
  // Turns an ordinary token into a literal one.
  void make_literal(std::uint32_t id);

  // −1 where there is none.
  std::int32_t id_of(std::string_view content) const;
  bool has(std::int64_t id) const;
  // One more than the highest id.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  // The two need has(id).
  std::string_view content(std::uint32_t id) const;
  std::string_view bytes(std::uint32_t id) const;

 private:
  struct Span {
    std::uint32_t offset = 0;
    std::uint32_t length = std::numeric_limits<std::uint32_t>::max();  // no token
  };
  struct Token {
    Span content;
    Span bytes;
  };
  // A spelling's hash beside its id, so that few spellings are compared and none is hashed again.
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t id = free_slot;
  };
  static constexpr std::uint32_t free_slot = std::numeric_limits<std::uint32_t>::max();

  Span store(std::string_view text);
  std::size_t slot_of(std::string_view content, std::uint32_t hash) const;

  std::string pool_;           // below 4 GiB: a file has at most 256 MiB, its bytes no more
  std::vector<Token> tokens_;  // by id
  std::vector<Slot> slots_;    // at most half full
  std::size_t count_ = 0;
};

}  // namespace m3
