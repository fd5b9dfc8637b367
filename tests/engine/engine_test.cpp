// The public API with the checkpoint that ships.
#include "m3/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>

namespace m3 {
namespace {

const std::string shipped = std::string(M3_MODELS) + "/m3-tiny-chat";

EngineOptions options() {
  EngineOptions options;
  options.checkpoint = shipped;
  options.max_model_len = 1024;
  return options;
}

Engine& shared_engine() {
  static const std::unique_ptr<Engine> engine = Engine::load(options());
  return *engine;
}

struct Reply {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  Event last;
};

std::map<int, Reply> complete(Engine& engine, const Request& request) {
  std::map<int, Reply> replies;
  generate(engine, request, [&](const Event& event) {
    Reply& reply = replies[event.sample];
    EXPECT_EQ(reply.last.finish, FinishReason::none) << "an event after the last";
    reply.text += event.text;
    reply.ids.insert(reply.ids.end(), event.ids.begin(), event.ids.end());
    reply.logprobs.insert(reply.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    reply.top.insert(reply.top.end(), event.top_logprobs.begin(), event.top_logprobs.end());
    reply.last = event;
  });
  return replies;
}

Request prompt(std::int64_t max_tokens, float temperature = 0) {
  Request request;
  request.prompt = "Once upon a time there was a king who";
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  return request;
}

TEST(Engine, GreedyTextIsTheDecodedIdsAndEndsAtMaxTokens) {
  const Reply reply = complete(shared_engine(), prompt(24))[0];
  EXPECT_EQ(reply.ids.size(), 24u);
  EXPECT_EQ(reply.text, shared_engine().decode(reply.ids, true));
  EXPECT_EQ(reply.last.finish, FinishReason::length);
  EXPECT_EQ(reply.last.usage.completion_tokens, 24);
  EXPECT_EQ(reply.last.usage.prompt_tokens,
            static_cast<std::int64_t>(shared_engine().encode(prompt(1).prompt, false).size()));
}

TEST(Engine, IdsAndTextGiveTheSameReply) {
  Request ids = prompt(12);
  ids.prompt_ids = shared_engine().encode(ids.prompt, false);
  ids.prompt.clear();
  EXPECT_EQ(complete(shared_engine(), ids)[0].ids, complete(shared_engine(), prompt(12))[0].ids);
}

TEST(Engine, StepSizeAndThreadsDoNotChangeTokens) {
  EngineOptions other = options();
  other.max_num_batched_tokens = 3;
  other.threads = 3;
  const std::unique_ptr<Engine> engine = Engine::load(other);
  EXPECT_EQ(complete(*engine, prompt(20))[0].ids, complete(shared_engine(), prompt(20))[0].ids);
}

TEST(Engine, ASeedGivesTheSameTokensAndSamplesDiffer) {
  Request request = prompt(16, 1.0f);
  request.sampling.seed = 5;
  request.samples = 3;
  auto first = complete(shared_engine(), request);
  auto second = complete(shared_engine(), request);
  ASSERT_EQ(first.size(), 3u);
  for (int sample = 0; sample < 3; ++sample) EXPECT_EQ(first[sample].ids, second[sample].ids);
  EXPECT_NE(first[0].ids, first[1].ids);
  request.samples = 1;
  EXPECT_EQ(complete(shared_engine(), request)[0].ids, first[0].ids);  // whatever else runs
  request.sampling.seed = 6;
  EXPECT_NE(complete(shared_engine(), request)[0].ids, first[0].ids);
}

TEST(Engine, BannedRunsAreNotWritten) {
  const std::vector<TokenId> free = complete(shared_engine(), prompt(12))[0].ids;
  Request request = prompt(12);
  request.sampling.banned = {{free[3]}};
  const std::vector<TokenId> without = complete(shared_engine(), request)[0].ids;
  EXPECT_EQ(std::ranges::find(without, free[3]), without.end());
  request.sampling.banned = {{free[4], free[5]}};  // either alone may stand
  const std::vector<TokenId> apart = complete(shared_engine(), request)[0].ids;
  EXPECT_TRUE(std::ranges::search(apart, request.sampling.banned[0]).empty());
  EXPECT_TRUE(std::equal(free.begin(), free.begin() + 5, apart.begin()));
  request.sampling.banned = {{}};
  EXPECT_THROW(shared_engine().submit(request, {}), Error);
}

TEST(Engine, OnlyAllowedIdsAreWritten) {
  Request request = prompt(8, 1.0f);
  request.sampling.allowed_ids = {300, 301, 500};
  const std::vector<TokenId> ids = complete(shared_engine(), request)[0].ids;
  EXPECT_EQ(ids.size(), 8u);
  for (const TokenId id : ids) {
    EXPECT_TRUE(id == 300 || id == 301 || id == 500) << id;
  }
  request.sampling.allowed_ids = {-1};
  EXPECT_THROW(shared_engine().submit(request, {}), Error);
}

TEST(Engine, SpecialTokensAreTextWhereAskedFor) {
  Request request = prompt(1);
  const std::string name = "]~b]";
  request.sampling.allowed_ids = {shared_engine().encode(name, true).at(0)};
  EXPECT_EQ(complete(shared_engine(), request)[0].text, "");
  request.skip_special = false;
  EXPECT_EQ(complete(shared_engine(), request)[0].text, name);
}

TEST(Engine, ACharacterThatTheEndCutsIsLeftOut) {
  const std::vector<TokenId> ids = shared_engine().encode("😀", false);
  ASSERT_GT(ids.size(), 1u);  // a small vocabulary has no token for it
  Request request = prompt(1);
  request.sampling.allowed_ids = {ids.front()};
  const Reply reply = complete(shared_engine(), request)[0];
  EXPECT_EQ(reply.ids, (std::vector<TokenId>{ids.front()}));
  EXPECT_EQ(reply.text, "");
}

TEST(Engine, EventsSayHowLongARequestWaited) {
  const Reply reply = complete(shared_engine(), prompt(2))[0];
  EXPECT_GE(reply.last.queue_seconds, 0);
  const Statistics now = shared_engine().statistics();
  EXPECT_EQ(std::accumulate(now.step_sizes.begin(), now.step_sizes.end(), std::int64_t{0}), now.steps);
}

TEST(Engine, TopKOneIsGreedyAndParametersAct) {
  Request request = prompt(12, 1.0f);
  request.sampling.top_k = 1;
  const std::vector<TokenId> greedy = complete(shared_engine(), prompt(12))[0].ids;
  EXPECT_EQ(complete(shared_engine(), request)[0].ids, greedy);
  request.sampling.top_k.reset();
  request.sampling.top_p = 1e-6f;
  EXPECT_EQ(complete(shared_engine(), request)[0].ids, greedy);
  request.sampling.top_p.reset();
  request.sampling.min_p = 1.0f;
  EXPECT_EQ(complete(shared_engine(), request)[0].ids, greedy);

  Request biased = prompt(1);
  biased.sampling.logit_bias = {{greedy[0], -100.0f}};
  EXPECT_NE(complete(shared_engine(), biased)[0].ids[0], greedy[0]);
  biased.sampling.logit_bias = {{1234, 100.0f}};
  EXPECT_EQ(complete(shared_engine(), biased)[0].ids[0], 1234);
}

TEST(Engine, PenaltiesForbidRepetition) {
  Request request = prompt(200);
  const auto distinct = [](const std::vector<TokenId>& ids) {
    std::map<TokenId, int> count;
    for (const TokenId id : ids) ++count[id];
    return count.size();
  };
  const std::size_t plain = distinct(complete(shared_engine(), request)[0].ids);
  request.sampling.repetition_penalty = 1.5f;
  EXPECT_GT(distinct(complete(shared_engine(), request)[0].ids), plain);
  request.sampling.repetition_penalty.reset();
  request.sampling.frequency_penalty = 1.0f;
  request.sampling.presence_penalty = 1.0f;
  EXPECT_GT(distinct(complete(shared_engine(), request)[0].ids), plain);
}

TEST(Engine, StopStringsEndTheTextBeforeThem) {
  const std::string whole = complete(shared_engine(), prompt(40))[0].text;
  const std::string stop = whole.substr(10, 4);
  Request request = prompt(40);
  request.stop = {"never written", stop};
  const Reply reply = complete(shared_engine(), request)[0];
  EXPECT_EQ(reply.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(reply.last.finish, FinishReason::stop);
  EXPECT_EQ(reply.last.stop_reason, stop);
  request.include_stop_in_output = true;
  EXPECT_EQ(complete(shared_engine(), request)[0].text, whole.substr(0, whole.find(stop) + stop.size()));
}

TEST(Engine, StopIdsMinTokensAndIgnoreEos) {
  const std::vector<TokenId> greedy = complete(shared_engine(), prompt(12))[0].ids;
  Request request = prompt(12);
  request.stop_ids = {greedy[5]};
  const auto first = std::find(greedy.begin(), greedy.end(), greedy[5]) - greedy.begin();
  Reply reply = complete(shared_engine(), request)[0];
  EXPECT_EQ(reply.ids.size(), static_cast<std::size_t>(first) + 1);
  EXPECT_EQ(reply.last.finish, FinishReason::stop);

  const TokenId end = shared_engine().info().end_ids.at(0);
  Request ending = prompt(12);
  ending.sampling.logit_bias = {{end, 100.0f}};
  reply = complete(shared_engine(), ending)[0];
  EXPECT_EQ(reply.ids, std::vector<TokenId>{end});
  EXPECT_EQ(reply.text, "");
  EXPECT_EQ(reply.last.stop_reason, "[e~[");
  ending.min_tokens = 3;
  reply = complete(shared_engine(), ending)[0];
  EXPECT_EQ(reply.ids.size(), 4u);
  ending.min_tokens = 0;
  ending.ignore_eos = true;
  EXPECT_EQ(complete(shared_engine(), ending)[0].ids.size(), 12u);
}

TEST(Engine, LogprobsAreOfTheRawLogits) {
  Request request = prompt(6);
  request.logprobs = 4;
  const Reply reply = complete(shared_engine(), request)[0];
  ASSERT_EQ(reply.logprobs.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    ASSERT_EQ(reply.top[i].size(), 4u);
    EXPECT_EQ(reply.logprobs[i].id, reply.ids[i]);
    EXPECT_EQ(reply.top[i][0].id, reply.ids[i]);  // greedy
    EXPECT_EQ(reply.top[i][0].logprob, reply.logprobs[i].logprob);
    EXPECT_GE(reply.top[i][0].logprob, reply.top[i][1].logprob);
    EXPECT_LE(reply.logprobs[i].logprob, 0.0f);
  }
  request.sampling.repetition_penalty = 2.0f;
  EXPECT_EQ(complete(shared_engine(), request)[0].top[0][0].logprob, reply.top[0][0].logprob);
}

TEST(Engine, TheContextEndsAReply) {
  EngineOptions small = options();
  small.max_model_len = 40;
  const std::unique_ptr<Engine> engine = Engine::load(small);
  Request request = prompt(1);
  request.max_tokens.reset();
  request.ignore_eos = true;
  const Reply reply = complete(*engine, request)[0];
  EXPECT_EQ(reply.last.finish, FinishReason::length);
  EXPECT_EQ(reply.last.usage.prompt_tokens + reply.last.usage.completion_tokens, 40);
}

TEST(Engine, CancelEndsARunningAndAWaitingRequest) {
  Engine& engine = shared_engine();
  std::mutex mutex;
  std::condition_variable changed;
  std::map<RequestId, FinishReason> finished;
  std::atomic<int> tokens = 0;
  const EventSink sink = [&](const Event& event) {
    tokens += static_cast<int>(event.ids.size());
    if (event.finish == FinishReason::none) return;
    const std::lock_guard lock(mutex);
    finished[event.request] = event.finish;
    changed.notify_all();
  };
  Request endless = prompt(1000);
  endless.ignore_eos = true;
  const RequestId running = engine.submit(endless, sink);
  const RequestId waiting = engine.submit(endless, sink);
  while (tokens < 3) std::this_thread::yield();
  engine.cancel(running);
  engine.cancel(waiting);
  engine.cancel(987654);  // unknown: ignored
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return finished.size() == 2; }));
  EXPECT_EQ(finished[running], FinishReason::cancelled);
  EXPECT_EQ(finished[waiting], FinishReason::cancelled);
}

TEST(Engine, PagesComeBackAfterEveryRequest) {
  Engine& engine = shared_engine();
  complete(engine, prompt(5));
  const Statistics statistics = engine.statistics();
  EXPECT_EQ(statistics.pages_used, 0);
  EXPECT_EQ(statistics.running, 0);
  EXPECT_EQ(statistics.pages_total, 8 * 64);  // max_num_seqs contexts of 1024 tokens
  EXPECT_GT(statistics.prompt_tokens, 0);
}

TEST(Engine, LowerPriorityNumbersRunFirst) {
  EngineOptions one = options();
  one.max_num_seqs = 1;
  const std::unique_ptr<Engine> alone = Engine::load(one);
  Engine& engine = *alone;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> order;
  const auto submit = [&](int priority, std::int64_t tokens) {
    Request request = prompt(tokens);
    request.priority = priority;
    request.ignore_eos = true;
    engine.submit(request, [&, priority](const Event& event) {
      if (event.finish == FinishReason::none) return;
      const std::lock_guard lock(mutex);
      order.push_back(priority);
      changed.notify_all();
    });
  };
  submit(0, 64);
  submit(7, 1);
  submit(3, 1);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return order.size() == 3; }));
  EXPECT_EQ(order, (std::vector<int>{0, 3, 7}));
}

std::string refusal(const Request& request) {
  try {
    shared_engine().submit(request, [](const Event&) {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

TEST(Engine, RefusesWhatCannotRunByName) {
  const auto with = [](auto change) {
    Request request = prompt(4);
    change(request);
    return refusal(request);
  };
  const auto expect = [](const std::string& line, const std::string& part) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
  };
  expect(with([](Request& r) { r.prompt.clear(); }), "the prompt is empty");
  expect(with([](Request& r) { r.prompt_ids = {1, 4096}; }), "prompt id 4096 at index 1");
  expect(with([](Request& r) { r.prompt_ids = {-1}; }), "prompt id -1");
  expect(with([](Request& r) { r.prompt_ids.assign(1024, 5); }),
         "the prompt has 1024 tokens but the context holds 1024");
  expect(with([](Request& r) { r.sampling.temperature = 2.5f; }), "temperature 2.5");
  expect(with([](Request& r) { r.sampling.temperature = NAN; }), "temperature nan");
  expect(with([](Request& r) { r.sampling.top_p = 0.0f; }), "top_p 0");
  expect(with([](Request& r) { r.sampling.top_k = -2; }), "top_k -2");
  expect(with([](Request& r) { r.sampling.min_p = 1.5f; }), "min_p 1.5");
  expect(with([](Request& r) { r.sampling.repetition_penalty = 0.0f; }), "repetition_penalty 0");
  expect(with([](Request& r) { r.sampling.presence_penalty = 3; }), "presence_penalty 3");
  expect(with([](Request& r) { r.sampling.frequency_penalty = -3; }), "frequency_penalty -3");
  expect(with([](Request& r) { r.sampling.logit_bias = {{5000, 1.0f}}; }), "logit_bias names id 5000");
  expect(with([](Request& r) { r.max_tokens = 0; }), "max_tokens 0");
  expect(with([](Request& r) { r.min_tokens = 5; }), "min_tokens 5 is more than max_tokens 4");
  expect(with([](Request& r) { r.samples = 0; }), "samples 0");
  expect(with([](Request& r) { r.stop = {""}; }), "a stop string is empty");
  expect(with([](Request& r) { r.stop_ids = {9999}; }), "stop id 9999");
  expect(with([](Request& r) { r.logprobs = 5000; }), "logprobs 5000");
}

// 3584 x 3584 pixels, without a flag. The model that ships may run on a small GPU, which plans for less.
TEST(Engine, TheLargestPictureIsPlannedFor) {
  EngineOptions on_host = options();
  on_host.device = "cpu";
  on_host.cache_bytes = std::int64_t{64} << 20;
  EXPECT_EQ(Engine::load(on_host)->info().media.max_patches, 3584 / 14 * (3584 / 14));
  on_host.max_picture_patches = 2048;
  EXPECT_EQ(Engine::load(on_host)->info().media.max_patches, 2048);
}

TEST(Engine, LoadingRefusesByName) {
  const auto error_of = [](auto change) -> std::string {
    EngineOptions changed = options();
    change(changed);
    try {
      Engine::load(changed);
    } catch (const Error& error) {
      return error.what();
    }
    return "loaded";
  };
  EXPECT_NE(error_of([](EngineOptions& o) { o.checkpoint = "/nowhere"; }).find("/nowhere"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.device = "tpu"; }).find("--device tpu"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.max_model_len = 1 << 24; }).find("positions end at 32768"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.kv_cache_dtype = "int4"; }).find("--kv-cache-dtype int4"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.quantization = "gptq"; }).find("gptq"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.cache_bytes = 1; }).find("no memory for even one"), std::string::npos);
}

// The text side of options that change arithmetic: they still write the same kind of text.
TEST(Engine, Fp8CachesAndOnlineFp8KeepTheNextTokenLikely) {
  Request request = prompt(1);
  request.prompt += " lived in a";
  request.logprobs = 0;
  const float plain = complete(shared_engine(), request)[0].logprobs[0].logprob;
  EngineOptions fp8 = options();
  fp8.kv_cache_dtype = fp8.index_cache_dtype = "fp8";
  EXPECT_NEAR(complete(*Engine::load(fp8), request)[0].logprobs[0].logprob, plain, 0.35f);
  EngineOptions quantised = options();
  quantised.quantization = "ptpc_fp8";
  EXPECT_NEAR(complete(*Engine::load(quantised), request)[0].logprobs[0].logprob, plain, 0.35f);
}

}  // namespace
}  // namespace m3
