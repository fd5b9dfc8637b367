// UTF-8, defined for every byte string: a broken part counts as one U+FFFD for each maximal subpart
// (Unicode 3.9, "best practice"), which is what Python's errors="replace" and Rust's from_utf8_lossy give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace m3 {

constexpr std::uint32_t replacement_character = 0xFFFD;

struct Utf8Character {
  std::uint32_t code = replacement_character;
  std::uint8_t length = 0;  // bytes taken, at least 1
  bool valid = false;       // false: the bytes are a broken part
  bool truncated = false;   // broken only because the text ends here
};

// The character that begins at text[position]; position < text.size().
Utf8Character decode_utf8(std::string_view text, std::size_t position);
// The character that ends at text[end - 1], never looking before `begin`; begin < end. Of a broken part, its last byte.
Utf8Character decode_utf8_backwards(std::string_view text, std::size_t begin, std::size_t end);

// `code` is a Unicode scalar value.
void append_utf8(std::string& text, std::uint32_t code);

// Bytes at the end of the text that begin a character and could still become one: 0 … 3.
std::size_t incomplete_suffix(std::string_view text);

bool is_valid_utf8(std::string_view text);
// Appends `text` with every broken part as U+FFFD.
void append_valid_utf8(std::string& target, std::string_view text);
std::string to_valid_utf8(std::string_view text);

// The bytes between quotes on one line, readable and unambiguous: \n \r \t \" \\, other controls and broken parts as
// \xNN. Beyond about `most` bytes the rest is left out, as "...".
std::string in_quotes(std::string_view bytes, std::size_t most = 80);

// Text of a client for a line that people read: beyond `most` bytes the rest is left out, as "...", and no character
// is cut.
std::string shortened(std::string_view text, std::size_t most = 100);

}  // namespace m3
