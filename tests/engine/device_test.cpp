// The host's side of a device: everything that runs on a backend whose memory the host cannot touch gives what it gives
// on the judge, bit for bit, and no pointer crosses the wall.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "m3/error.h"
#include "src/engine/benchmark.h"
#include "src/engine/evaluate.h"
#include "src/engine/profile.h"
#include "src/engine/trace.h"
#include "tests/support/golden_case.h"
#include "tests/support/small_engine.h"
#include "tests/support/test_configs.h"

namespace m3::engine {
namespace {

using test::DeviceJudge;
using test::small_engine;

const std::vector<std::string> all_tensors = {"logits",    "hidden",     "final_norm",
                                              "block_ids", "expert_ids", "expert_weights"};

LoadedModelOptions small_options(DeviceJudge::Counts* counts) {
  LoadedModelOptions options;
  options.device = "scalar";
  options.threads = 2;
  options.max_model_len = 640;
  options.max_batched_tokens = 64;
  options.max_logits_rows = 64;
  options.max_sequences = 4;
  options.full_contexts = 4;
  if (counts != nullptr) options.wrap = test::wall(counts);
  return options;
}

void expect_equal(const Trace& trace, const Trace& expected) {
  ASSERT_EQ(trace.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(trace.contains(name)) << name;
    EXPECT_EQ(trace.at(name).shape, tensor.shape) << name;
    EXPECT_TRUE(trace.at(name).bytes == tensor.bytes) << name;
  }
}

TEST(DefaultPatches, ByTheMemoryOfAGpu) {
  ThreadPool threads(1);
  const auto on = [&](std::int64_t bytes) {
    return default_vision_patches(DeviceJudge(ops::make_backend({.name = "scalar"}, threads), bytes));
  };
  EXPECT_EQ(on(std::int64_t{80} << 30), 65536);
  EXPECT_EQ(on(std::int64_t{64} << 30), 65536);
  EXPECT_EQ(on(std::int64_t{48} << 30), 20736);
  EXPECT_EQ(default_vision_patches(*ops::make_backend({.name = "scalar"}, threads)), 65536);
}

class DeviceGolden : public testing::TestWithParam<const char*> {};

TEST_P(DeviceGolden, TracesAreTheJudges) {
  const test::GoldenCase golden(GetParam());
  TraceOptions options;
  options.token_ids = golden.ints("token_ids");
  for (const std::int32_t position : golden.ints("positions")) options.positions.push_back(position);
  options.greedy = 5;
  options.tensors = all_tensors;
  const auto run = [&](DeviceJudge::Counts* counts) {
    LoadedModelOptions load = small_options(counts);
    load.max_batched_tokens = 512;
    load.max_model_len = static_cast<std::int64_t>(options.token_ids.size()) + options.greedy;
    load.full_contexts = 1;
    LoadedModel model(golden.open(), load);
    return trace(model, options);
  };
  DeviceJudge::Counts counts;
  expect_equal(run(&counts), run(nullptr));
  // The prompt is seen and the first greedy token comes of it; of four more, one is recorded and three are played.
  EXPECT_EQ(counts.recorded, 1);
  EXPECT_EQ(counts.played, 3);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceGolden,
                         testing::Values("dtype_mix", "mxfp4_attnfp8", "mxfp8", "nvfp4", "reuse_freq", "unusual_order",
                                         "yarn"),
                         [](const auto& tested) { return std::string(tested.param); });

Checkpoint random_model(const std::string& format, bool stored = true) {
  const ModelConfig config = parse_config(test::small_config().dump(), "test");
  return stored ? Checkpoint::random(config, format, 3) : Checkpoint::random_unmade(config, format, 3);
}

Trace trace_of(Checkpoint checkpoint, const LoadedModelOptions& options) {
  LoadedModel model(std::move(checkpoint), options);
  TraceOptions wanted;
  for (std::int32_t i = 0; i < 300; ++i) wanted.token_ids.push_back(i % 50);
  wanted.positions = {0, 128, 299};
  wanted.tensors = all_tensors;
  wanted.greedy = 3;
  return trace(model, wanted);
}

TEST(Device, WeightsOfEveryFormatAreCopiedOrMadeThere) {
  for (const char* format : {"bf16", "fp8", "mxfp8", "mxfp4", "nvfp4"}) {
    SCOPED_TRACE(format);
    const Trace expected = trace_of(random_model(format), small_options(nullptr));
    DeviceJudge::Counts counts;
    expect_equal(trace_of(random_model(format), small_options(&counts)), expected);
    expect_equal(trace_of(random_model(format, false), small_options(&counts)), expected);
  }
}

TEST(Device, BlocksAreDroppedAndPagesShuffledThere) {
  const auto run = [](DeviceJudge::Counts* counts) {
    LoadedModel model(random_model("bf16"), small_options(counts));
    TraceOptions options;
    for (std::int32_t i = 0; i < 600; ++i) options.token_ids.push_back(i % 70);
    options.tensors = all_tensors;
    options.dropped_blocks = {1, 2};
    options.shuffle_pages = true;
    return trace(model, options);
  };
  DeviceJudge::Counts counts;
  expect_equal(run(&counts), run(nullptr));
  EXPECT_EQ(counts.recorded, 0);
}

TEST(Device, EvaluatesAndMeasures) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 200; ++i) ids.push_back(i * 7 % 60);
  DeviceJudge::Counts counts;
  LoadedModel walled(random_model("bf16"), small_options(&counts)), plain(random_model("bf16"), small_options(nullptr));
  EXPECT_EQ(evaluate(walled, ids, 128, 64, nullptr).nll, evaluate(plain, ids, 128, 64, nullptr).nll);

  const Timing decode = time_decode(walled, 3, 200, 4), expected = time_decode(plain, 3, 200, 4);
  EXPECT_EQ(decode.work.weight_bytes, expected.work.weight_bytes);  // of the experts that were chosen
  EXPECT_EQ(counts.recorded, 1);
  EXPECT_EQ(counts.played, 5);
  EXPECT_GE(counts.synchronized, 2);
  EXPECT_EQ(time_prefill(walled, 100, 128, 1).work.operations, time_prefill(plain, 100, 128, 1).work.operations);
}

TEST(Device, NothingIsRecordedWhereNobodyWantsIt) {
  DeviceJudge::Counts counts;
  LoadedModelOptions options = small_options(&counts);
  options.record_passes = false;
  expect_equal(trace_of(random_model("bf16"), options), trace_of(random_model("bf16"), small_options(nullptr)));
  EXPECT_EQ(counts.recorded, 0);
}

TEST(Device, AProfileWaitsForEachOperation) {
  DeviceJudge::Counts counts;
  Profile profile;
  LoadedModelOptions options = small_options(&counts);
  options.profile = &profile;
  LoadedModel model(random_model("bf16"), options);
  const int before = counts.synchronized;
  time_decode(model, 2, 100, 2, &profile);
  std::int64_t calls = 0;
  for (const Profile::Entry& entry : profile.entries()) calls += entry.calls;
  EXPECT_GE(counts.synchronized - before, 2 * calls);
  EXPECT_EQ(counts.passes, 3 + 2 + 2);  // warming up, timed, profiled
  EXPECT_EQ(counts.recorded + counts.played, 4);
}

TEST(Device, AProfileTakesTheTimesThatADeviceTells) {
  DeviceJudge::Counts counts;
  counts.marks = true;
  Profile profile;
  LoadedModelOptions options = small_options(&counts);
  options.profile = &profile;
  LoadedModel model(random_model("bf16"), options);
  time_decode(model, 2, 100, 2, &profile);
  ASSERT_FALSE(profile.entries().empty());
  for (const Profile::Entry& entry : profile.entries())
    EXPECT_EQ(entry.seconds, static_cast<double>(entry.calls)) << entry.operation;
}

Request make_request(std::int64_t prompt, std::int64_t reply, std::uint32_t seed) {
  Request request;
  request.prompt_ids = test::random_prompt(prompt, seed);
  request.max_tokens = reply;
  request.sampling.temperature = 0;
  request.sampling.seed = seed;
  return request;
}

// Over the border of a page, which has to be borrowed.
TEST(Device, EveryDecodingPassIsQueuedBeforeItsTokensAreKnown) {
  DeviceJudge::Counts counts;
  const auto engine = small_engine({.device = "walled", .counts = &counts});
  test::run_all(*engine, {make_request(120, 20, 1)});
  EXPECT_EQ(engine->statistics().steps, 20);
  EXPECT_EQ(counts.passes, 20);
  EXPECT_EQ(counts.of_drawn, 19);
}

// Replies that end where nobody could know, and others that begin meanwhile.
TEST(Device, AGuessThatIsWrongChangesNoReply) {
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 10; ++i) requests.push_back(make_request(100 + 13 * i, 24, i));
  const auto plain = small_engine({.device = "scalar"});
  const test::Replies whole = test::run_all(*plain, requests);
  for (std::size_t i = 0; i < requests.size(); i += 2) requests[i].stop_ids = {whole.of(i).ids[3 + i]};
  const test::Replies expected = test::run_all(*plain, requests);
  for (const std::int64_t sequences : {16, 3}) {
    DeviceJudge::Counts counts;
    const auto walled = small_engine({.device = "walled", .counts = &counts, .sequences = sequences});
    const test::Replies replies = test::run_all(*walled, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(replies.of(i).ids, expected.of(i).ids) << i;
      EXPECT_EQ(replies.of(i).finish, expected.of(i).finish) << i;
    }
    EXPECT_GT(counts.of_drawn, 10);
    EXPECT_EQ(walled->statistics().pages_used, 0);
  }
}

TEST(Device, RepliesOfTheEngineAreTheJudges) {
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 6; ++i) {
    Request request;
    request.prompt_ids = test::random_prompt(40 + 50 * i, i);
    request.max_tokens = 12;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = i;
    if (i == 1) request.logprobs = 3;
    if (i == 2) request.prompt_logprobs = 2;
    if (i == 3) request.samples = 3;
    if (i == 4) request.sampling.logit_bias = {{5, 4.0f}};
    if (i == 5) request.sampling.frequency_penalty = 0.7f;
    requests.push_back(std::move(request));
  }
  DeviceJudge::Counts counts;
  const auto walled = small_engine({.device = "walled", .counts = &counts});
  const auto plain = small_engine({.device = "scalar"});
  const test::Replies replies = test::run_all(*walled, requests), expected = test::run_all(*plain, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (int sample = 0; sample < requests[i].samples; ++sample) {
      const test::Reply reply = replies.of(i, sample), wanted = expected.of(i, sample);
      EXPECT_EQ(reply.error, "");
      EXPECT_EQ(reply.ids, wanted.ids) << i;
      const auto values = [](const std::vector<TokenLogprob>& list) {
        std::vector<float> result;
        for (const TokenLogprob& entry : list) result.push_back(entry.logprob);
        return result;
      };
      EXPECT_EQ(values(reply.logprobs), values(wanted.logprobs)) << i;
      ASSERT_EQ(reply.prompt_logprobs.size(), wanted.prompt_logprobs.size()) << i;
      for (std::size_t p = 1; p < wanted.prompt_logprobs.size(); ++p)
        EXPECT_EQ(reply.prompt_logprobs[p].logprob, wanted.prompt_logprobs[p].logprob) << i << " " << p;
    }
  }
  EXPECT_GT(counts.played, 0);
  EXPECT_EQ(walled->info().media.unavailable.empty(), false);
}

TEST(Device, WhatDoesNotFitIsSaid) {
  const auto error = [](std::int64_t bytes, std::int64_t context) -> std::string {
    LoadedModelOptions options = small_options(nullptr);
    options.wrap = test::wall(nullptr, bytes);
    options.max_model_len = context;
    try {
      const LoadedModel model(random_model("bf16"), options);
    } catch (const Error& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_NE(error(1 << 16, 256).find("the weights take"), std::string::npos);
  EXPECT_EQ(error(std::int64_t{1} << 30, 256), "");
  LoadedModelOptions options = small_options(nullptr);
  options.wrap = test::wall(nullptr, std::int64_t{1} << 30);
  const LoadedModel model(random_model("bf16"), options);
  const std::int64_t fixed = model.model().placed_bytes() + model.workspace_bytes();
  const std::string context = error((fixed + (8 << 20)) * 10 / 9, 4000);
  EXPECT_NE(context.find("the largest context that fits is"), std::string::npos) << context;
}

// What they are made of comes up with the draw.
TEST(Device, LogprobsOfRepliesDownloadNothing) {
  std::vector<Request> requests(5);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt_ids = test::random_prompt(40, static_cast<std::uint32_t>(i));
    requests[i].max_tokens = 6;
    if (i != 2) requests[i].logprobs = 3;
  }
  DeviceJudge::Counts counts;
  const auto walled = small_engine({.device = "walled", .counts = &counts});
  const test::Replies replies = test::run_all(*walled, requests);
  EXPECT_EQ(replies.of(1).logprobs.size(), 6U);
  EXPECT_EQ(counts.downloaded_bytes, 0);
}

// A step that cannot run would end the engine for everybody.
TEST(Device, WhatTheBackendDoesNotTakeIsSaidAtLoading) {
  const auto error = [](const DeviceJudge::Counts& asked, std::int64_t context = 640) -> std::string {
    DeviceJudge::Counts counts = asked;
    LoadedModelOptions options = small_options(&counts);
    options.max_model_len = context;
    try {
      const LoadedModel model(random_model("bf16"), options);
    } catch (const Error& caught) {
      return caught.what();
    }
    EXPECT_EQ(counts.passes, 0);
    return "";
  };
  EXPECT_EQ(error({.most_hidden = 1}), "hidden_size is too large; take --device cpu");
  EXPECT_EQ(error({.most_hidden = 1 << 20}), "");
  EXPECT_EQ(error({.most_context = 3000}, 3001), "--max-model-len is too large; give no more, or take --device cpu");
  EXPECT_EQ(error({.most_context = 3000}, 3000), "");
}

// The text goes on without its tower.
TEST(Device, ATowerThatTheBackendDoesNotTakeIsLeftOut) {
  DeviceJudge::Counts counts;
  counts.most_hidden = 159;  // the tower's is 160
  const auto model = test::small_model({.device = "walled", .counts = &counts, .vision = true});
  EXPECT_EQ(model->tower(), nullptr);
  EXPECT_EQ(model->no_pictures(), "hidden_size is too large; take --device cpu");
}

}  // namespace
}  // namespace m3::engine
