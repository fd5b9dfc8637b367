// Stored cases of what models write, each fed whole, cut at every byte, and in random pieces.
#include "src/chat/parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/chat/messages.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t data_limit = 4u << 20;

struct Case {
  std::string name, text;
  ThinkingMode mode = ThinkingMode::adaptive;
  bool continues = false;
  AnswerForm form = AnswerForm::free;
  bool has_tools = true;
  Json expected;
};

std::string expand(std::string text) {
  for (std::size_t at = 0; (at = text.find("{N}", at)) != std::string::npos;) text.replace(at, 3, "]<]minimax[>[");
  return text;
}

const Json& stored() {
  static const Json data = Json::parse(read_text_file(M3_TEST_DATA "/chat/parse_cases.json", data_limit));
  return data;
}

std::vector<Case> load_cases() {
  std::vector<Case> cases;
  for (const Json& entry : stored()["cases"]) {
    Case c;
    c.name = entry["name"];
    c.text = expand(entry["text"]);
    const std::string mode = entry.value("mode", "adaptive");
    c.mode = mode == "enabled"    ? ThinkingMode::enabled
             : mode == "disabled" ? ThinkingMode::disabled
                                  : ThinkingMode::adaptive;
    c.continues = entry.value("continues", false);
    const std::string form = entry.value("form", "free");
    c.form = form == "held" ? AnswerForm::held : form == "held_or_calls" ? AnswerForm::held_or_calls : AnswerForm::free;
    c.has_tools = entry.value("tools", true);
    c.expected = entry;
    cases.push_back(std::move(c));
  }
  return cases;
}

Tools tools_of(const Case& c) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  if (c.has_tools) body["tools"] = stored()["tools"];
  return parse_chat_request(parse_json(body.dump(), "request")).parsed_tools;
}

ParsedOutput feed(const Case& c, const Tools& tools, const std::vector<std::string_view>& pieces) {
  OutputParser parser(tools, c.mode, c.continues, c.form);
  ParsedOutput output;
  for (const auto piece : pieces) append_events(output, parser.feed(piece));
  append_events(output, parser.finish());
  return output;
}

void expect_same(const ParsedOutput& got, const ParsedOutput& whole, const std::string& how) {
  EXPECT_EQ(got.content, whole.content) << how;
  EXPECT_EQ(got.reasoning, whole.reasoning) << how;
  ASSERT_EQ(got.calls.size(), whole.calls.size()) << how;
  for (std::size_t i = 0; i < got.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, whole.calls[i].name) << how;
    EXPECT_EQ(got.calls[i].arguments, whole.calls[i].arguments) << how;
  }
}

Case with_text(std::string text) {
  Case c;
  c.text = expand(std::move(text));
  return c;
}

TEST(Parser, StoredCases) {
  const auto cases = load_cases();
  ASSERT_GE(cases.size(), 140u);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const ParsedOutput output = feed(c, tools_of(c), {c.text});
    EXPECT_EQ(output.content, c.expected["content"].get<std::string>());
    EXPECT_EQ(output.reasoning, c.expected["reasoning_content"].get<std::string>());
    ASSERT_EQ(output.calls.size(), c.expected["tool_calls"].size());
    for (std::size_t i = 0; i < output.calls.size(); ++i) {
      EXPECT_EQ(output.calls[i].name, c.expected["tool_calls"][i]["name"].get<std::string>());
      EXPECT_EQ(Json::parse(output.calls[i].arguments), c.expected["tool_calls"][i]["arguments"]);
    }
  }
}

TEST(Parser, EveryCutGivesTheSame) {
  for (const Case& c : load_cases()) {
    SCOPED_TRACE(c.name);
    const Tools tools = tools_of(c);
    const std::string_view text = c.text;
    const ParsedOutput whole = feed(c, tools, {text});
    for (std::size_t at = 0; at <= text.size(); ++at) {
      expect_same(feed(c, tools, {text.substr(0, at), text.substr(at)}), whole, "cut at " + std::to_string(at));
    }
    std::vector<std::string_view> bytes;
    for (std::size_t at = 0; at < text.size(); ++at) bytes.push_back(text.substr(at, 1));
    expect_same(feed(c, tools, bytes), whole, "by bytes");
  }
}

// A token limit or a stop string may end a reply anywhere: of the format's own bytes nothing gets into arguments, and
// none into the content behind a block's begin.
TEST(Parser, RepliesThatEndEarlyShowNoProtocol) {
  int calls = 0;
  for (const Case& c : load_cases()) {
    const std::size_t block = c.text.find(expand("{N}<tool_call>"));
    const bool protocol = c.form == AnswerForm::free && c.expected["tool_calls"].size() == 1;
    if (!protocol || block == std::string::npos || c.expected.dump().find("]<]") != std::string::npos) continue;
    SCOPED_TRACE(c.name);
    const Tools tools = tools_of(c);
    for (std::size_t end = block; end <= c.text.size(); ++end) {
      const ParsedOutput output = feed(c, tools, {std::string_view(c.text).substr(0, end)});
      if (end >= block + expand("{N}<tool_call>").size()) {
        EXPECT_EQ(output.content.find("]<]"), std::string::npos) << output.content << " cut at " << end;
      }
      for (const ParsedCall& call : output.calls) {
        ++calls;
        EXPECT_EQ(call.arguments.find("]<]"), std::string::npos) << call.arguments << " cut at " << end;
        EXPECT_TRUE(Json::accept(call.arguments)) << call.arguments;
      }
    }
  }
  EXPECT_GT(calls, 1000);
}

TEST(Parser, WhatACutLeavesOfABlock) {
  const auto parsed = [](const std::string& text) {
    const Case c = with_text(text);
    return feed(c, tools_of(c), {c.text});
  };
  EXPECT_EQ(parsed("{N}<tool_call>\n{N}").content, "");
  EXPECT_EQ(parsed("{N}<tool_call>\n").content, "");
  EXPECT_EQ(parsed("\n").content, "\n");
  EXPECT_EQ(parsed("a ]<]mini").content, "a ]<]mini");  // outside of a block it is text
  const auto arguments = [&](const std::string& value) {
    return parsed("{N}<tool_call>{N}<invoke name=\"f\">{N}<text>" + value).calls.at(0).arguments;
  };
  EXPECT_EQ(arguments("Hello{N}</te"), R"({"text":"Hello"})");
  EXPECT_EQ(arguments("a[1]"), R"({"text":"a[1]"})");
  EXPECT_EQ(arguments("a[1]<]"), R"({"text":"a[1"})");
}

TEST(Parser, RandomCutsGiveTheSame) {
  std::mt19937 engine(1);
  for (const Case& c : load_cases()) {
    SCOPED_TRACE(c.name);
    const Tools tools = tools_of(c);
    const std::string_view text = c.text;
    const ParsedOutput whole = feed(c, tools, {text});
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string_view> pieces;
      for (std::size_t at = 0; at < text.size(); at += pieces.back().size()) {
        pieces.push_back(text.substr(at, 1 + engine() % 9));
      }
      expect_same(feed(c, tools, pieces), whole, "round " + std::to_string(round));
    }
  }
}

// Random splices of all cases: nothing crashes, arguments are always JSON, and cuts never matter.
TEST(Parser, SplicesOfCases) {
  std::mt19937 engine(2);
  const auto cases = load_cases();
  const Tools tools = tools_of(cases.front());
  for (int round = 0; round < 400; ++round) {
    Case c;
    c.mode = static_cast<ThinkingMode>(round % 3);
    for (int part = 0; part < 4; ++part) {
      const std::string& source = cases[engine() % cases.size()].text;
      if (source.empty()) continue;
      const std::size_t begin = engine() % source.size();
      c.text += source.substr(begin, engine() % 60);
    }
    const ParsedOutput whole = feed(c, tools, {c.text});
    for (const auto& call : whole.calls) EXPECT_TRUE(Json::accept(call.arguments)) << c.text;
    std::vector<std::string_view> pieces;
    const std::string_view text = c.text;
    for (std::size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, 1 + engine() % 4));
    }
    expect_same(feed(c, tools, pieces), whole, c.text);
  }
}

TEST(Parser, ArgumentsComeWhileTheyAreWritten) {
  const Case c = with_text("{N}<tool_call>{N}<invoke name=\"f\">{N}<city>Par");
  OutputParser parser(tools_of(c), ThinkingMode::adaptive);
  ParsedOutput output;
  append_events(output, parser.feed(c.text));
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].arguments, "{\"city\":\"Par");
  append_events(output, parser.feed("is"));
  EXPECT_EQ(output.calls[0].arguments, "{\"city\":\"Paris");
}

TEST(Parser, NestedStringsStreamToo) {
  const Case c = with_text("{N}<tool_call>{N}<invoke name=\"f\">{N}<lines>{N}<item>{N}<sku>ab");
  OutputParser parser(tools_of(c), ThinkingMode::adaptive);
  ParsedOutput output;
  append_events(output, parser.feed(c.text));
  EXPECT_EQ(output.calls.at(0).arguments, "{\"lines\":[{\"sku\":\"ab");
}

TEST(Parser, NullableStringsStreamOnceTheyCannotBeNull) {
  const Case c = with_text("{N}<tool_call>{N}<invoke name=\"f\">{N}<note>nu");
  OutputParser parser(tools_of(c), ThinkingMode::adaptive);
  ParsedOutput output;
  append_events(output, parser.feed(c.text));
  EXPECT_EQ(output.calls.at(0).arguments, "{");
  append_events(output, parser.feed("t"));
  EXPECT_EQ(output.calls.at(0).arguments, "{\"note\":\"nut");
}

TEST(Parser, ContentComesAtOnce) {
  OutputParser parser(nullptr, ThinkingMode::adaptive);
  const auto events = parser.feed("Hello ]<");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "Hello ");
  EXPECT_EQ(parser.feed("x")[0].text, "]<x");
}

TEST(Parser, ACopyIsASnapshot) {
  const Case c = with_text("<mm:think>a</mm:think>{N}<tool_call>{N}<invoke name=\"f\">{N}<city>Par");
  OutputParser parser(tools_of(c), ThinkingMode::adaptive);
  parser.feed(c.text);
  OutputParser other = parser;
  ParsedOutput first, second;
  first.calls = second.calls = {{"f", ""}};
  append_events(first, parser.feed("ma" + expand("{N}</city>{N}</invoke>")));
  append_events(second, other.feed("is" + expand("{N}</city>{N}</invoke>")));
  EXPECT_EQ(first.calls[0].arguments, "ma\"}");
  EXPECT_EQ(second.calls[0].arguments, "is\"}");
}

TEST(Parser, SaysWhetherItIsInsideReasoning) {
  OutputParser parser(nullptr, ThinkingMode::enabled);
  EXPECT_TRUE(parser.in_reasoning());
  parser.feed("a</mm:thi");
  EXPECT_TRUE(parser.in_reasoning());
  parser.feed("nk>");
  EXPECT_FALSE(parser.in_reasoning());
}

// With adaptive thinking the letters cannot tell a tag from an answer that spells one; the engine can.
TEST(Parser, AnAnswerInAFormMayBeginWithATagsLetters) {
  const std::string text = "<mm:think>, it said</mm:think>";
  OutputParser told(nullptr, ThinkingMode::adaptive, false, AnswerForm::held);
  told.skip_reasoning();
  ParsedOutput output;
  append_events(output, told.feed(text));
  append_events(output, told.finish());
  EXPECT_EQ(output.content, text);
  EXPECT_EQ(output.reasoning, "");
  OutputParser free_reply(nullptr, ThinkingMode::adaptive);
  free_reply.skip_reasoning();
  ParsedOutput other;
  append_events(other, free_reply.feed(text));
  append_events(other, free_reply.finish());
  EXPECT_EQ(other.reasoning, ", it said");
}

TEST(Parser, CutCharactersAreJoinedAndBrokenOnesReplaced) {
  OutputParser parser(nullptr, ThinkingMode::adaptive);
  ParsedOutput output;
  append_events(output, parser.feed("\xf0\x9f"));
  append_events(output, parser.feed("\x8e\x89\xff"));
  append_events(output, parser.feed("\xe2\x82"));
  append_events(output, parser.finish());
  EXPECT_EQ(output.content, "\xf0\x9f\x8e\x89\xef\xbf\xbd\xef\xbf\xbd");
}

// As many names as a text has room for, in values without a schema.
TEST(Parser, ManyMembersTakeOnePass) {
  std::string text = expand("{N}<tool_call>{N}<invoke name=\"f\">{N}<all>");
  constexpr int count = 100'000;
  for (int i = 0; i < count; ++i) {
    const std::string name = "m" + std::to_string(i);
    text += expand(fmt::format("{{N}}<{0}>1{{N}}</{0}>", name));
  }
  text += expand("{N}</all>{N}</invoke>{N}</tool_call>");
  const ParsedOutput output = parse_output(text, {}, ThinkingMode::disabled);
  ASSERT_EQ(output.calls.size(), 1u);
  const auto arguments = nlohmann::json::parse(output.calls[0].arguments);  // ordered ones look for each name
  EXPECT_EQ(arguments["all"].size(), std::size_t{count});
}

TEST(Parser, HostileSchemasEnd) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  const Json loop = Json::parse(R"({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
    "b": {"type": "array", "items": {"$ref": "#/$defs/b"}}}, "type": "object",
    "properties": {"x": {"$ref": "#/$defs/b"}, "y": {"$ref": "#/$defs/a"}, "z": {"$ref": "#"}}})");
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", loop}}}}};
  const Tools tools = parse_chat_request(parse_json(body.dump(), "request")).parsed_tools;
  const std::string text = expand(
      "{N}<tool_call>{N}<invoke "
      "name=\"f\">{N}<x>deep{N}</x>{N}<y>1{N}</y>{N}<z>{N}<z>{N}<x>{N}</x>{N}</z>{N}</z>{N}</invoke>");
  const ParsedOutput output = parse_output(text, tools, ThinkingMode::adaptive);
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_TRUE(Json::accept(output.calls[0].arguments));
}

}  // namespace
}  // namespace m3::chat
