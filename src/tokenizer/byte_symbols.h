// The GPT-2 byte symbols: byte-level vocabularies spell each byte as one printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace m3 {

// The character that stands for `byte`.
std::uint32_t byte_symbol(std::uint8_t byte);
// The bytes that a token's spelling stands for; empty where a character of it is no byte symbol. `spelling`
// is UTF-8.
std::optional<std::string> bytes_of_symbols(std::string_view spelling);

}  // namespace m3
