// m3 bench serve: what it plans, what it reads off a stream, what it says.
#include "src/cli/bench_serve.h"

#include <gtest/gtest.h>

#include <chrono>

#include "m3/error.h"
#include "tests/support/test_server.h"

namespace m3::cli {
namespace {

using nlohmann::json;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

TEST(BenchServe, Addresses) {
  const auto at = [](const std::string& url) {
    const LoadTarget target = parse_target(url, "/v1/completions");
    return target.host + " " + target.port + " " + target.path;
  };
  EXPECT_EQ(at("http://localhost:8000"), "localhost 8000 /v1/completions");
  EXPECT_EQ(at("http://localhost:8000/v1/"), "localhost 8000 /v1/completions");
  EXPECT_EQ(at("http://host/m3"), "host 80 /m3/v1/completions");
  EXPECT_EQ(at("http://[::1]:80"), "::1 80 /v1/completions");
  EXPECT_EQ(at("http://[::1]"), "::1 80 /v1/completions");
  for (const char* wrong : {"localhost:8000", "https://host", "http://", "http://:80", ""}) {
    EXPECT_THROW(at(wrong), Error) << wrong;
  }
}

TEST(BenchServe, PlansAreRepeatableAndKeepToTheirLengths) {
  LoadPlan plan;
  plan.requests = 200;
  plan.input_len = 100;
  plan.range_ratio = 0.5;
  plan.prefix_len = 10;
  plan.rate = 50;
  const auto first = plan_requests(plan), second = plan_requests(plan);
  json prefix;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].body, second[i].body);
    const json body = json::parse(first[i].body);
    EXPECT_EQ(body["prompt"].size(), first[i].prompt_tokens);
    EXPECT_EQ(body["max_tokens"], first[i].output_tokens);
    EXPECT_GE(first[i].prompt_tokens, 60);
    EXPECT_LE(first[i].prompt_tokens, 160);
    const json own(std::vector<json>(body["prompt"].begin(), body["prompt"].begin() + 10));
    if (i == 0) prefix = own;
    EXPECT_EQ(own, prefix);
    if (i > 0) {
      EXPECT_GE(first[i].start, first[i - 1].start);
    }
  }
  EXPECT_NEAR(first.back().start, 4, 1.5);  // 199 gaps of 20 ms in the mean
  plan.seed = 1;
  EXPECT_NE(plan_requests(plan)[0].body, first[0].body);
  plan.chat = true;
  EXPECT_EQ(json::parse(plan_requests(plan)[0].body)["messages"].size(), 1U);
}

TEST(BenchServe, LengthsLikeThoseOfConversations) {
  LoadPlan plan;
  plan.dataset = "sharegpt";
  plan.requests = 4000;
  double prompts = 0, replies = 0;
  for (const PlannedRequest& request : plan_requests(plan)) {
    prompts += static_cast<double>(request.prompt_tokens) / 4000;
    replies += static_cast<double>(request.output_tokens) / 4000;
    EXPECT_GE(request.prompt_tokens, 4);
    EXPECT_LE(request.output_tokens, 1024);
  }
  EXPECT_NEAR(prompts, 170, 25);
  EXPECT_NEAR(replies, 195, 25);
}

TEST(BenchServe, Percentiles) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({3, 1, 2}, 0), 1);
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({3, 1, 2}, 1), 3);
  EXPECT_DOUBLE_EQ(percentile({0, 10}, 0.25), 2.5);
}

TEST(BenchServe, Sums) {
  LoadRecord good;
  good.started = 1;
  good.first = 1.5;
  good.ended = 2.5;
  good.gaps = {0.5, 0.5};
  good.prompt_tokens = 10;
  good.output_tokens = 3;
  LoadRecord bad;
  bad.error = "status 503: full";
  const auto summary = summarise({good, bad}, 2, {50});
  EXPECT_EQ(summary["completed"], 1);
  EXPECT_EQ(summary["failed"], 1);
  EXPECT_EQ(summary["output_tokens_per_s"], 1.5);
  EXPECT_EQ(summary["ttft_ms"]["p50"], 500);
  EXPECT_EQ(summary["tpot_ms"]["mean"], 500);
  EXPECT_EQ(summary["itl_ms"]["p50"], 500);
  EXPECT_EQ(summary["e2el_ms"]["p50"], 1500);
  EXPECT_NE(summary_text(summary).find("status 503: full"), std::string::npos);
}

TEST(BenchServe, ReadsStreamsOfBothApisAndErrors) {
  const test::TestServer server([](const Request&, int) {
    return test::ScriptedEngine::Reply{"One two three four five six seven.", std::chrono::milliseconds(1)};
  });
  for (const bool chat : {false, true}) {
    LoadPlan plan;
    plan.requests = 1;
    plan.input_len = 8;
    plan.chat = chat;
    const LoadTarget target = parse_target("http://127.0.0.1:" + std::to_string(server.port()),
                                           chat ? "/v1/chat/completions" : "/v1/completions");
    const LoadRecord record = stream_request(target, plan_requests(plan)[0].body, seconds);
    EXPECT_EQ(record.error, "");
    EXPECT_GE(record.prompt_tokens, 8);
    EXPECT_GT(record.output_tokens, 5);
    EXPECT_GT(record.gaps.size(), 1U);
    EXPECT_LE(record.started, record.first);
    EXPECT_LE(record.first, record.ended);
    EXPECT_NE(stream_request(target, "{\"temperature\": 9}", seconds).error.find("status 400"), std::string::npos);
  }
  const LoadTarget nobody = parse_target("http://127.0.0.1:1", "/v1/completions");
  EXPECT_NE(stream_request(nobody, "{}", seconds).error, "");
}

}  // namespace
}  // namespace m3::cli
