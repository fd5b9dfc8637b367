// Fields of a request that say what its reply looks like.
#include "src/chat/reply_rules.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "m3/error.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

using Json = nlohmann::ordered_json;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(M3_MODELS "/m3-tiny-chat");
  return loaded;
}

Request apply(Json fields) {
  fields["messages"] = {{{"role", "user"}, {"content", "x"}}};
  const Value body = parse_json(fields.dump(), "body");
  const ChatRequest chat = parse_chat_request(body);
  Request request;
  apply_reply_rules(body, chat, tokenizer(), request);
  return request;
}

std::string problem(const Json& fields) {
  try {
    apply(fields);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
const Json schema = {{"type", "object"}};

TEST(ReplyRules, PlainRequests) {
  const Request request = apply(Json::object());
  EXPECT_EQ(request.constraint.kind, Constraint::Kind::none);
  EXPECT_EQ(request.reasoning.start, Reasoning::Start::either);
  EXPECT_EQ(request.reasoning.begin_id, tokenizer().id_of("<mm:think>"));
  EXPECT_EQ(request.reasoning.end_id, tokenizer().id_of("</mm:think>"));
  EXPECT_EQ(apply({{"response_format", {{"type", "text"}}}}).constraint.kind, Constraint::Kind::none);
}

TEST(ReplyRules, Thinking) {
  EXPECT_EQ(apply({{"thinking", {{"type", "enabled"}}}}).reasoning.start, Reasoning::Start::inside);
  EXPECT_EQ(apply({{"thinking", {{"type", "disabled"}}}}).reasoning.start, Reasoning::Start::outside);
  EXPECT_EQ(apply({{"thinking_budget", 7}}).reasoning.budget, 7);
  EXPECT_EQ(apply({{"thinking_token_budget", 8}}).reasoning.budget, 8);
  EXPECT_EQ(apply({{"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}}).reasoning.budget, 9);
  EXPECT_EQ(apply({{"thinking_budget", 9}, {"thinking_token_budget", 9}}).reasoning.budget, 9);
}

TEST(ReplyRules, Forms) {
  using Kind = Constraint::Kind;
  EXPECT_EQ(apply({{"response_format", {{"type", "json_object"}}}}).constraint.kind, Kind::json_object);
  const Json format = {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}, {"strict", true}}}};
  EXPECT_EQ(apply({{"response_format", format}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"structured_outputs", {{"json", schema}}}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"structured_outputs", {{"json", schema.dump()}}}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"structured_outputs", {{"regex", "a+"}}}}).constraint.text, "a+");
  EXPECT_EQ(apply({{"structured_outputs", {{"grammar", "root ::= \"a\""}}}}).constraint.text, "root ::= \"a\"");
  EXPECT_EQ(apply({{"structured_outputs", {{"choice", {"a", "b"}}}}}).constraint.choices.size(), 2u);
  EXPECT_EQ(apply({{"guided_regex", "b+"}}).constraint.kind, Kind::regex);
  EXPECT_EQ(apply({{"guided_choice", {"a"}}}).constraint.kind, Kind::choice);
  EXPECT_EQ(apply({{"guided_json", schema}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"guided_grammar", "root ::= \"a\""}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"tools", {tool}}, {"tool_choice", "required"}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"tools", {tool}}, {"tool_choice", "none"}}).constraint.kind, Kind::grammar);
  EXPECT_EQ(apply({{"tools", {tool}}}).constraint.kind, Kind::none);
  EXPECT_EQ(apply({{"tools", {tool}}, {"tool_choice", "none"}, {"guided_regex", "b+"}}).constraint.kind, Kind::regex);
}

// A pattern that cannot be enforced is left out where a tool does not ask for strictness.
TEST(ReplyRules, LenientToolsLoseAPatternThatDoesNotParse) {
  Json lenient = tool;
  lenient["function"]["parameters"] = {{"type", "object"},
                                       {"properties", {{"x", {{"type", "string"}, {"pattern", "^(?!a)"}}}}}};
  EXPECT_EQ(apply({{"tools", {lenient}}, {"tool_choice", "required"}}).constraint.kind, Constraint::Kind::grammar);
}

TEST(ReplyRules, WhatTheAnswerIsHeldTo) {
  const auto answer = [](Json fields) {
    fields["messages"] = {{{"role", "user"}, {"content", "x"}}};
    return parse_chat_request(parse_json(fields.dump(), "body")).answer;
  };
  EXPECT_EQ(answer(Json::object()), AnswerForm::free);
  EXPECT_EQ(answer({{"response_format", {{"type", "text"}}}}), AnswerForm::free);
  EXPECT_EQ(answer({{"tools", {tool}}, {"tool_choice", "required"}}), AnswerForm::free);
  EXPECT_EQ(answer({{"response_format", {{"type", "json_object"}}}}), AnswerForm::held);
  EXPECT_EQ(answer({{"guided_choice", {"a"}}}), AnswerForm::held);
  EXPECT_EQ(answer({{"structured_outputs", {{"regex", "a"}}}}), AnswerForm::held);
  EXPECT_EQ(answer({{"tools", {tool}}, {"guided_regex", "a"}}), AnswerForm::held_or_calls);
  EXPECT_EQ(answer({{"tools", {tool}}, {"tool_choice", "none"}, {"guided_regex", "a"}}), AnswerForm::held);
}

TEST(ReplyRules, NothingIsDroppedSilently) {
  const auto begins = [](const Json& fields, const std::string& path) {
    EXPECT_EQ(problem(fields).find(path), 0u) << fields << ": " << problem(fields);
  };
  begins({{"response_format", {{"type", "xml"}}}}, "response_format.type: ");
  begins({{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema: ");
  begins({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}}}}}},
         "response_format.json_schema.schema: ");
  begins({{"response_format",
           {{"type", "json_schema"},
            {"json_schema", {{"schema", {{"type", "object"}, {"properties", {{"a", {{"not", {}}}}}}}}}}}}},
         "response_format.json_schema.schema.properties.a.not: ");
  begins({{"response_format", 5}}, "response_format: ");
  begins({{"guided_json", "{"}}, "guided_json: not JSON");
  begins({{"guided_regex", 5}}, "guided_regex: ");
  begins({{"guided_choice", Json::array()}}, "guided_choice: ");
  begins({{"guided_regex", "(a"}}, "guided_regex: no regular expression that can be enforced: ");
  begins({{"guided_regex", ""}}, "guided_regex: ");
  begins({{"structured_outputs", {{"regex", "(?=a)b"}}}}, "structured_outputs.regex: ");
  begins({{"structured_outputs", {{"regex", std::string(5000, '(') + "a" + std::string(5000, ')')}}}},
         "structured_outputs.regex: ");
  begins({{"guided_grammar", "root ::= missing"}}, "guided_grammar: ");
  begins({{"structured_outputs", {{"grammar", "no root at all"}}}}, "structured_outputs.grammar: ");
  begins({{"response_format",
           {{"type", "json_schema"},
            {"json_schema",
             {{"schema", {{"type", "object"}, {"properties", {{"x", {{"type", "string"}, {"pattern", "[a"}}}}}}}}}}}},
         "response_format.json_schema.schema.properties.x.pattern: ");
  begins({{"tools",
           {{{"type", "function"},
             {"function",
              {{"name", "f"},
               {"strict", true},
               {"parameters",
                {{"type", "object"}, {"properties", {{"x", {{"type", "string"}, {"pattern", "(?<=a)b"}}}}}}}}}}}},
          {"tool_choice", "required"}},
         "tools[0].function.parameters.properties.x.pattern: ");
  begins({{"structured_outputs", {{"structural_tag", "x"}}}}, "structured_outputs.structural_tag: unknown");
  begins({{"guided_regex", "a"}, {"response_format", {{"type", "json_object"}}}},
         "guided_regex: response_format already");
  begins({{"guided_regex", "a"}, {"tools", {tool}}, {"tool_choice", "required"}},
         "guided_regex: contradicts tool_choice");
  begins({{"thinking_budget", -1}}, "thinking_budget: ");
  begins({{"thinking_budget", "5"}}, "thinking_budget: ");
  begins({{"thinking_budget", 5}, {"thinking_token_budget", 6}}, "thinking_token_budget: thinking_budget says 5");
  begins({{"thinking_budget", 5}, {"thinking", {{"type", "disabled"}}}}, "thinking_budget: thinking is disabled");
  begins({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"strict", 1}}}}}}},
         "tools[0].function.strict: ");
}

}  // namespace
}  // namespace m3::chat
