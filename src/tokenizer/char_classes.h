// What tokenizer patterns of the o200k family can tell apart about a character, for Unicode 16.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "src/tokenizer/utf8.h"

namespace m3 {

enum class CharClass : std::uint8_t {
  other,    // none of the below: punctuation, symbols, controls, unassigned, and broken UTF-8 (as U+FFFD)
  upper,    // Lu, Lt
  lower,    // Ll
  letter,   // Lm, Lo
  mark,     // Mn, Mc, Me
  number,   // Nd, Nl, No
  space,    // White_Space except the next
  newline,  // CR, LF
};

// A set of classes, one bit each.
using ClassSet = std::uint8_t;
template <typename... Classes>
constexpr ClassSet class_set(Classes... classes) {
  return static_cast<ClassSet>((0U | ... | (1U << static_cast<unsigned>(classes))));
}

// `code` at most 10FFFF.
CharClass char_class(std::uint32_t code);
// \w as added tokens with single_word see it: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word_character(std::uint32_t code);
inline bool is_space(CharClass value) { return value == CharClass::space || value == CharClass::newline; }

// A character in a text, as a pattern sees it.
struct ClassedChar {
  CharClass value = CharClass::other;
  std::uint8_t length = 0;  // bytes; 0 at the end of the text
  bool in(ClassSet set) const { return length != 0 && ((set >> static_cast<unsigned>(value)) & 1U) != 0; }
};

extern const std::array<CharClass, 128> ascii_classes;

ClassedChar classed_multibyte(std::string_view text, std::size_t position);

// The character at `position`, which may be the end of the text.
inline ClassedChar classed_at(std::string_view text, std::size_t position) {
  if (position >= text.size()) return {};
  const auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) return {ascii_classes[byte], 1};
  return classed_multibyte(text, position);
}

}  // namespace m3
