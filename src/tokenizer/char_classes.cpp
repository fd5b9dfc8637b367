#include "src/tokenizer/char_classes.h"

namespace m3 {

namespace {

#include "src/tokenizer/unicode_classes_table.inc"

constexpr unsigned word_bit = 8;

constexpr unsigned table_entry(std::uint32_t code) {
  constexpr std::uint32_t words_of_block = (1U << unicode_block_bits) / 16;
  const std::uint32_t offset = code & ((1U << unicode_block_bits) - 1);
  const std::uint64_t word =
      unicode_blocks[unicode_block_index[code >> unicode_block_bits] * words_of_block + offset / 16];
  return static_cast<unsigned>(word >> (offset % 16 * 4)) & 15U;
}

constexpr CharClass class_of(std::uint32_t code) { return static_cast<CharClass>(table_entry(code) & 7U); }

}  // namespace

constinit const std::array<CharClass, 128> ascii_classes = [] {
  std::array<CharClass, 128> classes{};
  for (std::uint32_t code = 0; code < 128; ++code) classes[code] = class_of(code);
  return classes;
}();

CharClass char_class(std::uint32_t code) { return class_of(code); }

bool is_word_character(std::uint32_t code) { return (table_entry(code) & word_bit) != 0; }

ClassedChar classed_multibyte(std::string_view text, std::size_t position) {
  const Utf8Character character = decode_utf8(text, position);
  return {class_of(character.code), character.length};
}

}  // namespace m3
