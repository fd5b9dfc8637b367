#include "src/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace m3 {

namespace {

// What may follow a lead byte: the number of continuation bytes and the range of the first of them (Unicode
// table 3-7); the others are 80 … BF.
struct Lead {
  std::uint8_t continuations;
  std::uint8_t first_low;
  std::uint8_t first_high;
};

Lead lead_of(unsigned char byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

unsigned char byte_at(std::string_view text, std::size_t position) {
  return static_cast<unsigned char>(text[position]);
}

// The length of the longest prefix without a byte above 7F, in steps of 8.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t position = 0;
  for (; position + 8 <= text.size(); position += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + position, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  return position;
}

}  // namespace

Utf8Character decode_utf8(std::string_view text, std::size_t position) {
  const unsigned char first = byte_at(text, position);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.continuations == 0) return {replacement_character, 1, false, false};
  std::uint32_t code = first & (0x3FU >> lead.continuations);
  for (std::uint8_t i = 1; i <= lead.continuations; ++i) {
    if (position + i >= text.size()) return {replacement_character, i, false, true};
    const unsigned char byte = byte_at(text, position + i);
    const unsigned char low = i == 1 ? lead.first_low : 0x80;
    const unsigned char high = i == 1 ? lead.first_high : 0xBF;
    if (byte < low || byte > high) return {replacement_character, i, false, false};
    code = (code << 6) | (byte & 0x3FU);
  }
  return {code, static_cast<std::uint8_t>(lead.continuations + 1), true, false};
}

Utf8Character decode_utf8_backwards(std::string_view text, std::size_t begin, std::size_t end) {
  const std::string_view before = text.substr(0, end);
  for (std::size_t length = 1; length <= 4 && end - begin >= length; ++length) {
    const Utf8Character character = decode_utf8(before, end - length);
    if (character.valid && character.length == length) return character;
  }
  return {replacement_character, 1, false, false};
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto push = [&text](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return push(code);
  if (code < 0x800) {
    push(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    push(0xE0 | (code >> 12));
    push(0x80 | ((code >> 6) & 0x3F));
  } else {
    push(0xF0 | (code >> 18));
    push(0x80 | ((code >> 12) & 0x3F));
    push(0x80 | ((code >> 6) & 0x3F));
  }
  push(0x80 | (code & 0x3F));
}

std::size_t incomplete_suffix(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, text.size()); ++length) {
    const Utf8Character character = decode_utf8(text, text.size() - length);
    if (character.truncated && character.length == length) return length;
  }
  return 0;
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t position = ascii_prefix(text); position < text.size();) {
    const Utf8Character character = decode_utf8(text, position);
    if (!character.valid) return false;
    position += character.length;
  }
  return true;
}

void append_valid_utf8(std::string& target, std::string_view text) {
  std::size_t copied = 0;
  for (std::size_t position = ascii_prefix(text); position < text.size();) {
    const Utf8Character character = decode_utf8(text, position);
    if (!character.valid) {
      target.append(text.substr(copied, position - copied));
      append_utf8(target, replacement_character);
      copied = position + character.length;
    }
    position += character.length;
  }
  target.append(text.substr(copied));
}

std::string to_valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  append_valid_utf8(result, text);
  return result;
}

std::string in_quotes(std::string_view bytes, std::size_t most) {
  std::string shown = "\"";
  for (std::size_t at = 0; at < bytes.size();) {
    if (at >= most) return shown + "\"...";
    const Utf8Character character = decode_utf8(bytes, at);
    const std::string_view part = bytes.substr(at, character.length);
    at += character.length;
    const bool control = character.code < 0x20 || (character.code >= 0x7F && character.code < 0xA0);
    if (part == "\n") {
      shown += "\\n";
    } else if (part == "\r") {
      shown += "\\r";
    } else if (part == "\t") {
      shown += "\\t";
    } else if (part == "\"" || part == "\\") {
      shown.append("\\").append(part);
    } else if (character.valid && !control) {
      shown += part;
    } else {
      for (const char byte : part) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
  }
  return shown + '"';
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const std::string_view kept = text.substr(0, most);
  return std::string(kept.substr(0, kept.size() - incomplete_suffix(kept))) + "...";
}

}  // namespace m3
