// Where the own matchers cut, against the package's regex engine.
#include <fmt/format.h>

#include "src/tokenizer/known_patterns.h"
#include "src/tokenizer/pre_tokenizer.h"
#include "src/tokenizer/utf8.h"
#include "tests/tokenizer/stored_data.h"

namespace m3 {
namespace {

using testing::for_each_line;

constexpr std::uint32_t code_points = 0x110000 - 0x800;  // without surrogates

std::vector<std::size_t> lengths(KnownPattern pattern, std::string_view text) {
  std::vector<std::size_t> result;
  for_each_known_piece(pattern, text, [&](std::size_t begin, std::size_t end) { result.push_back(end - begin); });
  return result;
}

KnownPattern known(const nlohmann::json& line) {
  const KnownPattern pattern = recognise_pattern(line.at("pattern").get<std::string>());
  EXPECT_NE(pattern, KnownPattern::none) << line.at("pattern");
  return pattern;
}

TEST(Splits, RandomTextsAreCutAsByThePackage) {
  const std::size_t lines = for_each_line("splits.jsonl.xz", [](const nlohmann::json& line) {
    const auto text = line.at("text").get<std::string>();
    EXPECT_EQ(lengths(known(line), text), line.at("lengths").get<std::vector<std::size_t>>()) << line.dump();
  });
  EXPECT_GE(lines, 12000U);
}

// Bit i: a piece begins at the i-th character.
std::uint32_t signature(KnownPattern pattern, std::string_view text) {
  std::uint32_t bits = 0;
  for_each_known_piece(pattern, text, [&](std::size_t begin, std::size_t) {
    unsigned character = 0;
    for (std::size_t at = 0; at < begin; at += decode_utf8(text, at).length) ++character;
    bits |= 1U << character;
  });
  return bits;
}

TEST(Splits, EveryCodePointIsCutAsByThePackage) {
  const std::size_t lines = for_each_line("code-points.jsonl.xz", [](const nlohmann::json& line) {
    const KnownPattern pattern = known(line);
    const auto context = line.at("context").get<std::string>();
    std::uint32_t code = 0;
    std::uint32_t seen = 0;
    std::uint32_t different = 0;
    std::string text;
    for (const auto& run : line.at("runs")) {
      const auto expected = run.at(0).get<std::uint32_t>();
      for (auto left = run.at(1).get<std::uint32_t>(); left > 0; --left, ++code, ++seen) {
        if (code == 0xD800) code = 0xE000;
        text.clear();
        for (const char letter : context) {
          if (letter == '@') {
            append_utf8(text, code);
          } else {
            text.push_back(letter);
          }
        }
        if (signature(pattern, text) == expected) continue;
        if (++different < 10) ADD_FAILURE() << fmt::format("U+{:04X} in {}", code, line.at("context").dump());
      }
    }
    EXPECT_EQ(seen, code_points);
    EXPECT_EQ(different, 0U) << line.at("context");
  });
  EXPECT_EQ(lines, 19U);
}

TEST(Splits, BrokenUtf8IsCutLikeReplacementCharacters) {
  const std::vector<std::string> broken = {"\xff",         "\x80",         "\xc3",     "\xe2\x82",
                                           "\xed\xa0\x80", "\xf0\x9f\x98", "\xc0\xaf", "\xf4\x90\x80\x80"};
  const std::vector<std::string> around = {"", "a", "A", " ", "1", "!", "\n", "é", "\xcc\x81", "中", "'s"};
  for (const KnownPattern pattern : {KnownPattern::o200k, KnownPattern::o200k_slash, KnownPattern::gpt2}) {
    for (const std::string& bytes : broken) {
      for (const std::string& before : around) {
        for (const std::string& after : around) {
          const std::string text = before + bytes + after + bytes;
          std::vector<std::size_t> expected;
          const std::string replaced = to_valid_utf8(text);
          std::size_t from = 0;
          for_each_known_piece(pattern, text, [&](std::size_t begin, std::size_t end) {
            expected.push_back(to_valid_utf8(text.substr(begin, end - begin)).size());
            EXPECT_EQ(begin, from);
            from = end;
          });
          EXPECT_EQ(from, text.size());
          EXPECT_EQ(lengths(pattern, replaced), expected) << nlohmann::json(replaced);
        }
      }
    }
  }
}

TEST(Splits, PatternsOutsideTheFamilyAreNotTakenForIt) {
  EXPECT_EQ(recognise_pattern(""), KnownPattern::none);
  EXPECT_EQ(recognise_pattern(R"(\p{N}{1,3})"), KnownPattern::none);
  EXPECT_EQ(recognise_pattern(R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"), KnownPattern::none);
}

TEST(Splits, OtherPatternsRunUnderPcre2WithBrokenUtf8) {
  const RegexPattern pattern(R"([a-z]+|\x{fffd})", "test");
  using Matches = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(pattern.matches("ab\xe2\x82z\xff!"), (Matches{{0, 2}, {2, 4}, {4, 5}, {5, 6}}));
  EXPECT_EQ(pattern.matches(""), Matches{});
  EXPECT_EQ(RegexPattern(R"(\s+|[\sx]y|\S\\s)", "test").matches("\u180e \u180ey xyz\\s"),
            (Matches{{3, 4}, {8, 9}, {9, 11}, {11, 14}}));
  EXPECT_EQ(RegexPattern("(?=b)", "test").matches("abb"), (Matches{{1, 1}, {2, 2}}));
}

}  // namespace
}  // namespace m3
