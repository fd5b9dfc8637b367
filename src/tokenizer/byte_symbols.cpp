#include "src/tokenizer/byte_symbols.h"

#include <array>

#include "src/tokenizer/utf8.h"

namespace m3 {

namespace {

// Printable Latin-1 bytes stand for themselves; the other 68, in order, for U+0100 … U+0143.
constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Symbols {
  std::array<std::uint32_t, 256> of_byte{};
  std::array<std::int16_t, 0x144> to_byte{};
};

constexpr Symbols symbols = [] {
  Symbols result;
  result.to_byte.fill(-1);
  std::uint32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::uint32_t code = stands_for_itself(byte) ? byte : next++;
    result.of_byte[byte] = code;
    result.to_byte[code] = static_cast<std::int16_t>(byte);
  }
  return result;
}();

}  // namespace

std::uint32_t byte_symbol(std::uint8_t byte) { return symbols.of_byte[byte]; }

std::optional<std::string> bytes_of_symbols(std::string_view spelling) {
  std::string bytes;
  for (std::size_t position = 0; position < spelling.size();) {
    const Utf8Character character = decode_utf8(spelling, position);
    if (character.code >= symbols.to_byte.size() || symbols.to_byte[character.code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(symbols.to_byte[character.code]));
    position += character.length;
  }
  return bytes;
}

}  // namespace m3
