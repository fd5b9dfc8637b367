#include "src/tokenizer/tokenizer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "m3/error.h"
#include "src/tokenizer/merge_table.h"
#include "tests/tokenizer/small_tokenizer.h"
#include "tests/tokenizer/stored_data.h"

namespace m3 {
namespace {

using ::testing::ElementsAre;
using testing::for_each_line;
using testing::o200k;
using testing::small_file;

using Ids = std::vector<std::int32_t>;

TEST(Tokenizer, TokensAreFoundByIdAndBySpelling) {
  const Tokenizer tokenizer = testing::parse(small_file());
  EXPECT_EQ(tokenizer.vocab_size(), 303);
  EXPECT_EQ(tokenizer.id_of("\u0120a"), 258);
  EXPECT_EQ(tokenizer.id_of("<think>"), 301);
  EXPECT_EQ(tokenizer.id_of("nothing"), -1);
  EXPECT_EQ(tokenizer.token_text(258), "\u0120a");
  EXPECT_EQ(tokenizer.token_bytes(258), " a");
  EXPECT_EQ(tokenizer.token_bytes(0xFF), "\xFF");
  EXPECT_EQ(tokenizer.token_bytes(301), "<think>");
  EXPECT_TRUE(tokenizer.has_token(302));
  EXPECT_FALSE(tokenizer.has_token(299));
  EXPECT_FALSE(tokenizer.has_token(303));
  EXPECT_FALSE(tokenizer.has_token(-1));
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_FALSE(tokenizer.is_special(5000));
  EXPECT_FALSE(tokenizer.is_special(-1));
}

TEST(Tokenizer, IdsWithoutATokenAreAnError) {
  const Tokenizer tokenizer = testing::parse(small_file());
  for (const std::int32_t id : {-1, 299, 303, 2'000'000'000}) {
    EXPECT_THROW(tokenizer.token_bytes(id), Error);
    EXPECT_THROW(tokenizer.token_text(id), Error);
    EXPECT_THROW(tokenizer.decode(Ids{id}), Error);
    EXPECT_THROW(IncrementalDecoder(tokenizer).push(id), Error);
  }
}

TEST(Tokenizer, AddedTokensMatchOnlyWhereAsked) {
  const Tokenizer tokenizer = testing::parse(small_file());
  const std::string text = "abc<think> a<s>";
  EXPECT_THAT(tokenizer.encode(text, {.parse_special = true}), ElementsAre(257, 301, 258, 300));
  const Ids plain = tokenizer.encode(text);
  for (const std::int32_t id : plain) EXPECT_LT(id, 300);
  EXPECT_EQ(tokenizer.decode(plain), text);
}

TEST(Tokenizer, AMessageCannotForgeAMarkerAcrossSegments) {
  const Tokenizer tokenizer = testing::parse(small_file());
  const auto encode = [&](std::vector<TextSegment> segments) { return tokenizer.encode(segments); };
  EXPECT_THAT(encode({{"<s>", true}, {"<s>", false}}), ElementsAre(300, '<', 's', '>'));
  EXPECT_THAT(encode({{"<s", true}, {">", false}}), ElementsAre('<', 's', '>'));
  EXPECT_THAT(encode({{"<s", false}, {">", true}}), ElementsAre('<', 's', '>'));
  EXPECT_THAT(encode({{"<s", true}, {">", true}}), ElementsAre(300));
  EXPECT_THAT(encode({{"<s", true}, {"", false}, {">", true}}), ElementsAre(300));
  EXPECT_THAT(encode({{"<", false}, {"<s>", true}, {">", false}}), ElementsAre('<', 300, '>'));
  EXPECT_THAT(encode({{"a", true}, {"bc", false}}), ElementsAre(257));
  EXPECT_THAT(encode({}), ElementsAre());
}

TEST(Tokenizer, SegmentsOfATemplateGiveTheIdsOfTheWholeText) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {"<|endoftext|>", "user\n", "Hello", " world", "\n", "'s", "12",
                                          "345",           "  ",     "é",     "中"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    std::vector<std::string> pieces(1 + random() % 8);
    std::vector<TextSegment> segments;
    for (std::string& piece : pieces) {
      const std::size_t part = random() % parts.size();
      piece = parts[part];
      text += piece;
      segments.push_back({piece, part < 2 || random() % 2 == 0});
    }
    EXPECT_EQ(o200k().encode(segments), o200k().encode(text, {.parse_special = true})) << text;
  }
}

TEST(Tokenizer, SkippedSpecialTokensAreOnlyThoseCalledSpecial) {
  const Tokenizer tokenizer = testing::parse(small_file());
  const Ids ids = {300, 257, 301, 302};
  EXPECT_EQ(tokenizer.decode(ids), "<s>abc<think><|a|>");
  EXPECT_EQ(tokenizer.decode(ids, true), "abc<think>");
}

TEST(Tokenizer, AnAddedTokenStandsForItsOwnText) {
  nlohmann::json file = small_file();
  file["added_tokens"].push_back({{"id", 303}, {"content", "é ü"}, {"special", false}});
  const Tokenizer tokenizer = testing::parse(file);
  EXPECT_THAT(tokenizer.encode("é ü", {.parse_special = true}), ElementsAre(303));
  EXPECT_EQ(tokenizer.decode(Ids{303}), "é ü");
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& byte : text) {
      byte = static_cast<char>(random() % 3 == 0 ? "aB '1\n\xC3\xA9"[random() % 8] : random() % 256);
    }
    const Ids ids = o200k().encode(text);
    EXPECT_EQ(o200k().decode_bytes(ids), text);
    EXPECT_EQ(o200k().decode(ids), to_valid_utf8(text));
  }
}

// The fast paths - cache, scanning, heap - against the definition, on pieces around the sizes where they change.
TEST(Tokenizer, MergingFollowsTheDefinition) {
  nlohmann::json file;
  for_each_line("variants.jsonl.xz", [&](const nlohmann::json& line) {
    if (line.at("name") == "prefix-only") file = line.at("tokenizer");
  });
  file["pre_tokenizer"]["add_prefix_space"] = false;  // a whole text is one piece
  const Tokenizer tokenizer = testing::parse(file);
  std::vector<Merge> merges;
  for (const auto& merge : file["model"]["merges"]) {
    const auto text =
        merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
    const std::size_t space = text.find(' ');
    const std::string left = text.substr(0, space);
    const std::string right = text.substr(space + 1);
    const auto id = [&](const std::string& token) { return static_cast<std::uint32_t>(tokenizer.id_of(token)); };
    merges.push_back({id(left), id(right), id(left + right)});
  }
  const MergeTable table(merges);
  std::mt19937 random(13);
  const std::vector<std::string> parts = {"the", " ",  "e", "in", "n",  "er", "a",
                                          "aa",  "st", "é", "и",  "人", "0",  "ing"};
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    const std::size_t wanted = round % 4 == 0 ? 150 + random() % 40 : random() % 60;
    while (text.size() < wanted) text += parts[random() % (round % 3 == 0 ? 3 : parts.size())];
    Ids symbols;
    for (const char byte : text) {
      std::string symbol;
      append_utf8(symbol, byte_symbol(static_cast<std::uint8_t>(byte)));
      symbols.push_back(tokenizer.id_of(symbol));
    }
    const Ids expected = testing::naive_bpe(table, symbols);
    EXPECT_EQ(tokenizer.encode(text), expected) << text;
    EXPECT_EQ(tokenizer.encode(text), expected) << "from the cache: " << text;
  }
}

TEST(Tokenizer, VeryLongPiecesAreEncoded) {
  for (const std::string unit : {"a", "ab", "\xE4\xBA\xBA", " ", "\n", "=", "\xFF", "x\xCC\x81"}) {
    std::string text;
    while (text.size() < 3'000'000) text += unit;
    EXPECT_EQ(o200k().decode_bytes(o200k().encode(text)), text) << nlohmann::json(to_valid_utf8(unit));
  }
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  std::vector<std::pair<std::string, Ids>> cases;
  for_each_line("o200k-cases.jsonl.xz", [&](const nlohmann::json& line) {
    if (line.contains("ids")) cases.emplace_back(line.at("text").get<std::string>(), line.at("ids").get<Ids>());
  });
  const Tokenizer& tokenizer = o200k();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (std::size_t i = first; i < cases.size(); i += 2) {
        if (tokenizer.encode(cases[i].first, {.parse_special = true}) != cases[i].second) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, LoadsAFileOrTheDirectoryThatHoldsIt) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "m3_tokenizer_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << small_file().dump();
  EXPECT_EQ(Tokenizer::load(folder).vocab_size(), 303);
  EXPECT_EQ(Tokenizer::load(folder / "tokenizer.json").vocab_size(), 303);
  std::filesystem::remove(folder / "tokenizer.json");
  EXPECT_THROW(Tokenizer::load(folder), Error);
  EXPECT_THROW(Tokenizer::load(folder / "none.json"), Error);
  std::filesystem::remove(folder);
}

TEST(IncrementalDecoder, HoldsBackHalfCharacters) {
  const Tokenizer tokenizer = testing::parse(small_file());
  IncrementalDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.push(0x80), "\U0001F600");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push('a'), "\uFFFDa");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(300), "\uFFFD<s>");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.push('b'), "b");
}

TEST(IncrementalDecoder, SkippedTokensDoNotBreakACharacter) {
  const Tokenizer tokenizer = testing::parse(small_file());
  IncrementalDecoder decoder(tokenizer, true);
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.push(300), "");
  EXPECT_EQ(decoder.push(0xA9), "é");
}

}  // namespace
}  // namespace m3
