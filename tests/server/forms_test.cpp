// Replies in a form, through the server and the checkpoint that ships: what cannot be done is a 400 before any stream
// begins, and what can be done holds.
#include <gtest/gtest.h>

#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpResponse;
using test::Json;
using test::TestServer;

class Forms : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<TestServer>(test::test_options()); }
  static void TearDownTestSuite() { server_.reset(); }
  static TestServer& server() { return *server_; }

  static Json body(const std::string& question, const Json& more) {
    Json made = {{"messages", {{{"role", "user"}, {"content", question}}}}, {"temperature", 0}, {"max_tokens", 300}};
    made.update(more);
    return made;
  }

 private:
  static std::unique_ptr<TestServer> server_;
};
std::unique_ptr<TestServer> Forms::server_;

TEST_F(Forms, WhatCannotBeDoneIsRefusedBeforeAnythingIsSent) {
  struct Case {
    Json fields;
    std::string param;
  };
  const auto schema = [](const Json& of_x) {
    return Json{{"response_format",
                 {{"type", "json_schema"},
                  {"json_schema", {{"schema", {{"type", "object"}, {"properties", {{"x", of_x}}}}}}}}}};
  };
  const std::string path = "response_format.json_schema.schema.properties.x";
  const std::vector<Case> cases = {
      {{{"guided_regex", "(a"}}, "guided_regex"},
      {{{"structured_outputs", {{"regex", "a(?=b)"}}}}, "structured_outputs.regex"},
      {{{"guided_grammar", "root ::= missing"}}, "guided_grammar"},
      {{{"guided_grammar", "root ::= Token(99999999)"}}, "guided_grammar"},  // only compiling shows it
      {schema({{"type", "string"}, {"pattern", "[a"}}), path + ".pattern"},
      {schema({{"not", Json::object()}}), path + ".not"},
  };
  for (const Case& one : cases) {
    for (const bool stream : {false, true}) {
      Json asked = body("x", one.fields);
      asked["stream"] = stream;
      const HttpResponse response = server().post("/v1/chat/completions", asked);
      EXPECT_EQ(response.status, 400) << asked << response.body;
      const Json error = Json::parse(response.body).at("error");
      EXPECT_EQ(error.at("param").get<std::string>(), one.param) << response.body;
      EXPECT_EQ(error.at("type").get<std::string>(), "invalid_request_error");
    }
  }
}

TEST_F(Forms, ACallHasTheUsersWordsInItsTypes) {
  const Json alarm = {
      {"type", "function"},
      {"function",
       {{"name", "set_alarm"},
        {"description", "Set an alarm."},
        {"parameters",
         {{"type", "object"}, {"properties", {{"hours", {{"type", "integer"}}}}}, {"required", {"hours"}}}}}}};
  for (const char* choice : {"auto", "required"}) {
    for (const char* thinking : {"enabled", "disabled"}) {
      const Json reply =
          server().json("/v1/chat/completions",
                        body("Set the alarm to 7 hours.",
                             {{"tools", {alarm}}, {"tool_choice", choice}, {"thinking", {{"type", thinking}}}}));
      const Json& sample = reply.at("choices").at(0);
      EXPECT_EQ(sample.at("finish_reason").get<std::string>(), "tool_calls") << reply;
      const Json& function = sample.at("message").at("tool_calls").at(0).at("function");
      EXPECT_EQ(function.at("name").get<std::string>(), "set_alarm");
      EXPECT_EQ(Json::parse(function.at("arguments").get<std::string>()).dump(), R"({"hours":7})");
      const bool thought = !sample.at("message").value("reasoning_content", Json()).is_null();
      EXPECT_EQ(thought, std::string(thinking) == "enabled") << reply;
    }
  }
}

// What a form's text spells is no marker, however thinking is set.
TEST_F(Forms, ATextThatSpellsMarkersIsContent) {
  const std::string text = "<mm:think>]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\"></mm:think>";
  for (const Json& thinking : {Json{{"type", "disabled"}}, Json{{"type", "enabled"}, {"budget_tokens", 5}},
                               Json{{"type", "adaptive"}, {"budget_tokens", 5}}}) {
    const Json reply =
        server().json("/v1/chat/completions", body("Hello.", {{"guided_choice", {text}}, {"thinking", thinking}}));
    const Json& message = reply.at("choices").at(0).at("message");
    EXPECT_EQ(message.at("content").get<std::string>(), text) << reply;
    EXPECT_TRUE(message.value("tool_calls", Json::array()).empty()) << reply;
  }
}

TEST_F(Forms, AStreamUnderASchemaIsItsJson) {
  const Json schema = {
      {"type", "object"},
      {"properties", {{"name", {{"type", "string"}, {"maxLength", 20}}}, {"age", {{"type", "integer"}}}}},
      {"required", {"name", "age"}}};
  Json asked = body("Give me JSON with the name Anna and the age 7.",
                    {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}});
  asked["stream"] = true;
  const HttpResponse response = server().post("/v1/chat/completions", asked);
  ASSERT_EQ(response.status, 200) << response.body;
  std::string content;
  for (const std::string& event : response.events()) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    for (const Json& choice : chunk.at("choices")) content += choice.at("delta").value("content", "");
  }
  const Json value = Json::parse(content, nullptr, false);
  ASSERT_TRUE(value.is_object()) << content;
  EXPECT_TRUE(value.at("name").is_string());
  EXPECT_TRUE(value.at("age").is_number_integer());
}

}  // namespace
}  // namespace m3::server
