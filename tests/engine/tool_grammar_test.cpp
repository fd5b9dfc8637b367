// Calls drawn at random under a tool grammar, read back by the parser and held against the tools' schemas.
#include "src/chat/tool_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "m3/error.h"
#include "src/base/mapped_file.h"
#include "src/chat/messages.h"
#include "src/chat/reply_rules.h"
#include "src/chat/template/json.h"
#include "src/engine/reply_gate.h"
#include "tests/support/random_walk.h"
#include "tests/support/schema_check.h"

namespace m3::engine {
namespace {

using Json = nlohmann::ordered_json;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(M3_MODELS "/m3-tiny-chat");
  return loaded;
}

TokenId end_id() { return tokenizer().id_of("[e~["); }

Constraints& constraints() {
  static Constraints shared(tokenizer(), tokenizer().vocab_size(), {end_id()});
  return shared;
}

const Json& tools() {
  static const Json data = Json::parse(read_text_file(M3_TEST_DATA "/constraints/tools.json", 1u << 20));
  return data;
}

struct Prepared {
  chat::ChatRequest chat;
  Request request;
};

Prepared prepare(Json fields) {
  fields["messages"] = {{{"role", "user"}, {"content", "x"}}};
  if (!fields.contains("thinking")) fields["thinking"] = {{"type", "disabled"}};
  const chat::Value body = chat::parse_json(fields.dump(), "body");
  Prepared out{chat::parse_chat_request(body), {}};
  chat::apply_reply_rules(body, out.chat, tokenizer(), out.request);
  return out;
}

std::optional<ConstraintMatcher> matcher_of(const Constraint& constraint) {
  if (constraint.kind == Constraint::Kind::none) return std::nullopt;
  const ConstraintHandle compiled = constraints().compile(constraint);
  compiled->wait();
  if (compiled->state() != CompiledConstraint::State::ready) throw Error(ErrorKind::input, compiled->error());
  return constraints().matcher(*compiled);
}

chat::ParsedOutput draw(const Prepared& prepared, std::mt19937& random, std::size_t soft_limit = 40) {
  ReplyGate gate({}, matcher_of(prepared.request.constraint), nullptr, std::vector{end_id()});
  const auto ids = test::random_walk(gate, tokenizer(), tokenizer().vocab_size(), end_id(), random, soft_limit);
  return chat::parse_output(tokenizer().decode_bytes(ids), prepared.chat.parsed_tools, chat::ThinkingMode::disabled);
}

void check_call(const chat::ParsedCall& call) {
  const auto tool = std::find_if(tools().begin(), tools().end(),
                                 [&](const Json& one) { return one["function"]["name"] == call.name; });
  ASSERT_NE(tool, tools().end()) << call.name;
  const auto arguments = nlohmann::json::parse(call.arguments, nullptr, false);
  ASSERT_TRUE(arguments.is_object()) << call.arguments;
  const auto schema = nlohmann::json::parse((*tool)["function"].value("parameters", Json::object()).dump());
  if (call.name == "not_strict") {  // its types hold all the same
    EXPECT_TRUE(arguments["tags"].is_array() && arguments["isbn"].is_string() && arguments["n"].is_number_integer())
        << call.arguments;
    return;
  }
  EXPECT_EQ(test::schema_problem(arguments, schema, schema), "") << call.name << ": " << call.arguments.substr(0, 500);
  for (const auto& [name, value] : arguments.items()) {
    EXPECT_TRUE(schema.contains("properties") && schema["properties"].contains(name)) << call.name << ": " << name;
  }
}

class NamedTool : public testing::TestWithParam<std::string> {};

TEST_P(NamedTool, IsCalledOnceAndTyped) {
  const Prepared prepared =
      prepare({{"tools", tools()}, {"tool_choice", {{"type", "function"}, {"function", {{"name", GetParam()}}}}}});
  std::mt19937 random(3);
  for (int round = 0; round < 10; ++round) {
    const chat::ParsedOutput reply = draw(prepared, random);
    EXPECT_EQ(reply.content, "");
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.calls[0].name, GetParam());
    check_call(reply.calls[0]);
  }
}

std::vector<std::string> tool_names() {
  std::vector<std::string> names;
  for (const Json& tool : tools()) names.push_back(tool["function"]["name"]);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Stored, NamedTool, testing::ValuesIn(tool_names()), [](const auto& one) {
  std::string name = one.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(ToolGrammar, RequiredCallsAreWellFormed) {
  std::mt19937 random(4);
  std::size_t most = 0;
  const Prepared several = prepare({{"tools", tools()}, {"tool_choice", "required"}});
  const Prepared single = prepare({{"tools", tools()}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
  for (int round = 0; round < 15; ++round) {
    const chat::ParsedOutput reply = draw(several, random, 100);
    EXPECT_EQ(reply.content, "");
    ASSERT_GE(reply.calls.size(), 1u);
    most = std::max(most, reply.calls.size());
    for (const auto& call : reply.calls) check_call(call);
    EXPECT_EQ(draw(single, random, 40).calls.size(), 1u);
  }
  EXPECT_GT(most, 1u);
}

TEST(ToolGrammar, NoneCallsNothing) {
  const Prepared prepared = prepare({{"tools", tools()}, {"tool_choice", "none"}});
  std::mt19937 random(5);
  for (int round = 0; round < 10; ++round) EXPECT_TRUE(draw(prepared, random).calls.empty());
  ReplyGate gate({}, matcher_of(prepared.request.constraint), nullptr, std::vector{end_id()});
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
  gate.fill(words);
  for (const TokenId id : test::allowed_ids(words)) EXPECT_TRUE(!tokenizer().is_added(id) || id == end_id());
}

TEST(ToolGrammar, AutoHoldsABegunCallWhereAToolIsStrict) {
  const Prepared prepared = prepare({{"tools", tools()}});
  ASSERT_NE(prepared.request.constraint.kind, Constraint::Kind::none);
  const TokenId space = tokenizer().id_of("]<]minimax[>["), block = tokenizer().id_of("<tool_call>");
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
  ReplyGate gate({}, matcher_of(prepared.request.constraint), nullptr, std::vector{end_id()});
  for (const TokenId id : tokenizer().encode("Let me look, a < b.")) gate.accept(id);
  EXPECT_TRUE(gate.may_end());
  gate.fill(words);
  for (const TokenId id : test::allowed_ids(words))
    EXPECT_TRUE(!tokenizer().is_added(id) || id == end_id() || id == space);
  gate.accept(space);
  gate.fill(words);
  EXPECT_EQ(test::allowed_ids(words), std::vector{block});
  EXPECT_FALSE(gate.may_end());
  std::mt19937 random(6);
  for (int round = 0; round < 10; ++round) {
    for (const auto& call : draw(prepared, random).calls) check_call(call);
  }
  Json plain = Json::array({tools()[1]});
  EXPECT_EQ(prepare({{"tools", plain}}).request.constraint.kind, Constraint::Kind::none);
}

TEST(ToolGrammar, AFormBesideToolsIsEitherOne) {
  const Json schema = {
      {"type", "object"}, {"properties", {{"answer", {{"type", "integer"}}}}}, {"required", {"answer"}}};
  const Prepared prepared =
      prepare({{"tools", tools()},
               {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}});
  std::mt19937 random(8);
  int calls = 0, answers = 0;
  for (int round = 0; round < 40; ++round) {
    const chat::ParsedOutput reply = draw(prepared, random, 10);
    for (const auto& call : reply.calls) check_call(call);
    calls += reply.calls.empty() ? 0 : 1;
    if (!reply.calls.empty()) continue;
    ++answers;
    EXPECT_TRUE(nlohmann::json::parse(reply.content).at("answer").is_number_integer());
  }
  EXPECT_GT(calls, 0);
  EXPECT_GT(answers, 0);
}

TEST(ToolGrammar, RefusesWhatTheFormatCannotHold) {
  const auto problem = [](const Json& tool) -> std::string {
    try {
      prepare({{"tools", Json::array({{{"type", "function"}, {"function", tool}}})}, {"tool_choice", "required"}});
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const auto with = [](const Json& properties, bool strict = false) {
    return Json{{"name", "t"}, {"strict", strict}, {"parameters", {{"type", "object"}, {"properties", properties}}}};
  };
  const std::string base = "tools[0].function.parameters";
  EXPECT_EQ(problem(with({{"a>b", {{"type", "string"}}}})).find(base + ".properties.a>b: M3's tool-call format"), 0u);
  for (const char* name : {"tool_call", "invoke", "/x", "", "a\nb", " x"})
    EXPECT_NE(problem(with({{name, Json::object()}})), "") << name;
  EXPECT_NE(problem({{"name", "a\"b"}}), "");
  EXPECT_EQ(problem(with({{"a", {{"enum", {"x]<]minimax[>[y"}}}}})).find(base + ".properties.a: M3's"), 0u);
  EXPECT_EQ(problem(with({{"a", {{"not", Json::object()}}}}, true)).find(base + ".properties.a.not: "), 0u);
  EXPECT_EQ(problem(with({{"a", {{"not", Json::object()}}}}, false)), "");
  EXPECT_EQ(problem({{"name", "t"}, {"parameters", {{"type", "string"}}}}).find(base + ": the arguments"), 0u);
}

}  // namespace
}  // namespace m3::engine
