// /v1/messages: the translation of bodies, refusals, whole and streamed replies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "src/chat/template/json.h"
#include "src/server/anthropic_request.h"
#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpResponse;
using test::Json;
using test::ScriptedEngine;
using test::TestServer;

Json data(const std::string& name) {
  std::ifstream file(std::string(M3_TEST_DATA) + "/server/" + name);
  return Json::parse(file);
}

ScriptedEngine::Script says(const std::string& text) {
  return [text](const Request&, int) { return ScriptedEngine::Reply{text}; };
}

// Two calls; one has a number that no double holds.
std::string calls() {
  const std::string n = "]<]minimax[>[";
  return n + "<tool_call>\n" + n + "<invoke name=\"weather\">" + n + "<city>Oslo" + n + "</city>" + n +
         "<station>12345678901234567890" + n + "</station>" + n + "</invoke>\n" + n + "<invoke name=\"time\">" + n +
         "</invoke>\n" + n + "</tool_call>";
}

Json body_of(const Json& more = Json::object()) {
  Json body = {{"max_tokens", 200}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

// ctest's time limit is the judge.
TEST(AnthropicRequests, ManyBlocksBecomeOneTextInOnePass) {
  std::string body = R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "first"})";
  for (int i = 0; i < 500'000; ++i) body += R"(,{"type": "text", "text": "a block"})";
  body += "]}]}";
  const AnthropicRequest request = read_anthropic_request(chat::parse_json(body, "body"), {.needs_max_tokens = false});
  const chat::Value& message = request.chat_body.as_dict().find("messages")->items().at(0);
  EXPECT_EQ(message.as_dict().find("content")->bytes().size(), 5U + 500'000U * 9U);
}

Json tools() {
  const Json number = {{"type", "integer"}}, text = {{"type", "string"}};
  return {{{"name", "weather"},
           {"input_schema", {{"type", "object"}, {"properties", {{"city", text}, {"station", number}}}}}},
          {{"name", "time"}, {"input_schema", {{"type", "object"}}}}};
}

void add_text(Json& block, const char* member, const Json& more) {
  block[member] = block[member].get<std::string>() + more.get<std::string>();
}

struct Streamed {
  std::vector<std::string> order;  // of the events; equal deltas in a row once
  std::vector<Json> blocks;
  Json start, end, usage;
};

// A stream put together as clients do it.
Streamed stream(const TestServer& server, Json body) {
  body["stream"] = true;
  const HttpResponse response = server.post("/v1/messages", body);
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.whole);
  Streamed out;
  std::string partial;
  for (const std::string& text : response.events()) {
    const Json event = Json::parse(text);
    const std::string type = event.at("type");
    EXPECT_NE(response.body.find(fmt::format("event: {}\ndata: {}", type, text)), std::string::npos) << text;
    if (type == "ping") continue;
    std::string word = type;
    if (type == "message_start") out.start = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event.at("index"), out.blocks.size());
      out.blocks.push_back(event["content_block"]);
      partial.clear();
    }
    if (type == "content_block_delta") {
      EXPECT_EQ(event.at("index"), out.blocks.size() - 1);
      const Json& delta = event["delta"];
      word = delta["type"];
      if (word == "text_delta") add_text(out.blocks.back(), "text", delta["text"]);
      if (word == "thinking_delta") add_text(out.blocks.back(), "thinking", delta["thinking"]);
      if (word == "signature_delta") out.blocks.back()["signature"] = delta["signature"];
      if (word == "input_json_delta") partial += delta["partial_json"];
    }
    if (type == "content_block_stop" && out.blocks.back()["type"] == "tool_use") {
      out.blocks.back()["input"] = Json::parse(partial);
    }
    if (type == "message_delta") {
      out.end = event["delta"];
      out.usage = event["usage"];
    }
    if (out.order.empty() || out.order.back() != word || type != "content_block_delta") out.order.push_back(word);
  }
  return out;
}

TEST(Anthropic, Translation) {
  for (const Json& one : data("anthropic_translations.json")) {
    SCOPED_TRACE(one["what"].get<std::string>());
    const chat::Value body = chat::parse_json(one["given"].dump(), "given");
    const AnthropicRequest request = read_anthropic_request(body, {});
    EXPECT_EQ(Json::parse(chat::to_json(request.chat_body, {}).bytes()), one["chat"]);
  }
}

TEST(Anthropic, NumbersKeepTheirDigits) {
  const std::string text =
      R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f",
          "input": {"n": 12345678901234567890123}}]}]})";
  const AnthropicRequest request = read_anthropic_request(chat::parse_json(text, "body"), {});
  EXPECT_NE(chat::to_json(request.chat_body, {}).bytes().find("{\"n\": 12345678901234567890123}"), std::string::npos);
}

TEST(Anthropic, Refusals) {
  const TestServer server(says("Hello."));
  for (const Json& one : data("anthropic_refusals.json")) {
    SCOPED_TRACE(one["body"].dump());
    const HttpResponse response = server.post("/v1/messages", one["body"]);
    EXPECT_EQ(response.status, one["status"]) << response.body;
    const Json error = Json::parse(response.body);
    EXPECT_EQ(error.at("type"), "error");
    EXPECT_EQ(error.at("error").at("type"), response.status == 404 ? "not_found_error" : "invalid_request_error");
    EXPECT_EQ(error.at("request_id"), response.headers.at("x-request-id"));
    const std::string message = error["error"].at("message");
    EXPECT_TRUE(message.starts_with(one["begins"].get<std::string>())) << message;
  }
}

TEST(Anthropic, KeysHeadersAndQuery) {
  ServerOptions options;
  options.api_keys = {"sesame"};
  const TestServer server(says("Hello."), options);
  const HttpResponse none = server.post("/v1/messages", body_of());
  EXPECT_EQ(none.status, 401);
  const Json error = Json::parse(none.body)["error"];
  EXPECT_EQ(error["type"], "authentication_error");
  EXPECT_NE(error["message"].get<std::string>().find("\"x-api-key: KEY\""), std::string::npos) << error;
  const HttpResponse with = server.connect().request(
      "POST", "/v1/messages?beta=true", body_of().dump(),
      {"x-api-key: sesame", "anthropic-version: 2023-06-01", "anthropic-beta: interleaved-thinking-2025-05-14"});
  EXPECT_EQ(with.status, 200) << with.body;
}

TEST(Anthropic, WholeReply) {
  const TestServer server(says("Hello there."));
  const Json reply = server.json("/v1/messages", body_of());
  EXPECT_EQ(reply["type"], "message");
  EXPECT_EQ(reply["role"], "assistant");
  EXPECT_EQ(reply["model"], "scripted");
  EXPECT_TRUE(reply["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(reply["content"], Json::parse(R"([{"type": "text", "text": "Hello there."}])"));
  EXPECT_EQ(reply["stop_reason"], "end_turn");
  EXPECT_EQ(reply["stop_sequence"], nullptr);
  EXPECT_GT(reply["usage"]["input_tokens"], 0);
  EXPECT_GT(reply["usage"]["output_tokens"], 0);
  EXPECT_EQ(reply["usage"]["cache_read_input_tokens"], 0);
  EXPECT_EQ(reply["usage"]["cache_creation_input_tokens"], 0);
}

TEST(Anthropic, ThinkingIsThereWhenAskedFor) {
  const TestServer server(says("I weigh it.</mm:think>Yes."));
  const Json asked = server.json("/v1/messages", body_of({{"thinking", {{"type", "enabled"}}}}));
  ASSERT_EQ(asked["content"].size(), 2U) << asked.dump();
  EXPECT_EQ(asked["content"][0]["type"], "thinking");
  EXPECT_EQ(asked["content"][0]["thinking"], "I weigh it.");
  EXPECT_FALSE(asked["content"][0]["signature"].get<std::string>().empty());
  EXPECT_EQ(asked["content"][1]["text"], "Yes.");
  const Json omitted =
      server.json("/v1/messages", body_of({{"thinking", {{"type", "enabled"}, {"display", "omitted"}}}}));
  EXPECT_EQ(omitted["content"], Json::parse(R"([{"type": "text", "text": "Yes."}])"));
}

TEST(Anthropic, ToolUse) {
  const TestServer server(says("Looking." + calls()));
  const HttpResponse response = server.post("/v1/messages", body_of({{"tools", tools()}}));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_NE(response.body.find("12345678901234567890"), std::string::npos) << response.body;
  const Json reply = Json::parse(response.body);
  ASSERT_EQ(reply["content"].size(), 3U) << reply.dump();
  EXPECT_EQ(reply["content"][0]["text"], "Looking.");
  EXPECT_EQ(reply["content"][1]["type"], "tool_use");
  EXPECT_EQ(reply["content"][1]["name"], "weather");
  EXPECT_EQ(reply["content"][1]["input"]["city"], "Oslo");
  EXPECT_EQ(reply["content"][2]["input"], Json::object());
  EXPECT_TRUE(reply["content"][1]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_NE(reply["content"][1]["id"], reply["content"][2]["id"]);
  EXPECT_EQ(reply["stop_reason"], "tool_use");

  const Json choice = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  const Json one = server.json("/v1/messages", body_of({{"tools", tools()}, {"tool_choice", choice}}));
  EXPECT_EQ(one["content"].size(), 2U) << one.dump();
}

TEST(Anthropic, StopReasons) {
  const TestServer server(says("One two three four five six seven."));
  EXPECT_EQ(server.json("/v1/messages", body_of({{"max_tokens", 3}}))["stop_reason"], "max_tokens");
  const TestServer full([](const Request&, int) {
    return ScriptedEngine::Reply{"One two.", std::chrono::microseconds(0), FinishReason::length};
  });
  EXPECT_EQ(full.json("/v1/messages", body_of())["stop_reason"], "model_context_window_exceeded");
}

TEST(Anthropic, StreamedEqualsWhole) {
  const TestServer server(says("I weigh it, at some length.</mm:think>Looking it up now." + calls()));
  const Json body = body_of({{"tools", tools()}, {"thinking", {{"type", "enabled"}, {"budget_tokens", 100}}}});
  const Json whole = server.json("/v1/messages", body);
  const Streamed streamed = stream(server, body);
  EXPECT_EQ(streamed.order, (std::vector<std::string>{
                                "message_start", "content_block_start", "thinking_delta", "signature_delta",
                                "content_block_stop", "content_block_start", "text_delta", "content_block_stop",
                                "content_block_start", "input_json_delta", "content_block_stop", "content_block_start",
                                "input_json_delta", "content_block_stop", "message_delta", "message_stop"}));
  ASSERT_EQ(streamed.blocks.size(), whole["content"].size());
  for (std::size_t i = 0; i < streamed.blocks.size(); ++i) {
    Json block = streamed.blocks[i], expected = whole["content"][i];
    for (const char* random : {"id", "signature"}) {
      EXPECT_EQ(block.contains(random), expected.contains(random));
      if (block.contains(random)) {
        EXPECT_FALSE(block[random].get<std::string>().empty());
      }
      block.erase(random);
      expected.erase(random);
    }
    EXPECT_EQ(block, expected);
  }
  EXPECT_EQ(streamed.end["stop_reason"], "tool_use");
  EXPECT_EQ(streamed.usage, whole["usage"]);
  EXPECT_EQ(streamed.start["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
  EXPECT_EQ(streamed.start["content"], Json::array());
}

TEST(Anthropic, AnEngineThatDiesIsAnErrorEvent) {
  TestServer server([](const Request&, int) {
    return ScriptedEngine::Reply{"One two three four five six seven eight.", std::chrono::milliseconds(50)};
  });
  test::HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/messages", body_of({{"stream", true}}).dump()));
  EXPECT_EQ(client.receive_head().status, 200);
  std::string last;
  while (const auto event = client.next_event()) {
    last = *event;
    if (last.find("text_delta") != std::string::npos) server.engine().die();
  }
  const Json error = Json::parse(last);
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "api_error");
}

TEST(Anthropic, CountsTokensAsTheReplyDoes) {
  const TestServer server(says("Hello."));
  for (const Json& more : {Json::object(), Json{{"system", "Be brief, and kind."}}, Json{{"tools", tools()}},
                           Json{{"thinking", {{"type", "enabled"}}}}}) {
    Json body = body_of(more);
    const Json reply = server.json("/v1/messages", body);
    body.erase("max_tokens");
    EXPECT_EQ(server.json("/v1/messages/count_tokens", body)["input_tokens"], reply["usage"]["input_tokens"]);
  }
  const Json other = {{"model", "other"}, {"messages", body_of()["messages"]}};
  EXPECT_EQ(server.post("/v1/messages/count_tokens", other).status, 404);
}

}  // namespace
}  // namespace m3::server
