// Id for id what the `tokenizers` package gives.
#include <gmock/gmock.h>

#include "src/tokenizer/tokenizer.h"
#include "tests/tokenizer/stored_data.h"

namespace m3 {
namespace {

using testing::for_each_line;
using testing::o200k;

using Ids = std::vector<std::int32_t>;

TEST(StoredCorpus, O200kIdsAndTextsEqualThePackage) {
  std::size_t encoded = 0;
  std::size_t decoded = 0;
  for_each_line("o200k-cases.jsonl.xz", [&](const nlohmann::json& line) {
    const auto text = line.at("text").get<std::string>();
    if (line.contains("decode")) {
      const auto ids = line.at("decode").get<Ids>();
      EXPECT_EQ(o200k().decode(ids, line.at("skip").get<bool>()), text) << line.dump();
      ++decoded;
      return;
    }
    const Ids ids = o200k().encode(text, {.parse_special = true});
    EXPECT_EQ(ids, line.at("ids").get<Ids>()) << line.at("text").dump();
    EXPECT_EQ(o200k().decode(ids), text);
    ++encoded;
  });
  EXPECT_GE(encoded, 2700U);
  EXPECT_EQ(decoded, 800U);
}

TEST(StoredCorpus, EveryAcceptedComponentEqualsThePackage) {
  std::size_t cases = 0;
  std::vector<std::string> names;
  for_each_line("variants.jsonl.xz", [&](const nlohmann::json& line) {
    const auto name = line.at("name").get<std::string>();
    names.push_back(name);
    const Tokenizer tokenizer = Tokenizer::parse(line.at("tokenizer").dump(), name);
    for (const auto& item : line.at("cases")) {
      const auto text = item.at(0).get<std::string>();
      EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), item.at(1).get<Ids>()) << name << ' ' << item.dump();
      ++cases;
    }
  });
  EXPECT_THAT(names, ::testing::ElementsAre("m3", "flags", "gpt2", "gpt2-prefix", "prefix-only", "splits",
                                            "unreachable", "ignore-merges"));
  EXPECT_GE(cases, 5000U);
}

TEST(StoredCorpus, IncrementalDecodingGivesTheSameText) {
  std::size_t held_back = 0;
  for_each_line("o200k-cases.jsonl.xz", [&](const nlohmann::json& line) {
    const bool skip = line.value("skip", false);
    const auto ids = line.at(line.contains("decode") ? "decode" : "ids").get<Ids>();
    IncrementalDecoder decoder(o200k(), skip);
    std::string text;
    for (const std::int32_t id : ids) {
      const std::string part = decoder.push(id);
      EXPECT_NO_THROW(nlohmann::json(part).dump()) << "not UTF-8 on its own";
      text += part;
    }
    const std::string rest = decoder.flush();
    held_back += rest.empty() ? 0 : 1;
    EXPECT_EQ(text + rest, line.at("text").get<std::string>());
    EXPECT_EQ(decoder.flush(), "");
  });
  EXPECT_GT(held_back, 20U);
}

}  // namespace
}  // namespace m3
