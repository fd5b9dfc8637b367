// Request bodies, normalised or refused, as tests/data/chat/request_cases.json says.
#include "src/chat/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "m3/error.h"
#include "src/base/mapped_file.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

std::string error_of(const std::string& body) {
  try {
    parse_chat_request(parse_json(body, "request"));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

const Value* member(const Value& dict, const char* name) { return dict.as_dict().find(name); }

bool option(const Value& entry, const char* name, bool otherwise) {
  const Value* options = member(entry, "options");
  const Value* value = options == nullptr ? nullptr : member(*options, name);
  return value == nullptr ? otherwise : value->as_bool();
}

std::string choice_name(const ToolChoice& choice) {
  switch (choice.kind) {
    case ToolChoice::Kind::automatic: return "auto";
    case ToolChoice::Kind::none: return "none";
    case ToolChoice::Kind::required: return "required";
    case ToolChoice::Kind::named: return choice.name;
  }
  return "";
}

std::string mode_name(ThinkingMode mode) {
  return mode == ThinkingMode::enabled ? "enabled" : mode == ThinkingMode::disabled ? "disabled" : "adaptive";
}

void check(const Value& entry) {
  const ChatRequestOptions defaults;
  ChatRequest request;
  try {
    request =
        parse_chat_request(*member(entry, "request"),
                           {.refuse_late_system = option(entry, "refuse_late_system", defaults.refuse_late_system),
                            .check_tool_results = option(entry, "check_tool_results", defaults.check_tool_results)});
  } catch (const Error& error) {
    ASSERT_NE(member(entry, "error"), nullptr) << error.what();
    EXPECT_THAT(error.what(), testing::StartsWith(member(entry, "error")->bytes()));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return;
  }
  EXPECT_EQ(member(entry, "error"), nullptr) << "accepted";
  if (const Value* messages = member(entry, "messages")) {
    EXPECT_EQ(to_json(request.messages, {}).bytes(), to_json(*messages, {}).bytes());
  }
  if (const Value* mode = member(entry, "mode")) {
    EXPECT_EQ(mode_name(request.mode()), mode->bytes());
  }
  if (const Value* given = member(entry, "given")) {
    EXPECT_EQ(request.thinking.has_value(), given->as_bool());
  }
  if (const Value* choice = member(entry, "choice")) {
    EXPECT_EQ(choice_name(request.tool_choice), choice->bytes());
  }
}

TEST(Messages, StoredRequests) {
  const Value cases =
      parse_json(read_text_file(M3_TEST_DATA "/chat/request_cases.json", std::size_t{1} << 20), "request_cases.json");
  ASSERT_GE(cases.items().size(), 100u);
  for (const Value& entry : cases.items()) {
    SCOPED_TRACE(member(entry, "name")->bytes());
    check(entry);
  }
}

TEST(Messages, AFormThatIsRefusedIsNone) {
  const auto form = [](const std::string& outputs) {
    return parse_chat_request(
               parse_json(R"({"messages": [{"role": "user", "content": "x"}], "structured_outputs": )" + outputs + "}",
                          "request"))
        .answer;
  };
  EXPECT_EQ(form(R"({"json_object": false})"), AnswerForm::free);
  EXPECT_EQ(form(R"({"json_object": null})"), AnswerForm::free);
  EXPECT_EQ(form(R"({"json_object": true})"), AnswerForm::held);
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

TEST(Messages, LongArgumentsAndResultsAreServed) {
  const std::string arguments = R"({\"text\": \")" + std::string(10000, 'a') + R"(\"})";
  std::string result;
  while (result.size() < 50000) result += "<b>{\\\"a\\\": 1}</b> 🎉 ";
  const std::string body =
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [
      {"id": "a", "type": "function", "function": {"name": "f", "arguments": ")" +
      arguments + R"("}}]}, {"role": "tool", "tool_call_id": "a", "content": ")" + result + "\"}]}";
  EXPECT_EQ(error_of(body), "no error");
}

// A body of 64 MB may hold a million messages; ctest's time limit is the judge.
TEST(Messages, ManySystemMessagesBecomeOneInOnePass) {
  std::string body = R"({"messages": [)";
  constexpr int count = 400'000;
  for (int i = 0; i < count; ++i) {
    body += i % 2 == 0 ? R"({"role": "system", "content": ["x"]},)" : R"({"role": "developer", "content": "y"},)";
  }
  body += R"({"role": "user", "content": "hi"}]})";
  const ChatRequest request = parse_chat_request(parse_json(body, "request"));
  ASSERT_EQ(request.messages.items().size(), 2U);
  const std::vector<Value>& parts = member(request.messages.items()[0], "content")->items();
  ASSERT_EQ(parts.size(), 2U * count - 1);
  EXPECT_EQ(member(parts[0], "text")->bytes(), "x");
  EXPECT_EQ(member(parts[1], "text")->bytes(), "\n\n");
  EXPECT_EQ(member(parts[2], "text")->bytes(), "y");
}

TEST(Messages, SystemTextsAreJoinedAndEmptyOnesLeftOut) {
  const ChatRequest request = parse_chat_request(parse_json(
      R"({"messages": [{"role": "system", "content": ""}, {"role": "system", "content": "a"},
          {"role": "user", "content": "hi"}, {"role": "system", "content": null}, {"role": "system", "content": "b"},
          {"role": "system", "content": [{"type": "text", "text": "c"}]}]})",
      "request"));
  ASSERT_EQ(request.messages.items().size(), 2U);
  const std::vector<Value>& parts = member(request.messages.items()[0], "content")->items();
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(member(parts[0], "text")->bytes(), "a\n\nb");
  EXPECT_EQ(member(parts[2], "text")->bytes(), "c");
}

TEST(Messages, ManyResultsInAnyOrderFindTheirCalls) {
  constexpr int count = 100'000;
  std::string body = R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "id": "0"})";
  for (int i = 1; i < count; ++i) body += R"(,{"function": {"name": "f"}, "id": ")" + std::to_string(i) + "\"}";
  body += "]}";
  for (int i = count - 1; i > 0; --i) body += R"(,{"role": "tool", "tool_call_id": ")" + std::to_string(i) + "\"}";
  EXPECT_THAT(error_of(body + "]}"), testing::HasSubstr("1 of them without a result (the first has the id '0')"));
  EXPECT_EQ(error_of(body + R"(,{"role": "tool", "tool_call_id": "0"}]})"), "no error");
  EXPECT_EQ(error_of(body + R"(,{"role": "tool"}]})"), "no error");
  EXPECT_THAT(error_of(body + R"(,{"role": "tool", "tool_call_id": "7"}]})"), testing::HasSubstr("no open call"));
}

}  // namespace
}  // namespace m3::chat
