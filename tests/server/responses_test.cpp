// /v1/responses: the translation of bodies, refusals, the store, whole and streamed replies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "src/chat/template/json.h"
#include "src/server/responses_request.h"
#include "src/server/responses_store.h"
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

std::string call_of(const std::string& name) {
  const std::string n = "]<]minimax[>[";
  return n + "<tool_call>\n" + n + "<invoke name=\"" + name + "\">" + n + "<city>Oslo" + n + "</city>" + n +
         "</invoke>\n" + n + "</tool_call>";
}

Json tools() {
  const Json properties = {{"city", {{"type", "string"}}}};
  return {
      {{"type", "function"}, {"name", "weather"}, {"parameters", {{"type", "object"}, {"properties", properties}}}}};
}

TEST(Responses, Translation) {
  const ResponseStore store;
  for (const Json& one : data("responses_translations.json")) {
    SCOPED_TRACE(one["what"].get<std::string>());
    const chat::Value body = chat::parse_json(one["given"].dump(), "given");
    const ResponsesRequest request = read_responses_request(body, store, false);
    EXPECT_EQ(Json::parse(chat::to_json(request.chat_body, {}).bytes()), one["chat"]);
  }
}

TEST(Responses, Refusals) {
  const TestServer server(says("Hello."));
  for (const Json& one : data("responses_refusals.json")) {
    SCOPED_TRACE(one["body"].dump());
    const HttpResponse response = server.post("/v1/responses", one["body"]);
    EXPECT_EQ(response.status, one.value("status", 400)) << response.body;
    const Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("param"), one["param"]) << response.body;
    if (one.contains("code")) {
      EXPECT_EQ(error.at("code"), one["code"]);
    }
    if (one.contains("message")) {
      EXPECT_EQ(error.at("message"), one["message"]);
    }
  }
}

TEST(Responses, PackedReasoning) {
  for (const std::string& text : {std::string(), std::string("a"), std::string("ab"), std::string("abc"),
                                  std::string("größer 🙂 \n"), std::string(10'000, 'x')}) {
    EXPECT_EQ(unpack_reasoning(pack_reasoning(text)), text);
  }
  for (const char* other : {"", "gAAAA", "m3:a", "m3:!!!!", "m3:/w=="}) EXPECT_FALSE(unpack_reasoning(other)) << other;
}

TEST(Responses, TheStoreIsBounded) {
  ResponseStore store(3, 100'000);
  const auto put = [&](const std::string& id, std::size_t kilobytes) {
    store.put(id, {"", {}, {}}, 1000 * kilobytes, 0);
  };
  for (const char* id : {"a", "b", "c"}) put(id, 10);
  EXPECT_TRUE(store.get("a"));  // used, so b is the oldest now
  put("d", 10);
  EXPECT_FALSE(store.get("b"));
  EXPECT_TRUE(store.get("a"));
  put("e", 85);  // makes room by bytes
  EXPECT_TRUE(store.get("e"));
  EXPECT_EQ(store.size(), 2U);
  put("f", 101);
  EXPECT_FALSE(store.get("f"));
  EXPECT_TRUE(store.remove("e"));
  EXPECT_FALSE(store.remove("e"));
}

// A conversation's beginning is held by those that go on from it, also when the response that it came with has gone.
TEST(Responses, TheStoreCountsWhatLaterResponsesHold) {
  ResponseStore store(100, 100'000);
  for (int i = 0; i < 20; ++i) {
    const std::string first = "first " + std::to_string(i), next = "next " + std::to_string(i);
    store.put(first, {"", {}, {}}, 30'000, 0);
    store.put(next, {"", {}, store.get(first)->added}, 1000, 0);
    EXPECT_TRUE(store.remove(first));
  }
  EXPECT_EQ(store.size(), 3U);  // of 31 thousand each
  AddedList long_one;
  for (int i = 0; i < 10; ++i) {
    store.put("long", {"", {}, long_one}, 11'000, 0);
    const auto kept = store.get("long");
    EXPECT_EQ(kept.has_value(), i < 9);  // of 110 thousand it is too long
    if (kept) long_one = kept->added;
  }
}

// Many small messages are more in memory than their text, and each response has a list of all of them.
TEST(Responses, TheStoreCountsMessages) {
  ResponseStore store(1000, 1'000'000);
  store.put("empty ones", {"", {}, {}}, 10'000, 5000);
  EXPECT_FALSE(store.get("empty ones"));
  const std::vector<chat::Value> conversation(1000);
  for (int i = 0; i < 500; ++i) store.put("turn " + std::to_string(i), {"", conversation, {}}, 100, 1);
  EXPECT_LE(store.size() * conversation.size() * sizeof(chat::Value), 1'000'000U);
  EXPECT_TRUE(store.get("turn 499"));
}

TEST(Responses, WholeReply) {
  const TestServer server(says("Hello there."));
  const Json reply = server.json("/v1/responses", {{"input", "hi"}, {"metadata", {{"k", "v"}}}, {"temperature", 0.5}});
  EXPECT_EQ(reply["object"], "response");
  EXPECT_EQ(reply["status"], "completed");
  EXPECT_EQ(reply["model"], "scripted");
  EXPECT_EQ(reply["metadata"]["k"], "v");
  EXPECT_EQ(reply["temperature"], 0.5);
  EXPECT_EQ(reply["error"], nullptr);
  ASSERT_EQ(reply["output"].size(), 1U) << reply.dump();
  EXPECT_EQ(reply["output"][0]["type"], "message");
  EXPECT_EQ(reply["output"][0]["status"], "completed");
  EXPECT_EQ(reply["output"][0]["content"][0]["text"], "Hello there.");
  const Json& usage = reply["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
}

TEST(Responses, ACutReplyIsIncomplete) {
  const TestServer server(says("One two three four five six."));
  const Json reply = server.json("/v1/responses", {{"input", "hi"}, {"max_output_tokens", 3}});
  EXPECT_EQ(reply["status"], "incomplete");
  EXPECT_EQ(reply["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(reply["output"][0]["status"], "incomplete");
  EXPECT_EQ(reply["usage"]["output_tokens"], 3);
}

// Continued by id, the prompt is the one that the client would have sent whole.
TEST(Responses, ContinuesById) {
  std::vector<std::vector<TokenId>> prompts;
  const TestServer server([&](const Request& request, int) {
    prompts.push_back(request.prompt_ids);
    return ScriptedEngine::Reply{prompts.size() == 1 ? "I weigh it.</mm:think>" + call_of("weather") : "Sunny."};
  });
  const Json thinking = {{"type", "enabled"}};
  const Json first =
      server.json("/v1/responses",
                  {{"input", "weather?"}, {"instructions", "Be brief."}, {"tools", tools()}, {"thinking", thinking}});
  ASSERT_EQ(first["output"].size(), 2U) << first.dump();
  EXPECT_EQ(first["output"][0]["type"], "reasoning");
  EXPECT_EQ(first["output"][0]["content"][0]["text"], "I weigh it.");
  EXPECT_EQ(first["output"][1]["type"], "function_call");
  EXPECT_EQ(first["output"][1]["name"], "weather");
  EXPECT_EQ(Json::parse(first["output"][1]["arguments"].get<std::string>())["city"], "Oslo");
  const Json result = {{"type", "function_call_output"}, {"call_id", first["output"][1]["call_id"]}, {"output", "sun"}};

  Json second = {{"previous_response_id", first["id"]},
                 {"input", {result}},
                 {"instructions", "Be kind."},
                 {"tools", tools()},
                 {"thinking", thinking}};
  const Json stored = server.json("/v1/responses", second);
  EXPECT_EQ(stored["previous_response_id"], first["id"]);
  second.erase("previous_response_id");
  second["input"] = {{{"role", "user"}, {"content", "weather?"}}, first["output"][0], first["output"][1], result};
  server.json("/v1/responses", second);
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts[1], prompts[2]);

  const std::string path = "/v1/responses/" + first["id"].get<std::string>();
  EXPECT_EQ(Json::parse(server.get(path).body), first);
  EXPECT_EQ(Json::parse(server.connect().request("DELETE", path).body)["deleted"], true);
  EXPECT_EQ(server.get(path).status, 404);
  EXPECT_EQ(server.connect().request("DELETE", path).status, 404);
}

TEST(Responses, NotStoredWhereAskedNotTo) {
  const TestServer server(says("I weigh it.</mm:think>Hello."));
  const Json reply = server.json("/v1/responses", {{"input", "hi"},
                                                   {"store", false},
                                                   {"include", {"reasoning.encrypted_content"}},
                                                   {"thinking", {{"type", "enabled"}}}});
  EXPECT_EQ(server.get("/v1/responses/" + reply["id"].get<std::string>()).status, 404);
  EXPECT_EQ(unpack_reasoning(reply["output"][0]["encrypted_content"]), "I weigh it.");
}

TEST(Responses, StreamedEqualsWhole) {
  const TestServer server(says("I weigh it, at some length.</mm:think>Looking it up now." + call_of("weather")));
  Json body = {{"input", "hi"}, {"tools", tools()}, {"thinking", {{"type", "enabled"}}}};
  const Json whole = server.json("/v1/responses", body);
  body["stream"] = true;
  const HttpResponse response = server.post("/v1/responses", body);
  ASSERT_EQ(response.status, 200) << response.body;
  std::vector<std::string> order, texts;
  Json last;
  int number = 0;
  for (const std::string& text : response.events()) {
    last = Json::parse(text);
    const std::string type = last.at("type");
    EXPECT_EQ(last.at("sequence_number"), number++);
    EXPECT_NE(response.body.find(fmt::format("event: {}\ndata: {}", type, text)), std::string::npos);
    if (type == "response.output_item.added") texts.emplace_back();
    if (type.ends_with(".delta")) {
      EXPECT_EQ(last.at("output_index"), texts.size() - 1);
      texts.back() += last.at("delta").get<std::string>();
    }
    if (type.ends_with("_text.done")) {
      EXPECT_EQ(last.at("text"), texts.back());
    }
    if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(last.at("arguments"), texts.back());
    }
    if (order.empty() || order.back() != type) order.push_back(type.substr(std::string("response.").size()));
    if (type.ends_with(".delta") && order.size() > 1 && order.back() == order[order.size() - 2]) order.pop_back();
  }
  EXPECT_EQ(order, (std::vector<std::string>{"created", "in_progress",                                           //
                                             "output_item.added", "content_part.added", "reasoning_text.delta",  //
                                             "reasoning_text.done", "content_part.done", "output_item.done",     //
                                             "output_item.added", "content_part.added", "output_text.delta",     //
                                             "output_text.done", "content_part.done", "output_item.done",        //
                                             "output_item.added", "function_call_arguments.delta",               //
                                             "function_call_arguments.done", "output_item.done",                 //
                                             "completed"}));
  Json end = last["response"], expected = whole;
  EXPECT_EQ(Json::parse(server.get("/v1/responses/" + end["id"].get<std::string>()).body), end);
  for (Json* one : {&end, &expected}) {
    for (const char* changing : {"id", "created_at", "completed_at"}) one->erase(changing);
    for (Json& item : (*one)["output"]) {
      item.erase("id");
      item.erase("call_id");
    }
  }
  EXPECT_EQ(end, expected);
}

}  // namespace
}  // namespace m3::server
