// Lists of prompts that are longer than the engine's queue.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace m3::server {
namespace {

using test::HttpClient;
using test::HttpResponse;
using test::Json;
using test::TestServer;

// Repeats its prompt.
test::ScriptedEngine::Script echo(const Tokenizer& tokenizer) {
  return [&tokenizer](const Request& request, int sample) {
    return test::ScriptedEngine::Reply{fmt::format("{} {}", tokenizer.decode(request.prompt_ids, false), sample)};
  };
}

struct Lists : testing::Test {
  Tokenizer tokenizer = Tokenizer::load(std::string(M3_MODELS) + "/m3-tiny-chat");
  TestServer server{echo(tokenizer)};

  static Json body(int prompts, int samples, bool stream) {
    Json out = {{"prompt", Json::array()}, {"n", samples}, {"stream", stream}, {"max_tokens", 50}};
    for (int i = 0; i < prompts; ++i) out["prompt"].push_back(fmt::format("number {}", i));
    return out;
  }
};

TEST_F(Lists, LongerThanTheQueueAreOneRequest) {
  server.engine().most_waiting = 8;
  for (const int samples : {1, 3}) {
    const Json reply = server.json("/v1/completions", body(200, samples, false));
    ASSERT_EQ(reply["choices"].size(), 200u * static_cast<unsigned>(samples));
    for (std::size_t i = 0; i < reply["choices"].size(); ++i) {
      const Json& choice = reply["choices"][i];
      EXPECT_EQ(choice["index"].get<std::size_t>(), i);
      const auto n = static_cast<std::size_t>(samples);
      EXPECT_EQ(choice["text"].get<std::string>(), fmt::format("number {} {}", i / n, i % n));
    }
  }
}

TEST_F(Lists, AreStreamedSo) {
  server.engine().most_waiting = 3;
  const HttpResponse reply = server.post("/v1/completions", body(50, 1, true));
  ASSERT_EQ(reply.status, 200);
  std::vector<std::string> texts(50);
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event).at("choices").at(0);
    texts.at(choice["index"].get<std::size_t>()) += choice["text"].get<std::string>();
  }
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], fmt::format("number {} 0", i));
}

// Every chunk counts what has come of all choices so far, a prompt once whatever its samples.
TEST_F(Lists, UsageIsSummedAsItComes) {
  server.engine().most_waiting = 8;
  for (const int max_tokens : {50, 0}) {  // 0: the prompts alone
    Json list = body(40, 3, true);
    list["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
    list["return_token_ids"] = true;
    list["echo"] = max_tokens == 0;
    list["max_tokens"] = max_tokens;
    std::set<std::size_t> prompts;
    std::size_t prompt_tokens = 0, tokens = 0, last_prompt = 0, last = 0;
    for (const std::string& event : server.post("/v1/completions", list).events()) {
      if (event == "[DONE]") continue;
      const Json chunk = Json::parse(event);
      const Json& usage = chunk.at("usage");
      for (const Json& choice : chunk["choices"]) {
        if (prompts.insert(choice["index"].get<std::size_t>() / 3).second)
          prompt_tokens += choice.at("prompt_token_ids").size();
        if (max_tokens > 0) tokens += choice["token_ids"].size();
      }
      last_prompt = usage["prompt_tokens"];
      last = usage["completion_tokens"];
      EXPECT_GE(last_prompt, prompt_tokens);
      EXPECT_GE(last, tokens);
      EXPECT_EQ(usage["total_tokens"], last + last_prompt);
    }
    EXPECT_EQ(prompts.size(), 40u);
    EXPECT_EQ(last_prompt, prompt_tokens);
    EXPECT_EQ(last, tokens);
    list["stream"] = false;
    list.erase("stream_options");
    const Json whole = server.json("/v1/completions", list)["usage"];
    EXPECT_EQ(whole["prompt_tokens"], last_prompt);
    EXPECT_EQ(whole["completion_tokens"], last);
    EXPECT_EQ(last > 0, max_tokens > 0);
  }
}

TEST_F(Lists, AreRefusedWhereNotOneFits) {
  server.engine().most_waiting = 0;
  EXPECT_EQ(server.post("/v1/completions", body(5, 1, false)).status, 503);
}

TEST_F(Lists, LogProbabilitiesOfPromptsAreBounded) {
  Json body = {{"prompt", std::vector<int>(3000, 5)}, {"n", 128}, {"echo", true}, {"logprobs", 20}, {"max_tokens", 1}};
  const HttpResponse reply = server.post("/v1/completions", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "logprobs") << reply.body;
  body["logprobs"] = nullptr;
  EXPECT_EQ(server.post("/v1/completions", body).status, 200);
}

// The most memory that this process had so far.
std::int64_t peak_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

// What a list's prompts have in common is held once: a body of a megabyte must not become gigabytes.
TEST_F(Lists, ManyPromptsShareTheRest) {
  Json many = body(4000, 1, false);
  many["stop"] = std::vector<std::string>(256, std::string(4096, 'x'));
  const std::int64_t before = peak_bytes();
  ASSERT_EQ(server.json("/v1/completions", many)["choices"].size(), 4000U);
  EXPECT_LT(peak_bytes() - before, std::int64_t{1} << 30);
}

struct SlowLists : testing::Test {
  TestServer server{[](const Request&, int) {
    return test::ScriptedEngine::Reply{"a b c d", std::chrono::minutes(10)};
  }};
};

TEST_F(SlowLists, WhatWaitsIsCancelledToo) {
  server.engine().most_waiting = 4;
  for (const bool stream : {true, false}) {
    HttpClient client = server.connect();
    client.send(test::request_bytes("POST", "/v1/completions", Lists::body(20, 2, stream).dump()));
    EXPECT_TRUE(test::eventually([&] { return server.engine().statistics().running >= 4; }));
    EXPECT_EQ(server.json("/abort_requests", {{"abort_all", true}})["aborted"], 1);
    const HttpResponse reply = client.receive();
    EXPECT_EQ(reply.status, 200);
    std::size_t aborted = 0;
    for (std::size_t at = 0; (at = reply.body.find("\"abort\"", at)) != std::string::npos; ++at) ++aborted;
    EXPECT_EQ(aborted, 40u);
  }
}

TEST_F(SlowLists, WhoGoesTakesThemAlong) {
  server.engine().most_waiting = 4;
  HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/completions", Lists::body(20, 1, true).dump()));
  EXPECT_TRUE(test::eventually([&] { return server.engine().statistics().running == 4; }));
  client.close();
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  EXPECT_EQ(server.engine().statistics().running, 0);
}

// Queueing a request may take long: a large constraint. Nobody waits for a list whose client has gone.
TEST_F(SlowLists, WhoGoesEndsTheQueueing) {
  server.engine().submit_time = std::chrono::milliseconds(50);
  HttpClient client = server.connect();
  client.send(test::request_bytes("POST", "/v1/completions", Lists::body(400, 1, true).dump()));
  EXPECT_TRUE(test::eventually([&] { return server.engine().submitted >= 2; }));
  client.close();
  EXPECT_TRUE(test::eventually([&] { return server.server().generations().size() == 0; }));
  EXPECT_LT(server.engine().submitted, 40);
}

// The engine that people run, with places for two and a queue of one.
TEST(List, AnsweredByTheModelAsEachAlone) {
  EngineOptions engine;
  engine.max_num_seqs = 2;
  engine.max_queued_requests = 1;
  const TestServer server({}, engine);
  Json body = {{"prompt", Json::array()}, {"max_tokens", 5}, {"temperature", 0}};
  std::vector<std::string> alone;
  for (int i = 0; i < 12; ++i) {
    const std::string prompt = fmt::format("It was {} o'clock and", i);
    body["prompt"].push_back(prompt);
    const Json reply = server.json("/v1/completions", {{"prompt", prompt}, {"max_tokens", 5}, {"temperature", 0}});
    alone.push_back(reply["choices"][0]["text"]);
  }
  const Json reply = server.json("/v1/completions", body);
  ASSERT_EQ(reply["choices"].size(), alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(reply["choices"][i]["text"].get<std::string>(), alone[i]);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 60);
}

}  // namespace
}  // namespace m3::server
