#include "src/chat/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "m3/error.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

ChatRequest parse(const std::string& body, const ChatRequestOptions& options = {}) {
  return parse_chat_request(parse_json(body, "request"), options);
}

std::string messages_of(const std::string& messages) {
  return to_json(parse("{\"messages\": " + messages + "}").messages, {}).bytes();
}

std::string error_of(const std::string& body, const ChatRequestOptions& options = {}) {
  try {
    parse(body, options);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

std::string user_with(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "x"}], )" + more + "}";
}

TEST(Messages, ArgumentsAreParsed) {
  EXPECT_EQ(
      messages_of(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1.0}"}},
                            {"function": {"name": "g", "arguments": ""}}, {"name": "h"}]}])"),
      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.0}}}, )"
      R"({"function": {"name": "g", "arguments": {}}}, {"name": "h", "arguments": {}}]}])");
}

TEST(Messages, PartsAreRenamed) {
  EXPECT_EQ(messages_of(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}},
                            {"type": "video_url"}, {"type": "text", "text": "t"}]}])"),
            R"([{"role": "user", "content": [{"type": "image", "image_url": {"url": "u"}}, {"type": "video"}, )"
            R"({"type": "text", "text": "t"}]}])");
}

TEST(Messages, LaterSystemTextsJoinTheFirst) {
  EXPECT_EQ(messages_of(R"([{"role": "root", "content": "r"}, {"role": "system", "content": "a"},
                            {"role": "user", "content": "u"}, {"role": "developer", "content": "b"},
                            {"role": "system", "content": ""}, {"role": "system", "content": "c"}])"),
            R"([{"role": "root", "content": "r"}, {"role": "system", "content": "a\n\nb\n\nc"}, )"
            R"({"role": "user", "content": "u"}])");
  EXPECT_EQ(messages_of(R"([{"role": "user", "content": "u"}, {"role": "developer", "content": "b"}])"),
            R"([{"role": "developer", "content": "b"}, {"role": "user", "content": "u"}])");
  EXPECT_EQ(messages_of(R"([{"role": "system", "content": ""}, {"role": "system", "content": "b"}])"),
            R"([{"role": "system", "content": "b"}])");
  EXPECT_EQ(messages_of(R"([{"role": "system", "content": [{"type": "image"}]}, {"role": "system", "content": "b"}])"),
            R"([{"role": "system", "content": [{"type": "image"}, {"type": "text", "text": "\n\n"}, )"
            R"({"type": "text", "text": "b"}]}])");
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "b"}]})",
                       {.refuse_late_system = true}),
              testing::HasSubstr("messages[1].role"));
}

TEST(Messages, NullsAreDroppedAndReasoningFound) {
  EXPECT_EQ(messages_of(R"([{"role": "assistant", "content": null, "reasoning": "r", "x": null}, {"role": "tool"},
                            {"role": "tool", "content": null}])"),
            R"([{"role": "assistant", "reasoning": "r", "reasoning_content": "r"}, {"role": "tool", "content": ""}, )"
            R"({"role": "tool", "content": ""}])");
}

TEST(Messages, BadInputNamesTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "the request: expected a JSON object"},
      {"{}", "messages: missing"},
      {R"({"messages": {}})", "messages: expected a list, found an object"},
      {R"({"messages": []})", "messages: at least one"},
      {R"({"messages": ["x"]})", "messages[0]: expected an object, found a string"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role: expected a string"},
      {R"({"messages": [{"role": "bot", "content": "x"}]})", "messages[0].role: unknown role 'bot'"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content: missing"},
      {R"({"messages": [{"role": "user", "content": 5}]})",
       "messages[0].content: expected a string or a list of parts"},
      {R"({"messages": [{"role": "tool", "content": {"a": 1}}]})", "messages[0].content: expected a string or a list"},
      {R"({"messages": [{"role": "user", "content": [5]}]})", "messages[0].content[0]: expected a content part"},
      {R"({"messages": [{"role": "user", "content": [{"type": "audio"}]}]})",
       "messages[0].content[0].type: unknown part"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text: expected"},
      {R"({"messages": [{"role": "user", "content": "x", "tool_calls": []}]})",
       "messages[0].tool_calls: only assistant"},
      {R"({"messages": [{"role": "assistant", "tool_calls": {}}]})", "messages[0].tool_calls: expected a list"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]})",
       "messages[0].tool_calls[0].function.arguments is not valid JSON"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]})",
       "messages[0].tool_calls[0].function.arguments: the JSON text holds a list"},
      {R"({"messages": [{"role": "assistant", "content": "x", "reasoning_content": 1}]})",
       "messages[0].reasoning_content"},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": "root", "content": "x"}]})",
       "messages[1].role: a root"},
      {R"({"messages": [{"role": "root", "content": "x"}, {"role": "root", "content": "x"}]})",
       "messages[1].role: a root"},
      {user_with(R"("tools": {})"), "tools: expected a list"},
      {user_with(R"("tools": [{"type": "function"}])"), "tools[0].function: missing"},
      {user_with(R"("tools": [{"type": "web", "function": {"name": "f"}}])"), "tools[0].type"},
      {user_with(R"("tools": [{"function": {"name": ""}}])"), "tools[0].function.name"},
      {user_with(R"("tools": [{"function": {"name": "f", "parameters": []}}])"),
       "tools[0].function.parameters: expected"},
      {user_with(R"("tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}}])"),
       "tools[0].function.parameters.properties.a.type"},
      {user_with(R"("tools": [{"function": {"name": "f", "parameters": {"anyOf": 1}}}])"),
       "tools[0].function.parameters.anyOf"},
      {user_with(R"("tool_choice": "required")"), "tool_choice: 'required' needs tools"},
      {user_with(R"("tool_choice": "any")"), "tool_choice: 'any' is unknown"},
      {user_with(R"("tool_choice": {"type": "function", "function": {"name": "g"}})"),
       "tool_choice.function.name: no tool"},
      {user_with(R"("chat_template_kwargs": [])"), "chat_template_kwargs: expected an object"},
      {user_with(R"("chat_template_kwargs": {"thinking_mode": "maybe"})"),
       "chat_template_kwargs.thinking_mode: unknown thinking mode 'maybe'"},
      {user_with(R"("chat_template_kwargs": {"thinking_mode": 1})"), "chat_template_kwargs.thinking_mode: expected"},
      {user_with(R"("chat_template_kwargs": {"enable_thinking": "yes"})"),
       "chat_template_kwargs.enable_thinking: expected"},
      {user_with(R"("chat_template_kwargs": {"enable_thinking": true, "thinking_mode": "disabled"})"),
       "asks for thinking enabled"},
      {user_with(R"("chat_template_kwargs": {"messages": []})"), "chat_template_kwargs.messages"},
      {user_with(R"("thinking": {"type": "always"})"), "thinking.type: unknown"},
      {user_with(R"("add_generation_prompt": 1)"), "add_generation_prompt: expected true or false"},
      {user_with(R"("continue_final_message": true, "add_generation_prompt": true)"),
       "continue_final_message: contradicts"},
  };
  for (const auto& [body, expected] : cases) EXPECT_THAT(error_of(body), testing::HasSubstr(expected)) << body;
}

TEST(Messages, DeepNestingIsAnErrorNotACrash) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THROW(parse_json(deep, "x"), Error);
  std::string arguments(396, '[');
  arguments += std::string(396, ']');
  EXPECT_THAT(
      error_of(
          R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": )" +
          arguments + R"(}"}}]}]})"),
      testing::HasSubstr("nested"));
}

TEST(Messages, ThinkingModes) {
  EXPECT_EQ(parse(user_with(R"("stream": true)")).thinking, std::nullopt);
  EXPECT_EQ(parse(user_with(R"("chat_template_kwargs": {"enable_thinking": true})")).mode(), ThinkingMode::enabled);
  EXPECT_EQ(parse(user_with(R"("chat_template_kwargs": {"enable_thinking": false})")).mode(), ThinkingMode::disabled);
  EXPECT_EQ(parse(user_with(R"("thinking": {"type": "disabled"})")).mode(), ThinkingMode::disabled);
  EXPECT_EQ(parse(user_with(R"("reasoning_effort": "none")")).mode(), ThinkingMode::disabled);
  EXPECT_EQ(parse(user_with(R"("reasoning_effort": "high")")).mode(), ThinkingMode::adaptive);
}

TEST(Messages, ToolResultsCanBeChecked) {
  const ChatRequestOptions strict{.check_tool_results = true};
  const auto body = [](const std::string& results) {
    return R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
      {"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "f"}}]})" +
           results + "]}";
  };
  EXPECT_EQ(error_of(body(R"(, {"role": "tool", "tool_call_id": "b"}, {"role": "tool", "tool_call_id": "a"})"), strict),
            "no error");
  EXPECT_THAT(error_of(body(R"(, {"role": "tool", "tool_call_id": "c"})"), strict),
              testing::HasSubstr("messages[2].tool_call_id"));
  EXPECT_THAT(error_of(body(R"(, {"role": "tool", "tool_call_id": "a"})"), strict),
              testing::HasSubstr("call 'b' has no result"));
  EXPECT_THAT(
      error_of(body(R"(, {"role": "tool", "tool_call_id": "a"}, {"role": "tool", "tool_call_id": "a"})"), strict),
      testing::HasSubstr("messages[3].tool_call_id"));
}

}  // namespace
}  // namespace m3::chat
