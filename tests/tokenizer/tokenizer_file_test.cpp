// Every tokenizer.json that cannot be honoured is refused with one line that says what is wrong.
#include <gmock/gmock.h>

#include <functional>

#include "m3/error.h"
#include "tests/tokenizer/small_tokenizer.h"

namespace m3 {
namespace {

using ::testing::HasSubstr;
using testing::small_file;
using Json = nlohmann::json;

std::string error_of(std::string_view text) {
  try {
    Tokenizer::parse(text, "small.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "accepted";
}

std::string error_after(const std::function<void(Json&)>& change) {
  Json file = small_file();
  change(file);
  return error_of(file.dump());
}

// Replaces text in the file as written: for what a JSON library would not write.
std::string error_replacing(const std::string& from, const std::string& to) {
  std::string text = small_file().dump();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return error_of(text.replace(at, from.size(), to));
}

struct Case {
  std::string name;
  std::function<void(Json&)> change;
  std::string message;
};

class Refused : public ::testing::TestWithParam<Case> {};

TEST_P(Refused, WithOneLineThatNamesTheCause) {
  const std::string line = error_after(GetParam().change);
  EXPECT_THAT(line, HasSubstr("small.json: "));
  EXPECT_THAT(line, HasSubstr(GetParam().message));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_LT(line.size(), 300U);
}

const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "x+"}}}, {"behavior", "Isolated"}, {"invert", false}};
const Json byte_level = {{"type", "ByteLevel"}};

void set_splits(Json& file, const Json& steps) {
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Json with(Json object, const std::string& key, const Json& value) {
  object[key] = value;
  return object;
}

const std::vector<Case> cases = {
    {"UnknownTopKey", [](Json& f) { f["extra"] = 1; }, "the key \"extra\" is not known"},
    {"NoModel", [](Json& f) { f.erase("model"); }, "model: not an object"},
    {"Unigram",
     [](Json& f) {
       f["model"] = {{"type", "Unigram"}, {"vocab", Json::array()}};
     },
     "the model type \"Unigram\""},
    {"WordPiece", [](Json& f) { f["model"]["type"] = "WordPiece"; }, "the model type \"WordPiece\" is not implemented"},
    {"ModelKey", [](Json& f) { f["model"]["scores"] = 1; }, "the key \"scores\" is not known"},
    {"Dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }, "dropout \"0.1\" is not implemented"},
    {"ByteFallback", [](Json& f) { f["model"]["byte_fallback"] = true; }, "byte_fallback is not implemented"},
    {"Prefix", [](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix"},
    {"Suffix", [](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
    {"FuseUnkNotBool", [](Json& f) { f["model"]["fuse_unk"] = 3; }, "fuse_unk is not true or false"},
    {"VocabList", [](Json& f) { f["model"]["vocab"] = {"a"}; }, "vocab is not an object"},
    {"NoVocab", [](Json& f) { f["model"].erase("vocab"); }, "model.vocab is missing"},
    {"NoMerges", [](Json& f) { f["model"].erase("merges"); }, "model.merges is missing"},
    {"MergesObject",
     [](Json& f) {
       f["model"]["merges"] = {{"a", 1}};
     },
     "merges is not a list"},
    {"NegativeId", [](Json& f) { f["model"]["vocab"]["ab"] = -1; }, "the id of token \"ab\" is not an unsigned"},
    {"FloatId", [](Json& f) { f["model"]["vocab"]["ab"] = 1.5; }, "the id of token \"ab\" is not an unsigned"},
    {"StringId", [](Json& f) { f["model"]["vocab"]["ab"] = "1"; }, "the id of token \"ab\" is not an unsigned"},
    {"ObjectId",
     [](Json& f) {
       f["model"]["vocab"]["ab"] = Json::object({{"x", 1}});
     },
     "the id of token \"ab\""},
    {"HugeId", [](Json& f) { f["model"]["vocab"]["ab"] = 4'000'000'000U; }, "has the id 4000000000; the limit is"},
    {"SameId", [](Json& f) { f["model"]["vocab"]["ab"] = 257; }, "tokens \"ab\" and \"abc\" have the same id 257"},
    {"LineBreakInName", [](Json& f) { f["model"]["vocab"]["a\nb"] = 257; }, "\"a\\nb\""},
    {"NoByte", [](Json& f) { f["model"]["vocab"].erase("z"); }, "lacks \"z\", the token of the byte 122"},
    {"MergeOfNothing", [](Json& f) { f["model"]["merges"].push_back("q zz"); }, "merge 3 needs the token \"zz\""},
    {"MergeToNothing", [](Json& f) { f["model"]["merges"].push_back("q z"); }, "merge 3 needs the token \"qz\""},
    {"MergeOneWord", [](Json& f) { f["model"]["merges"].push_back("qz"); }, "merge 3 is not two tokens"},
    {"MergeThreeWords", [](Json& f) { f["model"]["merges"].push_back("q z a"); }, "merge 3 is not two tokens"},
    {"MergeEmptySide", [](Json& f) { f["model"]["merges"].push_back(" a"); }, "merge 3 has an empty side"},
    {"MergeTwice", [](Json& f) { f["model"]["merges"].push_back("a b"); }, "merge 3 repeats merge 0"},
    {"MergeTriple",
     [](Json& f) {
       f["model"]["merges"].push_back({"a", "b", "c"});
     },
     "merge 3 has 3 parts"},
    {"MergeNumber", [](Json& f) { f["model"]["merges"].push_back(7); }, "merge 3 is not made of strings"},
    {"MergePairNumber",
     [](Json& f) {
       f["model"]["merges"].push_back({"a", 7});
     },
     "merge 3 is not made of strings"},
    {"AddedNotList", [](Json& f) { f["added_tokens"] = "x"; }, "added_tokens is not a list"},
    {"AddedKey", [](Json& f) { f["added_tokens"][0]["colour"] = 1; }, "added_tokens[0]: the key \"colour\""},
    {"AddedEmpty", [](Json& f) { f["added_tokens"][1]["content"] = ""; }, "the content has 0 bytes"},
    {"AddedLong", [](Json& f) { f["added_tokens"][1]["content"] = std::string(1025, 'x'); }, "has 1025 bytes"},
    {"AddedIdTwice", [](Json& f) { f["added_tokens"][1]["id"] = 300; }, "added_tokens[1]: the id 300 stands twice"},
    {"AddedTwice", [](Json& f) { f["added_tokens"][1]["content"] = "<s>"; }, "has the id 301 here and 300 elsewhere"},
    {"AddedIdTaken", [](Json& f) { f["added_tokens"][0]["id"] = 97; }, "\"a\" and \"<s>\" have the same id 97"},
    {"AddedOtherId", [](Json& f) { f["added_tokens"][0]["content"] = "ab"; }, "\"ab\" has the id 300 here and 256"},
    {"AddedHugeId", [](Json& f) { f["added_tokens"][0]["id"] = 3'000'000; }, "is not a whole number below"},
    {"AddedNoId", [](Json& f) { f["added_tokens"][0].erase("id"); }, "the id \"null\" of \"<s>\""},
    {"AddedFlag", [](Json& f) { f["added_tokens"][0]["lstrip"] = "no"; }, "lstrip is not true or false"},
    {"Nfc",
     [](Json& f) {
       f["normalizer"] = {{"type", "NFC"}};
     },
     "the normaliser \"NFC\" is not implemented"},
    {"NfcInside",
     [](Json& f) {
       f["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
     },
     "\"NFC\""},
    {"NoPreTokenizer", [](Json& f) { f["pre_tokenizer"] = nullptr; }, "pre_tokenizer: there is none"},
    {"Metaspace",
     [](Json& f) {
       f["pre_tokenizer"] = {{"type", "Metaspace"}};
     },
     "\"Metaspace\" is not implemented"},
    {"DigitsInside",
     [](Json& f) {
       set_splits(f, {{{"type", "Digits"}}, byte_level});
     },
     "pre_tokenizer[0]: the pre-tokeniser \"Digits\""},
    {"NoByteLevel", [](Json& f) { set_splits(f, Json::array({split})); }, "no ByteLevel step"},
    {"AfterByteLevel",
     [](Json& f) {
       set_splits(f, {byte_level, split});
     },
     "\"Split\" after ByteLevel"},
    {"Behavior",
     [](Json& f) {
       set_splits(f, {with(split, "behavior", "MergedWithNext"), byte_level});
     },
     "\"MergedWithNext\" is not implemented"},
    {"BadRegex",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", {{"Regex", "a(b"}}), byte_level});
     },
     "not usable at byte 3 of"},
    {"OnigHex",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", {{"Regex", "\\h+"}}), byte_level});
     },
     "\\h"},
    {"NestedClass",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", {{"Regex", "[a[bc]]"}}), byte_level});
     },
     "nested"},
    {"Intersection",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", {{"Regex", "[a-z&&b]"}}), byte_level});
     },
     "&&"},
    {"EmptyRegex",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", {{"Regex", ""}}), byte_level});
     },
     "the Regex is empty"},
    {"EmptyString",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", {{"String", ""}}), byte_level});
     },
     "the String is empty"},
    {"NoPattern",
     [](Json& f) {
       set_splits(f, {with(split, "pattern", Json::object()), byte_level});
     },
     "Regex is not a string"},
    {"Bert",
     [](Json& f) {
       f["post_processor"] = {{"type", "BertProcessing"}};
     },
     "\"BertProcessing\" is not implemented"},
    {"NoDecoder", [](Json& f) { f["decoder"] = nullptr; }, "decoder: there is none"},
    {"WordPieceDecoder",
     [](Json& f) {
       f["decoder"] = {{"type", "WordPiece"}};
     },
     "the decoder \"WordPiece\""},
};

INSTANTIATE_TEST_SUITE_P(TokenizerFile, Refused, ::testing::ValuesIn(cases),
                         [](const auto& test) { return test.param.name; });

TEST(TokenizerFile, TheUnchangedFileIsAccepted) {
  EXPECT_EQ(error_after([](Json&) {}), "accepted");
}

TEST(TokenizerFile, WhatIsNotJsonIsRefused) {
  EXPECT_THAT(error_of(""), HasSubstr("small.json: not valid JSON at byte"));
  EXPECT_THAT(error_of("{\"model\": "), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("7"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("{\"a\": \"\xFF\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("nested deeper"));
  const std::string whole = small_file().dump();
  for (std::size_t size = 0; size < whole.size(); size += 37) {
    EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr("not valid JSON"));
  }
}

TEST(TokenizerFile, NothingMayStandTwice) {
  EXPECT_THAT(error_replacing("\"ab\":256", "\"ab\":256,\"ab\":400"), HasSubstr("token \"ab\" stands twice"));
  EXPECT_THAT(error_replacing("\"type\":\"BPE\"", "\"type\":\"BPE\",\"type\":\"BPE\""),
              HasSubstr("key \"type\" stands twice"));
  EXPECT_THAT(error_replacing("\"type\":\"BPE\"", "\"type\":\"BPE\",\"vocab\":{}"),
              HasSubstr("model.vocab stands twice"));
  EXPECT_THAT(error_replacing("\"type\":\"BPE\"", "\"type\":\"BPE\",\"merges\":[]"),
              HasSubstr("model.merges stands twice"));
}

TEST(TokenizerFile, BothSpellingsOfMergesAndAnyOrderOfKeysAreRead) {
  Json file = small_file();
  file["model"]["merges"] = Json::parse(R"([["a", "b"], ["ab", "c"], ["\u0120", "a"]])");
  EXPECT_THAT(testing::parse(file).encode("abc a"), ::testing::ElementsAre(257, 258));
  const Json model = file["model"];
  const std::string merges_first =
      "{\"merges\":" + model["merges"].dump() + ",\"vocab\":" + model["vocab"].dump() + "}";
  file.erase("model");
  std::string text = file.dump();
  text.insert(text.size() - 1, ",\"model\":" + merges_first);
  EXPECT_THAT(Tokenizer::parse(text, "t").encode("abc a"), ::testing::ElementsAre(257, 258));
}

TEST(TokenizerFile, PostProcessorsAndTruncationAddNothing) {
  Json file = small_file();
  file["truncation"] = {{"max_length", 1}};
  file["padding"] = {{"pad_id", 0}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors", {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}, {"single", {"<s>"}}}}}};
  EXPECT_THAT(testing::parse(file).encode("abc a"), ::testing::ElementsAre(257, 258));
}

}  // namespace
}  // namespace m3
