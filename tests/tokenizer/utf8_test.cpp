#include "src/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "src/tokenizer/byte_symbols.h"
#include "src/tokenizer/char_classes.h"

namespace m3 {
namespace {

TEST(Utf8, EveryScalarValueGoesThereAndBack) {
  for (std::uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    const Utf8Character forward = decode_utf8(text, 0);
    const Utf8Character backward = decode_utf8_backwards(text, 0, text.size());
    ASSERT_TRUE(forward.valid && backward.valid) << code;
    ASSERT_EQ(forward.code, code);
    ASSERT_EQ(backward.code, code);
    ASSERT_EQ(forward.length, text.size());
  }
}

// What Python's bytes.decode("utf-8", "replace") gives.
TEST(Utf8, BrokenPartsBecomeOneReplacementForEachMaximalSubpart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(to_valid_utf8("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(to_valid_utf8("\x80\xBF"), r + r);
  EXPECT_EQ(to_valid_utf8("\xC0\xAF"), r + r);
  EXPECT_EQ(to_valid_utf8("\xE2\x82"), r);
  EXPECT_EQ(to_valid_utf8("\xE2\x82z"), r + "z");
  EXPECT_EQ(to_valid_utf8("\xE0\x80\x80"), r + r + r);
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "\xF0\x9F\x98\x80");
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(to_valid_utf8("\xF5\x80"), r + r);
  EXPECT_EQ(to_valid_utf8("12345678\xE2\x82 2345678"), "12345678" + r + " 2345678");
}

TEST(Utf8, OnlyWhatCanStillBecomeACharacterIsIncomplete) {
  EXPECT_EQ(incomplete_suffix(""), 0U);
  EXPECT_EQ(incomplete_suffix("abc"), 0U);
  EXPECT_EQ(incomplete_suffix("a\xC3"), 1U);
  EXPECT_EQ(incomplete_suffix("a\xE2\x82"), 2U);
  EXPECT_EQ(incomplete_suffix("a\xF0\x9F\x98"), 3U);
  EXPECT_EQ(incomplete_suffix("a\xF0\x9F\x98\x80"), 0U);
  EXPECT_EQ(incomplete_suffix("a\xE0\x80"), 0U);
  EXPECT_EQ(incomplete_suffix("a\xFF"), 0U);
  EXPECT_EQ(incomplete_suffix("\x80\x80"), 0U);
}

TEST(CharClasses, WhiteSpaceIsUnicodes) {
  std::size_t spaces = 0;
  for (std::uint32_t code = 0; code <= 0x10FFFF; ++code) spaces += is_space(char_class(code)) ? 1 : 0;
  EXPECT_EQ(spaces, 25U);
  EXPECT_TRUE(is_space(char_class(0x85)));
  EXPECT_FALSE(is_space(char_class(0x180E)));
  EXPECT_FALSE(is_space(char_class(0x200B)));
}

TEST(CharClasses, Unicode16LettersAreKnown) {
  EXPECT_EQ(char_class(0x10D50), CharClass::upper);   // Garay capital letter, new in 16.0
  EXPECT_EQ(char_class(0x1C8A), CharClass::lower);    // Cyrillic small letter tje, new in 16.0
  EXPECT_EQ(char_class(0x11BF0), CharClass::number);  // Sunuwar digit zero, new in 16.0
  EXPECT_TRUE(is_word_character('_'));
  EXPECT_TRUE(is_word_character(0x24B6));  // circled A: a symbol, yet alphabetic
  EXPECT_FALSE(is_word_character('-'));
}

TEST(ByteSymbols, EveryByteHasItsOwnSymbol) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string symbol;
    append_utf8(symbol, byte_symbol(static_cast<std::uint8_t>(byte)));
    EXPECT_EQ(bytes_of_symbols(symbol), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(byte_symbol(' '), 0x120U);
  EXPECT_EQ(bytes_of_symbols("\xC4\xA0the"), " the");
  EXPECT_EQ(bytes_of_symbols("a b"), std::nullopt);
}

}  // namespace
}  // namespace m3
