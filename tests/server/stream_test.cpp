// Replies, streamed and whole, on scripted text.
#include <gtest/gtest.h>

#include "tests/support/chat_replies.h"

namespace m3::server {
namespace {

using test::characters;
using test::chat_body;
using test::HttpResponse;
using test::invoke;
using test::Json;
using test::stream_chat;
using test::StreamedChat;
using test::TestServer;
using test::tool_block;
using test::weather_tool;

class Replies : public testing::Test {
 protected:
  Replies() : server([this](const Request&, int) { return reply; }) {}
  Json message(const Json& body) { return server.json("/v1/chat/completions", body)["choices"][0]; }
  test::ScriptedEngine::Reply reply{"Hello there."};
  TestServer server;
};

TEST_F(Replies, StreamedAndWholeAgree) {
  reply.text =
      "<mm:think>I should greet.</mm:think>Hello there! 😀👩‍👩‍👧‍👦 Ça va? 漢字かな交じり文";
  const Json whole = server.json("/v1/chat/completions", chat_body());
  const StreamedChat streamed = stream_chat(server, chat_body({{"stream_options", {{"include_usage", true}}}}));
  const Json& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Hello there! 😀👩‍👩‍👧‍👦 Ça va? 漢字かな交じり文");
  EXPECT_EQ(message["reasoning_content"], "I should greet.");
  EXPECT_EQ(streamed.content, message["content"].get<std::string>());
  EXPECT_EQ(streamed.reasoning, message["reasoning_content"].get<std::string>());
  EXPECT_EQ(streamed.finish, "stop");
  EXPECT_EQ(streamed.usages, 1);
  EXPECT_EQ(streamed.usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
  EXPECT_EQ(streamed.usage["completion_tokens"], whole["usage"]["completion_tokens"]);
  EXPECT_GT(streamed.usage["prompt_tokens"], 0);
  EXPECT_EQ(streamed.usage["total_tokens"],
            streamed.usage["prompt_tokens"].get<int>() + streamed.usage["completion_tokens"].get<int>());
  EXPECT_EQ(streamed.content.find("\xEF\xBF\xBD"), std::string::npos);
}

TEST_F(Replies, PacketsHaveTheSizesThatTheVerifierCounts) {
  for (int i = 0; i < 300; ++i) reply.text += i % 7 == 0 ? " a" : i % 5 == 0 ? "😀" : " story";
  reply.token_time = std::chrono::milliseconds(1);
  const StreamedChat streamed = stream_chat(server, chat_body());
  std::size_t tiny = 0;
  for (const std::string& part : streamed.content_parts) {
    if (characters(part) < 5) ++tiny;
    EXPECT_LE(characters(part), 200u);
  }
  EXPECT_LE(tiny * 20, streamed.content_parts.size());
  EXPECT_GT(streamed.content_parts.size(), 20u);
}

TEST_F(Replies, CallsStreamByIndexWithIds) {
  const std::string city = std::string(3000, 'x') + " \"quoted\" \\ 漢";
  reply.text = "Let me look." + tool_block(invoke("get_weather", city) + invoke("other-tool.v2", "Rome"));
  const Json body = chat_body({{"tools", {weather_tool("get_weather"), weather_tool("other-tool.v2")}}});
  const StreamedChat streamed = stream_chat(server, body);
  EXPECT_EQ(streamed.content, "Let me look.");
  EXPECT_EQ(streamed.finish, "tool_calls");
  ASSERT_EQ(streamed.calls.size(), 2u);
  EXPECT_NE(streamed.calls[0]["id"], streamed.calls[1]["id"]);
  EXPECT_EQ(Json::parse(streamed.calls[0]["arguments"].get<std::string>()), (Json{{"city", city}, {"days", 3}}));
  EXPECT_EQ(streamed.calls[1]["name"], "other-tool.v2");
  for (const std::string& part : streamed.argument_parts) EXPECT_LE(characters(part), 200u);
  EXPECT_GT(streamed.argument_parts.size(), 15u);
  const Json whole = message(body);
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], streamed.calls[0]["arguments"]);
  EXPECT_EQ(whole["message"]["tool_calls"][1]["type"], "function");
}

TEST_F(Replies, ACallAloneHasNoContent) {
  reply.text = tool_block(invoke("get_weather", "Rome"));
  EXPECT_TRUE(message(chat_body({{"tools", {weather_tool("get_weather")}}}))["message"]["content"].is_null());
}

TEST_F(Replies, UndeclaredToolsAreStillCalls) {
  reply.text = tool_block(invoke("nobody_knows", "Rome"));
  EXPECT_EQ(message(chat_body())["message"]["tool_calls"][0]["function"]["name"], "nobody_knows");
  EXPECT_EQ(message(chat_body({{"tools", {weather_tool("a")}}}))["message"]["tool_calls"][0]["function"]["name"],
            "nobody_knows");
}

TEST_F(Replies, ToolChoiceNoneFiresNothing) {
  reply.text = "Text." + tool_block(invoke("get_weather", "Rome"));
  const Json choice = message(chat_body({{"tools", {weather_tool("get_weather")}}, {"tool_choice", "none"}}));
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(Replies, OneCallAtMostWhereAskedFor) {
  reply.text = tool_block(invoke("get_weather", "Rome") + invoke("get_weather", "Oslo"));
  const Json body = chat_body({{"tools", {weather_tool("get_weather")}}, {"parallel_tool_calls", false}});
  EXPECT_EQ(message(body)["message"]["tool_calls"].size(), 1u);
}

TEST_F(Replies, ReasoningWhereItIsAskedFor) {
  reply.text = "<mm:think>Hm, well.</mm:think>Yes indeed.";
  EXPECT_EQ(message(chat_body({{"reasoning_split", false}}))["message"]["content"],
            "<think>Hm, well.</think>Yes indeed.");
  EXPECT_EQ(stream_chat(server, chat_body({{"reasoning_split", false}})).content,
            "<think>Hm, well.</think>Yes indeed.");
  EXPECT_FALSE(message(chat_body({{"include_reasoning", false}}))["message"].contains("reasoning_content"));
  reply.text = "Hm, well.</mm:think>Yes indeed.";
  const Json choice = message(chat_body({{"thinking", {{"type", "enabled"}}}}));
  EXPECT_EQ(choice["message"]["reasoning_content"], "Hm, well.");
  EXPECT_EQ(choice["message"]["content"], "Yes indeed.");
}

TEST_F(Replies, LengthIsExact) {
  reply.text = "one two three four five six seven eight nine ten";
  for (const int limit : {1, 2, 5}) {
    const Json whole =
        server.json("/v1/chat/completions", chat_body({{"max_tokens", 500}, {"max_completion_tokens", limit}}));
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(whole["usage"]["completion_tokens"], limit);
  }
}

TEST_F(Replies, LogprobsComeWithTheirTokens) {
  reply.text = "Hello there, my friend 😀!";
  const Json body = chat_body({{"logprobs", true}, {"top_logprobs", 2}});
  const Json entries = message(body)["logprobs"]["content"];
  std::string joined;
  for (const Json& entry : entries) {
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
    for (const Json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(joined, reply.text);
  Json streamed_body = body;
  streamed_body["stream"] = true;
  Json streamed = Json::array();
  for (const std::string& event : server.post("/v1/chat/completions", streamed_body).events()) {
    if (event == "[DONE]") continue;
    const Json logprobs = Json::parse(event)["choices"][0]["logprobs"];
    if (!logprobs.is_null()) streamed.insert(streamed.end(), logprobs["content"].begin(), logprobs["content"].end());
  }
  EXPECT_EQ(streamed, entries);
}

TEST_F(Replies, SamplesKeepApart) {
  TestServer two([](const Request&, int sample) {
    return test::ScriptedEngine::Reply{sample == 0 ? "zero zero zero zero" : "one one one one"};
  });
  EXPECT_EQ(stream_chat(two, chat_body({{"n", 2}}), 0).content, "zero zero zero zero");
  EXPECT_EQ(stream_chat(two, chat_body({{"n", 2}}), 1).content, "one one one one");
  const Json whole = two.json("/v1/chat/completions", chat_body({{"n", 2}}));
  EXPECT_EQ(whole["choices"][1]["message"]["content"], "one one one one");
  EXPECT_EQ(whole["choices"][1]["index"], 1);
}

TEST_F(Replies, CompletionsOfSeveralPrompts) {
  TestServer echo([](const Request& request, int sample) {
    return test::ScriptedEngine::Reply{" #" + std::to_string(request.prompt_ids.front()) + "." +
                                       std::to_string(sample)};
  });
  const Json whole = echo.json("/v1/completions", {{"prompt", {{5, 6}, {7}}}, {"n", 2}, {"max_tokens", 50}});
  ASSERT_EQ(whole["choices"].size(), 4u);
  EXPECT_EQ(whole["choices"][0]["text"], " #5.0");
  EXPECT_EQ(whole["choices"][3]["text"], " #7.1");
  EXPECT_EQ(whole["choices"][3]["index"], 3);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 3);
  std::map<int, std::string> texts;
  const HttpResponse streamed = echo.post(
      "/v1/completions", {{"prompt", {{5, 6}, {7}}}, {"n", 2}, {"max_tokens", 50}, {"stream", true}, {"echo", true}});
  for (const std::string& event : streamed.events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(texts.size(), 4u);
  EXPECT_TRUE(texts[3].ends_with(" #7.1"));
  EXPECT_EQ(texts[2].substr(0, texts[2].find(" #")), texts[3].substr(0, texts[3].find(" #")));
}

TEST_F(Replies, AStreamedCompletionSaysItsPromptOnce) {
  const HttpResponse response = server.post(
      "/v1/completions", {{"prompt", {{5, 6}, {7}}}, {"return_token_ids", true}, {"max_tokens", 5}, {"stream", true}});
  std::map<int, std::vector<std::string>> prompts;
  for (const std::string& event : response.events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    EXPECT_TRUE(choice.contains("token_ids"));
    if (choice.contains("prompt_token_ids")) prompts[choice["index"]].push_back(choice["prompt_token_ids"].dump());
  }
  EXPECT_EQ(prompts, (std::map<int, std::vector<std::string>>{{0, {"[5,6]"}}, {1, {"[7]"}}}));
}

TEST_F(Replies, TruncatedPromptsKeepTheirEnd) {
  const Json whole = server.json(
      "/v1/completions",
      {{"prompt", {{5, 6, 7}, {8}}}, {"truncate_prompt_tokens", 2}, {"return_token_ids", true}, {"max_tokens", 2}});
  EXPECT_EQ(whole["choices"][0]["prompt_token_ids"].dump(), "[6,7]");
  EXPECT_EQ(whole["choices"][1]["prompt_token_ids"].dump(), "[8]");
  Json long_prompt = {{"prompt", std::vector<int>(5000, 300)}, {"max_tokens", 96}};
  EXPECT_EQ(server.post("/v1/completions", long_prompt).status, 400);
  long_prompt["truncate_prompt_tokens"] = -1;  // all that the context of 4096 leaves beside the reply
  EXPECT_EQ(server.json("/v1/completions", long_prompt)["usage"]["prompt_tokens"].get<int>(), 4000);
  EXPECT_EQ(server.json("/v1/chat/completions", chat_body({{"truncate_prompt_tokens", 9}}))["usage"]["prompt_tokens"]
                .get<int>(),
            9);
}

TEST_F(Replies, BadWordsAreBannedAsBeginningsAndInRunningText) {
  std::vector<std::vector<TokenId>> banned;
  TestServer keeps([&](const Request& request, int) {
    banned = request.sampling.banned;
    return test::ScriptedEngine::Reply{"Hi."};
  });
  keeps.json("/v1/chat/completions", chat_body({{"bad_words", {" whale"}}}));
  const auto ids = [&](const std::string& text) { return keeps.server().model().engine->encode(text, true); };
  EXPECT_EQ(banned, (std::vector<std::vector<TokenId>>{ids("whale"), ids(" whale")}));
}

TEST_F(Replies, AFragmentIsNotHeldBackForEver) {
  reply = {"Hello there", std::chrono::milliseconds(150)};
  Json body = chat_body({{"stream", true}});
  test::HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/chat/completions", body.dump()));
  ASSERT_EQ(client.receive_head().status, 200);
  int parts = 0;
  while (const auto event = client.next_event()) {
    if (*event == "[DONE]") break;
    if (!Json::parse(*event)["choices"][0]["delta"].value("content", "").empty()) ++parts;
  }
  EXPECT_GE(parts, 2);  // a token each, since they are further apart than a fragment waits
}

TEST_F(Replies, ParseAndRenderAlone) {
  const Json parsed =
      server.json("/v1/chat/parse", {{"text", "Hi" + tool_block(invoke("get_weather", "Rome"))},
                                     {"request", chat_body({{"tools", {weather_tool("get_weather")}}})}});
  EXPECT_EQ(parsed["content"], "Hi");
  EXPECT_EQ(parsed["tool_calls"][0]["name"], "get_weather");
  const Json rendered = server.json("/v1/chat/render", chat_body());
  const Json tokens = server.json("/tokenize", chat_body());
  EXPECT_EQ(rendered["token_ids"], tokens["tokens"]);
  EXPECT_EQ(server.json("/detokenize", {{"tokens", tokens["tokens"]}})["prompt"], rendered["prompt"]);
}

TEST_F(Replies, AbortById) {
  reply = {std::string(3000, 'x'), std::chrono::milliseconds(5)};
  test::HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/chat/completions", chat_body().dump(), {"X-Request-Id: mine"}));
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 1; }));
  EXPECT_EQ(server.json("/abort_requests", {{"request_ids", {"mine"}}})["aborted"], 1);
  const HttpResponse response = client.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(Json::parse(response.body)["choices"][0]["finish_reason"], "abort");
}

TEST_F(Replies, MetricsUnderBothNames) {
  ServerOptions options;
  options.vllm_metric_names = true;
  TestServer both([](const Request&, int) { return test::ScriptedEngine::Reply{"a b c"}; }, options);
  both.json("/v1/chat/completions", chat_body());
  const std::string text = both.get("/metrics").body;
  for (const char* series : {"num_requests_running",
                             "kv_cache_usage_perc",
                             "time_to_first_token_seconds_bucket",
                             "e2e_request_latency_seconds_count",
                             "request_generation_tokens_sum",
                             "request_success_total",
                             "prefix_cache_hits_total",
                             "num_preemptions_total",
                             "prefix_cache_queries_total",
                             "num_requests_waiting",
                             "prompt_tokens_total",
                             "generation_tokens_total",
                             "cache_config_info",
                             "iteration_tokens_total_bucket",
                             "inter_token_latency_seconds_count",
                             "request_time_per_output_token_seconds_sum",
                             "request_queue_time_seconds_bucket",
                             "request_prefill_time_seconds_sum",
                             "request_decode_time_seconds_sum",
                             "request_inference_time_seconds_sum",
                             "request_prompt_tokens_bucket",
                             "request_max_num_generation_tokens_sum",
                             "request_prefill_kv_computed_tokens_sum",
                             "request_params_n_bucket"}) {
    EXPECT_NE(text.find("\nm3:" + std::string(series)), std::string::npos) << series;
    EXPECT_NE(text.find("\nvllm:" + std::string(series)), std::string::npos) << series;
  }
  for (const char* old : {"gpu_cache_usage_perc", "time_per_output_token_seconds_bucket"}) {
    EXPECT_NE(text.find("\nvllm:" + std::string(old)), std::string::npos) << old;
    EXPECT_EQ(text.find("\nm3:" + std::string(old)), std::string::npos) << old;
  }
  EXPECT_EQ(server.get("/metrics").body.find("vllm:"), std::string::npos);
}

}  // namespace
}  // namespace m3::server
