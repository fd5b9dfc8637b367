#include "src/chat/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "m3/error.h"

namespace m3::chat {
namespace {

using Json = Conversation::Json;

constexpr const char* weather_tool =
    R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}])";

ParsedOutput reply(std::string content, std::string reasoning = "") {
  return {.content = std::move(content), .reasoning = std::move(reasoning), .calls = {}};
}

std::string error_of(const std::string& json) {
  try {
    Conversation::parse(json, "file");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Conversation, GrowsByQuestionsAndReplies) {
  Conversation conversation;
  conversation.set_system("Be brief.");
  conversation.add_user("Hello");
  EXPECT_TRUE(conversation.awaits_reply());
  conversation.add_reply(reply("Hi.", "greet"));
  conversation.add_user("And?");
  EXPECT_EQ(conversation.body()["messages"],
            Json::parse(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi.", "reasoning_content": "greet"}, {"role": "user", "content": "And?"}])"));
  EXPECT_EQ(conversation.size(), 3u);
  EXPECT_EQ(conversation.request().messages.items().size(), 4u);
}

TEST(Conversation, ComesBackFromItsText) {
  Conversation conversation;
  conversation.set_tools(weather_tool, "tools");
  conversation.set_thinking(ThinkingMode::enabled);
  conversation.add_user("naïve 🎉\n\"quoted\" \\ ");
  conversation.add_reply({.content = "", .reasoning = "", .calls = {{"get_weather", R"({"city": "Rome"})"}}});
  const std::string text = conversation.text();
  const Conversation again = Conversation::parse(text, "file");
  EXPECT_EQ(again.text(), text);
  EXPECT_EQ(again.thinking(), ThinkingMode::enabled);
  EXPECT_EQ(again.tool_names(), std::vector<std::string>{"get_weather"});
  EXPECT_EQ(again.open_calls().size(), 1u);
  EXPECT_NO_THROW(Conversation::parse(Conversation().text(), "file"));  // nothing said yet
}

TEST(Conversation, CallsWaitForTheirResults) {
  Conversation conversation;
  conversation.add_user("x");
  conversation.add_reply({.content = "", .reasoning = "", .calls = {{"f", "{}"}, {"g", "{}"}}});
  EXPECT_FALSE(conversation.awaits_reply());
  ASSERT_EQ(conversation.open_calls().size(), 2u);
  EXPECT_EQ(conversation.open_calls()[0].name, "f");
  EXPECT_THROW(conversation.request(), Error);
  conversation.add_result("1");
  EXPECT_EQ(conversation.open_calls()[0].name, "g");
  conversation.add_result("2");
  EXPECT_TRUE(conversation.awaits_reply());
  EXPECT_NO_THROW(conversation.request());
  EXPECT_THROW(conversation.add_result("3"), Error);
  // Ids stay unique in the whole conversation.
  conversation.add_reply({.content = "", .reasoning = "", .calls = {{"f", "{}"}}});
  EXPECT_EQ(conversation.open_calls()[0].id, "call_3");
}

TEST(Conversation, StoppedRepliesKeepTheirTextOnly) {
  Conversation conversation;
  conversation.add_user("x");
  conversation.add_reply({.content = "Let me", .reasoning = "", .calls = {{"f", R"({"a": ""})"}}}, true);
  EXPECT_TRUE(conversation.open_calls().empty());
  EXPECT_EQ(conversation.size(), 2u);
  conversation.add_user("y");
  conversation.add_reply(reply(""), true);
  EXPECT_EQ(conversation.size(), 3u);
}

TEST(Conversation, UndoAndDropReply) {
  Conversation conversation;
  EXPECT_FALSE(conversation.undo());
  EXPECT_FALSE(conversation.drop_reply());
  conversation.set_system("s");
  EXPECT_FALSE(conversation.drop_reply());
  conversation.add_user("a");
  conversation.add_reply(reply("1"));
  conversation.add_user("b");
  EXPECT_TRUE(conversation.drop_reply());  // nothing to drop, but a question to answer
  EXPECT_EQ(conversation.size(), 3u);
  conversation.add_reply({.content = "", .reasoning = "", .calls = {{"f", "{}"}, {"g", "{}"}}});
  conversation.add_result("1");
  EXPECT_TRUE(conversation.drop_reply());  // with the result of a half-answered call
  EXPECT_EQ(conversation.size(), 3u);
  EXPECT_TRUE(conversation.awaits_reply());
  EXPECT_TRUE(conversation.undo());
  EXPECT_EQ(conversation.size(), 2u);
  conversation.clear();
  EXPECT_EQ(conversation.size(), 0u);
  EXPECT_EQ(conversation.system(), "s");
}

TEST(Conversation, SystemPrompt) {
  Conversation conversation;
  EXPECT_EQ(conversation.system(), "");
  conversation.set_system("a");
  conversation.set_system("b");
  EXPECT_EQ(conversation.system(), "b");
  EXPECT_EQ(conversation.body()["messages"].size(), 1u);
  conversation.set_system("");
  EXPECT_TRUE(conversation.body()["messages"].empty());
  Conversation rooted = Conversation::parse(
      R"({"messages": [{"role": "root", "content": "r"}, {"role": "user", "content": "u"}]})", "file");
  rooted.set_system("s");
  EXPECT_EQ(rooted.body()["messages"][0]["role"], "root");
  EXPECT_EQ(rooted.body()["messages"][1]["content"], "s");
}

TEST(Conversation, ThinkingHasOnePlace) {
  Conversation conversation = Conversation::parse(
      R"({"messages": [], "chat_template_kwargs": {"enable_thinking": false, "x": 1}, "reasoning_effort": "none"})",
      "file");
  EXPECT_EQ(conversation.thinking(), ThinkingMode::disabled);
  conversation.set_thinking(ThinkingMode::enabled);
  EXPECT_EQ(conversation.thinking(), ThinkingMode::enabled);
  EXPECT_EQ(conversation.body()["chat_template_kwargs"], Json::parse(R"({"x": 1})"));
  conversation.set_thinking(std::nullopt);
  EXPECT_EQ(conversation.thinking(), std::nullopt);
}

TEST(Conversation, AContinuedMessageIsCompleted) {
  Conversation conversation = Conversation::parse(
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "The answer "}],
          "continue_final_message": true})",
      "file");
  EXPECT_TRUE(conversation.awaits_reply());
  conversation.add_reply(reply("is 4."));
  EXPECT_EQ(conversation.body()["messages"][1]["content"], "The answer is 4.");
  EXPECT_FALSE(conversation.awaits_reply());
}

TEST(Conversation, BadTextIsOneLineAndChangesNothing) {
  EXPECT_THAT(error_of("{"), testing::HasSubstr("file is not valid JSON"));
  EXPECT_THAT(error_of("[]"), testing::StartsWith("file: expected a JSON object"));
  EXPECT_THAT(error_of("{}"), testing::StartsWith("file: messages: missing"));
  EXPECT_THAT(error_of(R"({"messages": [], "temperature": 1})"), testing::StartsWith("file: temperature: "));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "bot", "content": ""}]})"),
              testing::StartsWith("file: messages[0].role: unknown role 'bot'"));
  EXPECT_THAT(error_of(R"({"messages": [], "tools": [{}]})"), testing::StartsWith("file: tools[0].function: missing"));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": "\ud800"}]})"), testing::StartsWith("file"));
  Conversation conversation;
  conversation.set_tools(weather_tool, "tools");
  EXPECT_THROW(conversation.set_tools("[{}]", "tools"), Error);
  EXPECT_THROW(conversation.set_tools("3", "tools"), Error);
  EXPECT_EQ(conversation.tool_names().size(), 1u);
  conversation.set_tools("[]", "tools");
  EXPECT_TRUE(conversation.tool_names().empty());
  conversation.set_tools(R"({"tools": )" + std::string(weather_tool) + "}", "tools");
  EXPECT_EQ(conversation.tool_names().size(), 1u);
}

}  // namespace
}  // namespace m3::chat
