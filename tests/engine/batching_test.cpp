// What runs together gets what it would get alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "m3/error.h"
#include "src/engine/evaluate.h"
#include "tests/support/small_engine.h"

namespace m3 {
namespace {

using engine::LocalEngine;
using test::alone;
using test::random_prompt;
using test::Replies;
using test::Reply;
using test::run_all;
using test::small_engine;
using test::small_model;
using test::SmallOptions;

Request make_request(std::int64_t prompt, std::int64_t reply, std::uint32_t seed, float temperature = 0) {
  Request request;
  request.prompt_ids = random_prompt(prompt, seed);
  request.max_tokens = reply;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

// Lengths around the borders of blocks, greedy and drawn, some with penalties, log-probabilities or several samples.
const std::vector<Request>& mixed_requests() {
  static const std::vector<Request> requests = [] {
    constexpr std::array<std::int64_t, 11> lengths = {1, 5, 17, 64, 127, 128, 129, 200, 255, 256, 300};
    std::vector<Request> made;
    for (std::uint32_t i = 0; i < 32; ++i) {
      Request request = make_request(lengths[i % lengths.size()], 1 + (i * 7) % 24, i, i % 3 == 2 ? 1.0f : 0.0f);
      request.logprobs = i % 4 == 1 ? 0 : -1;
      if (i % 5 == 3) request.sampling.repetition_penalty = 1.3f;
      request.samples = i % 8 == 5 ? 3 : 1;
      request.priority = static_cast<int>(i % 3);
      made.push_back(std::move(request));
    }
    return made;
  }();
  return requests;
}

void expect_equal(const Reply& reply, const Reply& expected, const std::string& what) {
  EXPECT_EQ(reply.ids, expected.ids) << what;
  EXPECT_EQ(reply.finish, FinishReason::length) << what << " " << reply.error;
  EXPECT_EQ(reply.events_after_the_last, 0) << what;
  ASSERT_EQ(reply.logprobs.size(), expected.logprobs.size()) << what;
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i)
    EXPECT_EQ(reply.logprobs[i].logprob, expected.logprobs[i].logprob) << what;
}

void expect_idle(const Engine& engine) {
  const Statistics statistics = engine.statistics();
  EXPECT_EQ(statistics.running, 0);
  EXPECT_EQ(statistics.waiting, 0);
  EXPECT_EQ(statistics.pages_used, 0);
}

// By device: every sample of mixed_requests(), each alone.
const std::vector<std::vector<Reply>>& mixed_replies(const std::string& device) {
  static std::map<std::string, std::vector<std::vector<Reply>>> made;
  std::vector<std::vector<Reply>>& replies = made[device];
  if (!replies.empty()) return replies;
  const auto model = small_model({.device = device});
  for (const Request& request : mixed_requests()) {
    std::vector<Reply>& samples = replies.emplace_back();
    for (int sample = 0; sample < request.samples; ++sample) samples.push_back(alone(*model, request, sample));
  }
  return replies;
}

struct Mix {
  std::string device;
  std::int64_t step_tokens, sequences, pages;
  bool prefix_cache;
};

class MixedBatch : public testing::TestWithParam<Mix> {};

TEST_P(MixedBatch, EqualsEachRequestAlone) {
  const Mix& mix = GetParam();
  if (mix.device == "cpu" && !ops::cpu_backend_available()) GTEST_SKIP() << "this machine lacks AVX2";
  if (mix.device == "cuda" && !ops::no_cuda_reason().empty()) GTEST_SKIP() << ops::no_cuda_reason();
  const auto engine = small_engine({.device = mix.device,
                                    .step_tokens = mix.step_tokens,
                                    .sequences = mix.sequences,
                                    .pages = mix.pages,
                                    .prefix_cache = mix.prefix_cache});
  const Replies replies = run_all(*engine, mixed_requests());
  const auto& expected = mixed_replies(mix.device == "walled" ? "scalar" : mix.device);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t sample = 0; sample < expected[i].size(); ++sample) {
      expect_equal(replies.of(i, static_cast<int>(sample)), expected[i][sample],
                   "request " + std::to_string(i) + " sample " + std::to_string(sample));
    }
  }
  expect_idle(*engine);
  const Statistics statistics = engine->statistics();
  if (mix.pages > 0) {
    EXPECT_GT(statistics.preemptions, 0);
  }
  EXPECT_LE(statistics.step_tokens, statistics.steps * mix.step_tokens);
}

INSTANTIATE_TEST_SUITE_P(Mixes, MixedBatch,
                         testing::Values(Mix{"cpu", 512, 32, 0, false}, Mix{"cpu", 1, 32, 0, true},
                                         Mix{"cpu", 7, 32, 0, true}, Mix{"cpu", 64, 16, 0, true},
                                         Mix{"cpu", 512, 16, 6, true}, Mix{"cpu", 64, 16, 6, false},
                                         Mix{"scalar", 512, 32, 0, true}, Mix{"scalar", 64, 16, 6, true},
                                         Mix{"walled", 64, 16, 6, true}, Mix{"cuda", 512, 32, 0, true},
                                         Mix{"cuda", 7, 32, 0, true}, Mix{"cuda", 64, 16, 6, true}),
                         [](const auto& tested) {
                           const Mix& mix = tested.param;
                           return mix.device + "_" + std::to_string(mix.step_tokens) + "_tokens_" +
                                  std::to_string(mix.pages) + "_pages" + (mix.prefix_cache ? "_cached" : "");
                         });

TEST(Batching, SamplesDrawTheSameTogetherAndOneByOne) {
  Request request = make_request(300, 20, 9, 1.0f);
  request.samples = 6;
  const auto model = small_model({});
  std::vector<Reply> expected;
  for (int sample = 0; sample < 6; ++sample) expected.push_back(alone(*model, request, sample));
  for (const SmallOptions& options :
       {SmallOptions{.sequences = 8}, SmallOptions{.sequences = 4}, SmallOptions{.sequences = 1},
        SmallOptions{.sequences = 8, .prefix_cache = false}, SmallOptions{.sequences = 8, .pages = 5}}) {
    const auto engine = small_engine(options);
    const Replies replies = run_all(*engine, {request});
    for (int sample = 0; sample < 6; ++sample) {
      expect_equal(replies.of(0, sample), expected[static_cast<std::size_t>(sample)],
                   "sample " + std::to_string(sample));
      EXPECT_EQ(replies.of(0, sample).usage.cached_tokens, 0);
    }
    expect_idle(*engine);
  }
  const auto engine = small_engine({.sequences = 8});
  run_all(*engine, {request});
  EXPECT_EQ(engine->statistics().prefilled_tokens, 300);  // once for all six
  EXPECT_EQ(engine->statistics().steps, 20);
}

TEST(Batching, APrefixIsTakenFromTheCacheAndChangesNothing) {
  const auto engine = small_engine({});
  Request request = make_request(300, 12, 21);
  request.logprobs = 0;
  const Reply cold = run_all(*engine, {request}).of(0);
  const Reply hot = run_all(*engine, {request}).of(0);
  EXPECT_EQ(cold.usage.cached_tokens, 0);
  EXPECT_EQ(hot.usage.cached_tokens, 256);
  expect_equal(hot, cold, "hot");
  expect_equal(cold, alone(*small_model({}), request), "cold");

  Request other = request;  // the same 129 tokens, then others
  std::ranges::fill(other.prompt_ids.begin() + 129, other.prompt_ids.end(), 3);
  const Reply branch = run_all(*engine, {other}).of(0);
  EXPECT_EQ(branch.usage.cached_tokens, 128);
  expect_equal(branch, alone(*small_model({}), other), "branch");

  Request salted = request;
  salted.cache_salt = "somebody else";
  EXPECT_EQ(run_all(*engine, {salted}).of(0).usage.cached_tokens, 0);
  EXPECT_EQ(run_all(*engine, {salted}).of(0).usage.cached_tokens, 256);

  Request whole = request;  // whole blocks: the last token is computed all the same
  whole.prompt_ids.resize(256);
  EXPECT_EQ(run_all(*engine, {whole}).of(0).usage.cached_tokens, 128);

  const Statistics before = engine->statistics();
  EXPECT_EQ(before.prefix_queries, 5 * 300 + 256);
  EXPECT_EQ(before.prefix_hits, 256 + 128 + 256 + 128);
  EXPECT_GT(before.pages_cached, 0);
  engine->reset_prefix_cache();
  EXPECT_EQ(run_all(*engine, {request}).of(0).usage.cached_tokens, 0);

  const auto without = small_engine({.prefix_cache = false});
  run_all(*without, {request});
  EXPECT_EQ(run_all(*without, {request}).of(0).usage.cached_tokens, 0);
  EXPECT_EQ(without->statistics().pages_cached, 0);
}

TEST(Batching, RepliesAreCachedTooAndEvictionKeepsThemRight) {
  const auto engine = small_engine({.sequences = 4, .pages = 7, .context = 512});
  const auto model = small_model({});
  Request first = make_request(100, 60, 31);
  const Reply begun = run_all(*engine, {first}).of(0);
  Request next = first;
  next.prompt_ids.insert(next.prompt_ids.end(), begun.ids.begin(), begun.ids.end());
  next.prompt_ids.push_back(5);
  const Reply continued = run_all(*engine, {next}).of(0);
  EXPECT_EQ(continued.usage.cached_tokens, 128);
  expect_equal(continued, alone(*model, next), "continued");
  std::vector<Request> requests;  // of more prefixes than pages
  std::vector<Reply> expected;
  for (std::uint32_t i = 0; i < 6; ++i) {
    requests.push_back(make_request(140 + 60 * (i % 3), 4, i / 2));
    expected.push_back(alone(*model, requests.back()));
  }
  for (int round = 0; round < 4; ++round) {
    const Replies replies = run_all(*engine, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) expect_equal(replies.of(i), expected[i], "evicted");
  }
  EXPECT_GT(engine->statistics().prefix_hits, 128);
}

TEST(Batching, PromptLogprobsEqualTheEvaluation) {
  const auto model = small_model({});
  Request request = make_request(200, 3, 41);
  request.prompt_logprobs = 2;
  request.samples = 2;
  const auto evaluated = small_model({.step_tokens = 64, .sequences = 64});  // it wants logits of all rows of a step
  const Reply expected = alone(*model, request);
  const double nll = engine::evaluate(*evaluated, request.prompt_ids, 600, 300, {}).nll;
  for (const std::int64_t step_tokens : {512, 64, 7}) {
    for (const bool warm : {false, true}) {
      const auto engine = small_engine({.step_tokens = step_tokens});
      Request plain = request;
      plain.prompt_logprobs = -1;
      if (warm) run_all(*engine, {plain});
      const Replies replies = run_all(*engine, {request, make_request(150, 20, 42)});
      const Reply reply = replies.of(0);
      ASSERT_EQ(reply.prompt_logprobs.size(), 200u);
      EXPECT_EQ(reply.prompt_logprobs[0].id, -1);
      EXPECT_TRUE(reply.prompt_top_logprobs[0].empty());
      double sum = 0;
      for (std::size_t i = 1; i < 200; ++i) {
        EXPECT_EQ(reply.prompt_logprobs[i].id, request.prompt_ids[i]);
        ASSERT_EQ(reply.prompt_top_logprobs[i].size(), 2u);
        EXPECT_GE(reply.prompt_top_logprobs[i][0].logprob, reply.prompt_logprobs[i].logprob);
        sum -= static_cast<double>(reply.prompt_logprobs[i].logprob);
      }
      EXPECT_NEAR(sum, nll, 1e-3);
      EXPECT_EQ(reply.usage.cached_tokens, 0);
      expect_equal(reply, expected, "reply");
      EXPECT_TRUE(replies.of(0, 1).prompt_logprobs.empty());  // in the first event only
    }
  }
}

// Holds the engine's thread before a step until told.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

TEST(Batching, TheQueueHasALimitAndSaysSo) {
  Gate gate;
  const auto engine = small_engine({.sequences = 1, .queued = 2, .before_step = [&](std::int64_t) { gate.pass(); }});
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 3; ++i) requests.push_back(make_request(20, 3, i));
  Replies replies;
  engine->submit(requests[0], replies.sink(0));
  gate.wait_for_arrival();
  engine->submit(requests[1], replies.sink(1));
  engine->submit(requests[2], replies.sink(2));
  EXPECT_EQ(engine->statistics().waiting, 3);
  try {
    engine->submit(requests[0], replies.sink(3));
    ADD_FAILURE() << "a fourth request was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::busy);
    EXPECT_NE(std::string(error.what()).find("--max-queued-requests 2"), std::string::npos) << error.what();
  }
  gate.open();
  replies.wait(requests);
  const Replies again = run_all(*engine, {requests[0]});
  EXPECT_EQ(again.of(0).finish, FinishReason::length);
}

TEST(Batching, AShortPromptIsAnsweredWhileALongOneIsComputed) {
  Gate gate;
  const auto engine = small_engine(
      {.step_tokens = 64, .sequences = 4, .context = 2048, .before_step = [&](std::int64_t) { gate.pass(); }});
  std::mutex mutex;
  std::vector<std::string> order;
  const std::vector<Request> requests = {make_request(1500, 2, 1), make_request(100, 4, 2)};
  Replies replies;
  const auto submit = [&](std::size_t index, const std::string& name) {
    engine->submit(requests[index], [&, name, sink = replies.sink(index)](const Event& event) {
      {
        const std::lock_guard lock(mutex);
        if (event.usage.completion_tokens == 1) order.push_back(name + " begins");
        if (event.finish != FinishReason::none) order.push_back(name + " ends");
      }
      sink(event);
    });
  };
  submit(0, "long");
  gate.wait_for_arrival();
  submit(1, "short");
  gate.open();
  replies.wait(requests);
  EXPECT_EQ(order, (std::vector<std::string>{"short begins", "short ends", "long begins", "long ends"}));
}

TEST(Batching, ANewcomerIsAnsweredWhileThePromptOfManySamplesIsComputed) {
  for (const int samples : {4, 9, 40}) {
    Gate gate;
    const auto engine = small_engine(
        {.step_tokens = 64, .sequences = 4, .context = 2048, .before_step = [&](std::int64_t) { gate.pass(); }});
    std::vector<Request> requests = {make_request(1500, 2, 1), make_request(100, 4, 2)};
    requests[0].samples = samples;
    Replies replies;
    std::atomic<bool> large_began = false, overtaken = false;
    engine->submit(requests[0], [&, sink = replies.sink(0)](const Event& event) {
      large_began = true;
      sink(event);
    });
    gate.wait_for_arrival();
    engine->submit(requests[1], [&, sink = replies.sink(1)](const Event& event) {
      if (event.finish != FinishReason::none) overtaken = !large_began;
      sink(event);
    });
    gate.open();
    replies.wait(requests);
    EXPECT_TRUE(overtaken) << samples << " samples";
    expect_idle(*engine);
  }
}

// Requests of more samples than there are places, newcomers between them, and one request that is cancelled
// before each step in turn: while it waits, computes its prompt, forks, is held back, decodes, or was put back.
TEST(Batching, ManySamplesChangeNoReplyWhereverOneIsCancelled) {
  std::vector<Request> requests;
  std::vector<std::vector<Reply>> expected;
  const auto model = small_model({});
  for (std::uint32_t i = 0; i < 5; ++i) {
    requests.push_back(make_request(std::array{60, 20, 126, 30, 40}[i], 4, i, i % 2 == 0 ? 1.0f : 0.0f));
    requests.back().samples = std::array{5, 1, 7, 1, 1}[i];
    std::vector<Reply>& samples = expected.emplace_back();
    for (int sample = 0; sample < requests.back().samples; ++sample)
      samples.push_back(alone(*model, requests.back(), sample));
  }
  std::int64_t preempted = 0;
  for (const std::int64_t pages : {0, 3}) {
    for (const std::size_t victim : {0, 1, 2}) {
      bool reached = true;
      for (std::int64_t at = 1; reached; at += 2) {
        reached = false;
        LocalEngine* running = nullptr;
        std::vector<RequestId> ids;
        Gate gate;
        const auto engine = small_engine({.step_tokens = 32,
                                          .sequences = 4,
                                          .pages = pages,
                                          .context = 256,
                                          .prefix_cache = at % 4 == 1,
                                          .before_step = [&](std::int64_t step) {
                                            gate.pass();
                                            if (step != at || reached) return;
                                            reached = true;
                                            running->cancel(ids[victim]);
                                          }});
        running = engine.get();
        Replies replies;
        for (std::size_t i = 0; i < requests.size(); ++i) ids.push_back(engine->submit(requests[i], replies.sink(i)));
        gate.open();
        replies.wait(requests);
        for (std::size_t i = 0; i < requests.size(); ++i) {
          for (int sample = 0; sample < requests[i].samples; ++sample) {
            const Reply reply = replies.of(i, sample);
            const Reply& whole = expected[i][static_cast<std::size_t>(sample)];
            if (i != victim || reply.finish == FinishReason::length) {
              expect_equal(reply, whole, fmt::format("request {} sample {}, cancelled at {}", i, sample, at));
              continue;
            }
            EXPECT_EQ(reply.finish, FinishReason::cancelled);
            EXPECT_EQ(reply.events_after_the_last, 0);
            EXPECT_TRUE(std::ranges::equal(reply.ids, std::span(whole.ids).first(reply.ids.size())));
          }
        }
        expect_idle(*engine);
        preempted += engine->statistics().preemptions;
      }
    }
  }
  EXPECT_GT(preempted, 0);
}

TEST(Batching, WhenTheThreadFailsEverybodyIsTold) {
  Gate gate;
  const auto engine = small_engine({.sequences = 2, .before_step = [&](std::int64_t step) {
                                      if (step < 3) return;
                                      gate.pass();
                                      throw std::runtime_error("a card fell off the bus");
                                    }});
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 5; ++i) requests.push_back(make_request(30, 50, i));
  requests[3].samples = 3;
  Replies replies;
  for (std::size_t i = 0; i < 4; ++i) engine->submit(requests[i], replies.sink(i));
  gate.wait_for_arrival();
  EXPECT_TRUE(engine->healthy());
  engine->submit(requests[4], replies.sink(4));  // has not even been seen
  gate.open();
  replies.wait(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies.of(i).finish, FinishReason::error);
    EXPECT_NE(replies.of(i).error.find("a card fell off the bus"), std::string::npos) << replies.of(i).error;
    EXPECT_EQ(replies.of(i).events_after_the_last, 0);
  }
  EXPECT_FALSE(engine->healthy());
  try {
    engine->submit(requests[0], replies.sink(9));
    ADD_FAILURE() << "a dead engine took a request";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
  }
  engine->cancel(1);
  expect_idle(*engine);
}

TEST(Batching, ShutdownCancelsWhatRunsAndWaits) {
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 6; ++i) requests.push_back(make_request(30, 600, i));
  Replies replies;
  {
    const auto engine = small_engine({.sequences = 3});
    for (std::size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], replies.sink(i));
    while (replies.of(0).ids.empty()) std::this_thread::yield();
  }
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(replies.of(i).finish, FinishReason::cancelled);
}

TEST(Batching, CancellingFreesPagesWithinAStep) {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t cancelled_at = -1, ended_at = -1, used = -1;
  const auto engine = small_engine({.prefix_cache = false});
  Request request = make_request(200, 400, 1);
  engine->submit(request, [&](const Event& event) {
    const Statistics statistics = engine->statistics();
    if (event.usage.completion_tokens == 10 && event.finish == FinishReason::none) {
      cancelled_at = statistics.steps;
      engine->cancel(event.request);
    }
    if (event.finish == FinishReason::none) return;
    EXPECT_EQ(event.finish, FinishReason::cancelled);
    const std::lock_guard lock(mutex);
    ended_at = statistics.steps;
    used = statistics.pages_used;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended_at >= 0; });
  EXPECT_EQ(ended_at, cancelled_at);  // no further step
  EXPECT_EQ(used, 0);
}

TEST(Batching, AStormOfCancellationsLeavesTheOthersWhole) {
  for (const std::int64_t pages : {0, 6}) {
    const auto engine = small_engine({.sequences = 8, .pages = pages});
    const std::vector<Request>& requests = mixed_requests();
    Replies replies;
    std::mt19937 random(3);
    std::vector<bool> cancelled(requests.size());
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ids.push_back(engine->submit(requests[i], replies.sink(i)));
      const std::size_t victim = random() % ids.size();
      if (random() % 2 != 0) continue;
      cancelled[victim] = true;
      std::thread([&] { engine->cancel(ids[victim]); }).join();
    }
    replies.wait(requests);
    const auto& expected = mixed_replies("auto");
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (int sample = 0; sample < requests[i].samples; ++sample) {
        const Reply reply = replies.of(i, sample);
        const Reply& whole = expected[i][static_cast<std::size_t>(sample)];
        EXPECT_EQ(reply.events_after_the_last, 0);
        if (!cancelled[i]) {
          expect_equal(reply, whole, "request " + std::to_string(i));
        } else {  // too late, or a beginning of the reply
          ASSERT_LE(reply.ids.size(), whole.ids.size());
          EXPECT_TRUE(std::equal(reply.ids.begin(), reply.ids.end(), whole.ids.begin()));
        }
      }
    }
    expect_idle(*engine);
  }
}

TEST(Batching, ASinkThatThrowsEndsOnlyItsRequest) {
  std::atomic<int> calls = 0;
  const auto engine = small_engine({});
  engine->submit(make_request(20, 100, 1), [&](const Event&) {
    ++calls;
    throw std::runtime_error("the connection is gone");
  });
  const Request other = make_request(40, 20, 2);
  expect_equal(run_all(*engine, {other}).of(0), alone(*small_model({}), other), "other");
  EXPECT_EQ(calls, 1);
  expect_idle(*engine);
}

TEST(Batching, StatisticsAddUp) {
  const auto engine = small_engine({.sequences = 4});
  run_all(*engine, mixed_requests());
  const Statistics statistics = engine->statistics();
  std::int64_t prompt = 0, reply = 0, samples = 0;
  for (const Request& request : mixed_requests()) {
    prompt += static_cast<std::int64_t>(request.prompt_ids.size());
    reply += *request.max_tokens * request.samples;
    samples += request.samples;
  }
  EXPECT_EQ(statistics.prompt_tokens, prompt);
  EXPECT_EQ(statistics.generated_tokens, reply);
  EXPECT_EQ(statistics.finished[static_cast<std::size_t>(FinishReason::length)], samples);
  EXPECT_GE(statistics.step_sequences, statistics.steps);
  EXPECT_GE(statistics.step_tokens, statistics.step_sequences);
  EXPECT_GT(statistics.step_seconds, 0);
  EXPECT_LT(statistics.scheduler_seconds, statistics.step_seconds);
  EXPECT_EQ(engine->info().cache_tokens, engine->info().cache_pages * 128);
  EXPECT_EQ(engine->info().max_concurrency, 4);
}

}  // namespace
}  // namespace m3
