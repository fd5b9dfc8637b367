// Requests with pictures: what company, chunks, caches and preemption must not change, and what is refused.
#include "src/engine/pictures.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <utility>

#include "src/base/error.h"
#include "src/checkpoint/seeded_weights.h"
#include "src/ops/backends.h"
#include "tests/support/small_engine.h"

namespace m3 {
namespace {

using test::random_prompt;
using test::Replies;
using test::Reply;
using test::run_all;
using test::small_engine;
using test::SmallOptions;

constexpr TokenId image_id = 310, video_id = 311;

Media picture(std::int64_t t, std::int64_t h, std::int64_t w, std::uint64_t seed,
              Media::Kind kind = Media::Kind::image) {
  std::vector<float> pixels(static_cast<std::size_t>(t * h * w * 1176));
  seeded_values(seeded_key("pixels", seed), 2.0, 0, std::ssize(pixels), pixels.data());
  return {.kind = kind,
          .t = t,
          .h = h,
          .w = w,
          .pixels = std::make_shared<const std::vector<float>>(std::move(pixels)),
          .features = nullptr,
          .key = ""};
}

// Text, then each picture's placeholders (a clip's in a run for each group) with text after it.
Request request_with(std::vector<Media> media, std::int64_t text, std::uint32_t seed, std::int64_t reply = 6) {
  Request request;
  request.prompt_ids = random_prompt(text, seed);
  for (const Media& shown : media) {
    for (std::int64_t group = 0; group < shown.t; ++group) {
      const TokenId id = shown.kind == Media::Kind::image ? image_id : video_id;
      request.prompt_ids.insert(request.prompt_ids.end(), static_cast<std::size_t>(shown.h * shown.w / 4), id);
      const std::vector<TokenId> after = random_prompt(5, seed + static_cast<std::uint32_t>(group) + 1);
      request.prompt_ids.insert(request.prompt_ids.end(), after.begin(), after.end());
    }
  }
  request.media = std::move(media);
  request.max_tokens = reply;
  request.sampling.temperature = 0;
  request.logprobs = 0;
  return request;
}

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  requests.push_back(request_with({picture(1, 4, 6, 1)}, 20, 1));
  requests.push_back(request_with({}, 150, 2));
  requests.push_back(request_with({picture(1, 16, 16, 2), picture(1, 2, 2, 3)}, 100, 3));
  requests.push_back(request_with({picture(6, 4, 4, 4, Media::Kind::video), picture(1, 4, 4, 5)}, 1, 4));
  requests.push_back(request_with({picture(1, 2, 2, 3), picture(1, 2, 2, 3)}, 200, 5));
  requests.push_back(request_with({picture(1, 4, 6, 6)}, 20, 1));  // as the first, another picture
  requests[2].samples = 2;
  return requests;
}

// The largest picture of these tests is four blocks: eight pieces for each.
constexpr model::VisionBlocks small_blocks = {.rows = 64, .pixel_rows = 64, .operations = 1};
constexpr std::int64_t large_pieces = 4 * (1 + 2 * 3 + 1);

void expect_equal(const Reply& reply, const Reply& expected, const std::string& what) {
  EXPECT_EQ(reply.finish, FinishReason::length) << what << ": " << reply.error;
  EXPECT_EQ(reply.ids, expected.ids) << what;
  ASSERT_EQ(reply.logprobs.size(), expected.logprobs.size()) << what;
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i)
    EXPECT_EQ(reply.logprobs[i].logprob, expected.logprobs[i].logprob) << what << ", token " << i;
}

// Each request by itself in a fresh engine, the whole prompt in one step, no cache.
std::vector<std::vector<Reply>> alone(const std::vector<Request>& requests, const std::string& device) {
  std::vector<std::vector<Reply>> replies;
  for (const Request& request : requests) {
    const auto engine = small_engine(
        {.device = device, .sequences = 4, .prefix_cache = false, .vision = true, .feature_cache_bytes = 0});
    const Replies got = run_all(*engine, {request});
    replies.emplace_back();
    for (int sample = 0; sample < request.samples; ++sample) replies.back().push_back(got.of(0, sample));
  }
  return replies;
}

TEST(Pictures, CompanyChunksAndCachesChangeNothing) {
  const std::vector<Request> requests = mixed_requests();
  const std::vector<std::vector<Reply>> expected = alone(requests, "auto");
  EXPECT_NE(expected[0][0].logprobs[0].logprob, expected[5][0].logprobs[0].logprob) << "the picture does not matter";
  const std::vector<SmallOptions> many = {
      {.vision = true},
      {.step_tokens = 37, .vision = true},
      {.step_tokens = 24, .sequences = 3, .pages = 8, .vision = true, .feature_cache_bytes = 3000},  // evicts
      {.prefix_cache = false, .vision = true},
      {.step_tokens = 37, .vision = true, .feature_cache_bytes = 0, .picture_piece = 1, .vision_blocks = small_blocks},
      {.vision = true, .picture_piece = 3e7, .vision_blocks = small_blocks}};
  for (std::size_t o = 0; o < many.size(); ++o) {
    const auto engine = small_engine(many[o]);
    for (int round = 0; round < 2; ++round) {  // the second finds what the first left in the caches
      const Replies replies = run_all(*engine, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        for (int sample = 0; sample < requests[i].samples; ++sample) {
          expect_equal(replies.of(i, sample), expected[i][static_cast<std::size_t>(sample)],
                       fmt::format("options {}, round {}, request {}, sample {}", o, round, i, sample));
        }
      }
    }
  }
}

// Five pages for two sequences that come to need three each; without caches the picture is computed again, too.
TEST(Pictures, APreemptedPromptIsReadAgain) {
  const std::vector<Request> requests = {request_with({picture(1, 4, 6, 1)}, 110, 1, 160),
                                         request_with({picture(1, 4, 8, 2)}, 108, 2, 160)};
  const std::vector<std::vector<Reply>> expected = alone(requests, "auto");
  const auto engine =
      small_engine({.sequences = 2, .pages = 5, .prefix_cache = false, .vision = true, .feature_cache_bytes = 0});
  const Replies replies = run_all(*engine, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) expect_equal(replies.of(i), expected[i][0], std::to_string(i));
  EXPECT_GT(engine->statistics().preemptions, 0);
  EXPECT_GT(engine->statistics().media_encoded, 2);
}

TEST(Pictures, TheJudgeSeesThemToo) {
  const std::vector<Request> requests = {request_with({picture(1, 4, 4, 1)}, 10, 1, 2)};
  const std::vector<std::vector<Reply>> expected = alone(requests, "scalar");
  const auto engine = small_engine({.device = "scalar", .step_tokens = 9, .sequences = 2, .vision = true});
  expect_equal(run_all(*engine, requests).of(0), expected[0][0], "scalar");
}

// The tower's weights, pixels and features on a device, which is slow with it: every third look finds it done.
TEST(Pictures, ADeviceSeesThemToo) {
  const std::vector<Request> requests = mixed_requests();
  const std::vector<std::vector<Reply>> expected = alone(requests, "scalar");
  test::DeviceJudge::Counts counts;
  counts.slow = 2;
  const std::vector<SmallOptions> many = {
      {.device = "walled", .counts = &counts, .vision = true},
      {.device = "walled", .counts = &counts, .step_tokens = 37, .vision = true, .feature_cache_bytes = 0},
      {.device = "walled",
       .counts = &counts,
       .step_tokens = 24,
       .sequences = 3,
       .pages = 8,
       .vision = true,
       .feature_cache_bytes = 3000,
       .picture_piece = 1,
       .vision_blocks = small_blocks}};
  for (std::size_t o = 0; o < many.size(); ++o) {
    const auto engine = small_engine(many[o]);
    for (int round = 0; round < 2; ++round) {
      const Replies replies = run_all(*engine, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        for (int sample = 0; sample < requests[i].samples; ++sample) {
          expect_equal(replies.of(i, sample), expected[i][static_cast<std::size_t>(sample)],
                       fmt::format("options {}, round {}, request {}, sample {}", o, round, i, sample));
        }
      }
    }
    EXPECT_EQ(engine->statistics().pages_used, 0);
  }
  EXPECT_GT(counts.pictures, 6);
  EXPECT_GT(counts.of_drawn, 0);
}

// On a machine with a GPU; with one order of summation, as small_engine() asks for it.
TEST(Pictures, CompanyAndChunksChangeNothingOnCuda) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const std::vector<Request> requests = mixed_requests();
  const std::vector<std::vector<Reply>> expected = alone(requests, "cuda");
  const std::vector<SmallOptions> many = {
      {.device = "cuda", .vision = true},
      {.device = "cuda", .step_tokens = 37, .vision = true, .feature_cache_bytes = 0},
      {.device = "cuda", .step_tokens = 24, .sequences = 3, .pages = 8, .vision = true, .feature_cache_bytes = 3000},
      {.device = "cuda", .vision = true, .picture_piece = 1, .vision_blocks = small_blocks}};
  for (std::size_t o = 0; o < many.size(); ++o) {
    const auto engine = small_engine(many[o]);
    for (int round = 0; round < 2; ++round) {
      const Replies replies = run_all(*engine, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        for (int sample = 0; sample < requests[i].samples; ++sample) {
          expect_equal(replies.of(i, sample), expected[i][static_cast<std::size_t>(sample)],
                       fmt::format("options {}, round {}, request {}, sample {}", o, round, i, sample));
        }
      }
    }
  }
}

// bf16 between operations on both sides: features agree as two sums of one bf16 model do.
TEST(Pictures, FeaturesOnCudaAreTheJudges) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const auto features = [](const std::string& device, std::int64_t h, std::int64_t w) {
    const auto model = test::small_model({.device = device, .vision = true});
    const Media shown = picture(1, h, w, 5);
    const std::vector<std::byte> bytes = model->picture_features({1, h, w}, *shown.pixels);
    const bool wide = model->tower()->feature_dtype() == DType::f32;
    std::vector<float> values(bytes.size() / (wide ? 4 : 2));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = wide ? reinterpret_cast<const float*>(bytes.data())[i]
                       : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]);
    }
    return values;
  };
  for (const auto& [h, w] : {std::pair{2, 2}, std::pair{16, 16}, std::pair{6, 34}}) {
    const std::vector<float> judged = features("scalar", h, w), ours = features("cuda", h, w);
    ASSERT_EQ(ours.size(), judged.size());
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < judged.size(); ++i) {
      difference += (double{ours[i]} - judged[i]) * (double{ours[i]} - judged[i]);
      size += double{judged[i]} * judged[i];
    }
    EXPECT_LT(std::sqrt(difference / size), 0.02) << h << " x " << w;
  }
}

// Lets the engine's thread take steps once it is opened.
class Gate {
 public:
  std::function<void(std::int64_t)> hook(std::function<void()> then = {}) {
    return [opened = opened_, then = std::move(then)](std::int64_t) {
      opened.wait();
      if (then) then();
    };
  }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

TEST(Pictures, TextDoesNotWaitForALargeOne) {
  const std::vector<Request> requests = {request_with({picture(1, 16, 16, 1)}, 20, 1, 3), request_with({}, 30, 2, 10)};
  for (const std::string device : {"auto", "walled"}) {
    const std::vector<std::vector<Reply>> expected = alone(requests, device == "auto" ? "auto" : "scalar");
    test::DeviceJudge::Counts counts;
    Gate gate;
    const auto engine = small_engine({.device = device,
                                      .counts = &counts,
                                      .vision = true,
                                      .picture_piece = 1,
                                      .vision_blocks = small_blocks,
                                      .before_step = gate.hook()});
    Statistics at_end;  // of the text
    Replies replies;
    engine->submit(requests[0], replies.sink(0));
    engine->submit(requests[1], [&, sink = replies.sink(1)](const Event& event) {
      if (event.finish != FinishReason::none) at_end = engine->statistics();
      sink(event);
    });
    gate.open();
    replies.wait(requests);
    EXPECT_EQ(at_end.media_encoded, 0) << device << ": the picture was whole before the text";
    EXPECT_GE(at_end.media_pieces, 8) << device;
    EXPECT_LE(at_end.media_pieces, 14) << device;
    EXPECT_EQ(engine->statistics().media_pieces, large_pieces + (device == "walled" ? 4 : 0)) << device;
    for (std::size_t i = 0; i < requests.size(); ++i) expect_equal(replies.of(i), expected[i][0], device);
  }
}

TEST(Pictures, AnInterruptedOneStops) {
  const std::vector<Request> requests = {request_with({picture(1, 16, 16, 1)}, 20, 1, 3)};
  const std::vector<Request> other = {request_with({picture(1, 16, 14, 2)}, 20, 2, 3)};
  for (const std::string device : {"auto", "walled"}) {
    const std::vector<std::vector<Reply>> expected = alone(other, device == "auto" ? "auto" : "scalar");
    test::DeviceJudge::Counts counts;
    Gate gate;
    std::atomic<engine::LocalEngine*> running = nullptr;
    std::atomic<RequestId> id = 0;
    int steps = 0;
    const auto engine = small_engine({.device = device,
                                      .counts = &counts,
                                      .vision = true,
                                      .picture_piece = 1,
                                      .vision_blocks = small_blocks,
                                      .before_step = gate.hook([&] {
                                        if (++steps == 5) running.load()->cancel(id);
                                      })});
    running = engine.get();
    Replies replies;
    id = engine->submit(requests[0], replies.sink(0));
    gate.open();
    replies.wait(requests);
    EXPECT_EQ(replies.of(0).finish, FinishReason::cancelled);
    EXPECT_EQ(engine->statistics().media_pieces, 5) << device;
    EXPECT_EQ(engine->statistics().media_encoded, 0) << device;
    expect_equal(run_all(*engine, other).of(0), expected[0][0], device);
    EXPECT_EQ(engine->statistics().media_given_up, 1) << device;
    EXPECT_EQ(engine->statistics().media_encoded, 1) << device;
  }
}

// Both are there before the first piece.
TEST(Pictures, TwoRequestsShareTheWork) {
  const Media shown = picture(1, 16, 16, 1);
  const std::vector<Request> requests = {request_with({shown}, 20, 1, 3), request_with({shown}, 50, 2, 3)};
  const std::vector<std::vector<Reply>> expected = alone(requests, "auto");
  Gate gate;
  const auto engine = small_engine({.vision = true,
                                    .feature_cache_bytes = 0,
                                    .picture_piece = 1,
                                    .vision_blocks = small_blocks,
                                    .before_step = gate.hook()});
  Replies replies;
  for (std::size_t i = 0; i < 2; ++i) engine->submit(requests[i], replies.sink(i));
  gate.open();
  replies.wait(requests);
  for (std::size_t i = 0; i < 2; ++i) expect_equal(replies.of(i), expected[i][0], std::to_string(i));
  EXPECT_EQ(engine->statistics().media_encoded, 1);
  EXPECT_EQ(engine->statistics().media_reused, 1);
  EXPECT_EQ(engine->statistics().media_pieces, large_pieces);
}

// Those of a prompt and of other prompts, as many as are worth a pass; a large one has its own.
TEST(Pictures, SmallOnesAreSeenTogether) {
  const std::vector<Request> requests = {
      request_with({picture(1, 4, 6, 1), picture(1, 2, 2, 2), picture(1, 4, 6, 1)}, 20, 1, 3),
      request_with({picture(1, 2, 4, 3), picture(1, 16, 16, 4), picture(1, 4, 4, 5)}, 50, 2, 3),
      request_with({picture(1, 2, 2, 2), picture(1, 2, 6, 6)}, 7, 3, 3)};
  for (const std::string device : {"auto", "walled"}) {
    const std::vector<std::vector<Reply>> expected = alone(requests, device == "auto" ? "auto" : "scalar");
    // 24 + 4 + 8 + 16 + 12 = 64 patches of small ones.
    for (const auto& [company, passes] : {std::pair{64, 2}, std::pair{63, 3}, std::pair{1, 6}}) {
      test::DeviceJudge::Counts counts;
      Gate gate;
      std::promise<void> in_step;
      bool first = true;
      const auto wait_in_step = [&, open = gate.hook()](std::int64_t tokens) {
        if (std::exchange(first, false)) in_step.set_value();
        open(tokens);
      };
      model::VisionBlocks blocks;
      blocks.company = company;
      const auto engine = small_engine({.device = device,
                                        .counts = &counts,
                                        .vision = true,
                                        .picture_piece = std::numeric_limits<double>::infinity(),
                                        .vision_blocks = blocks,
                                        .before_step = wait_in_step});
      Replies replies;
      engine->submit(request_with({}, 5, 4, 1), [](const Event&) {});  // the others come while it is read
      in_step.get_future().wait();
      for (std::size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], replies.sink(i));
      gate.open();
      replies.wait(requests);
      for (std::size_t i = 0; i < requests.size(); ++i)
        expect_equal(replies.of(i), expected[i][0], fmt::format("{}, {}, request {}", device, company, i));
      EXPECT_EQ(engine->statistics().media_encoded, 6) << device;
      EXPECT_EQ(engine->statistics().media_reused, 2) << device;
      EXPECT_EQ(engine->statistics().media_pieces, passes) << device << ", " << company;
    }
  }
}

// Text of more than a page before a picture is read while the picture is being seen.
TEST(Pictures, LongTextBeforeOneIsReadMeanwhile) {
  const std::vector<Request> requests = {request_with({picture(1, 16, 16, 1)}, 300, 1, 3)};
  const std::vector<std::vector<Reply>> expected = alone(requests, "auto");
  std::int64_t read = -1;  // tokens, when the third piece is about to begin
  std::atomic<engine::LocalEngine*> running = nullptr;
  Gate gate;
  int steps = 0;
  const auto engine =
      small_engine({.vision = true, .picture_piece = 1, .vision_blocks = small_blocks, .before_step = gate.hook([&] {
                      if (++steps == 3) read = running.load()->statistics().prefilled_tokens;
                    })});
  running = engine.get();
  Replies replies;
  engine->submit(requests[0], replies.sink(0));
  gate.open();
  replies.wait(requests);
  expect_equal(replies.of(0), expected[0][0], "long text");
  EXPECT_EQ(read, 300);
}

TEST(Pictures, ThePrefixCacheTellsThemApart) {
  const auto engine = small_engine({.vision = true});
  // 130 tokens of text, then 64 placeholders: the first block is text alone, the second holds most of the picture.
  const auto ask = [&](std::uint64_t seed) {
    const Request request = request_with({picture(1, 16, 16, seed)}, 130, 1);
    Request longer = request;
    const std::vector<TokenId> more = random_prompt(100, 9);
    longer.prompt_ids.insert(longer.prompt_ids.end(), more.begin(), more.end());
    return run_all(*engine, {longer}).of(0);
  };
  const Reply first = ask(1);
  EXPECT_EQ(first.usage.cached_tokens, 0);
  const Reply again = ask(1);
  EXPECT_EQ(again.usage.cached_tokens, 256);
  expect_equal(again, first, "the same picture");
  EXPECT_EQ(engine->statistics().media_encoded, 1);
  EXPECT_EQ(engine->statistics().media_reused, 0) << "its placeholders came from the prefix cache";
  const Reply other = ask(2);
  EXPECT_EQ(other.usage.cached_tokens, 128);
  EXPECT_NE(other.logprobs[0].logprob, first.logprobs[0].logprob);
  EXPECT_EQ(engine->statistics().media_encoded, 2);
}

TEST(Pictures, TheSamePictureIsComputedOnce) {
  const auto engine = small_engine({.prefix_cache = false, .vision = true});
  const Media shown = picture(1, 4, 6, 1);
  run_all(*engine, {request_with({shown, shown}, 20, 1)});
  EXPECT_EQ(engine->statistics().media_encoded, 1);
  EXPECT_EQ(engine->statistics().media_reused, 1);
  Media copy = picture(1, 4, 6, 1);  // other memory, equal values
  run_all(*engine, {request_with({copy}, 3, 2)});
  EXPECT_EQ(engine->statistics().media_encoded, 1);
  EXPECT_EQ(engine->statistics().media_reused, 2);
  Media turned = picture(1, 6, 4, 1);  // equal values in another shape
  run_all(*engine, {request_with({turned}, 3, 2)});
  EXPECT_EQ(engine->statistics().media_encoded, 2);
}

TEST(Pictures, FeaturesMayComeReady) {
  const auto model = test::small_model({.vision = true});
  const Media shown = picture(1, 4, 6, 1);
  const std::vector<std::byte> bytes = model->picture_features({1, 4, 6}, *shown.pixels);
  std::vector<float> features(bytes.size() / dtype_size(model->tower()->feature_dtype()));
  for (std::size_t i = 0; i < features.size(); ++i) {
    features[i] = model->tower()->feature_dtype() == DType::f32
                      ? reinterpret_cast<const float*>(bytes.data())[i]
                      : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]);
  }
  Media ready = shown;
  ready.pixels = nullptr;
  ready.features = std::make_shared<const std::vector<float>>(features);
  const auto engine = small_engine({.vision = true});
  const Reply expected = run_all(*engine, {request_with({shown}, 20, 1)}).of(0);
  expect_equal(run_all(*engine, {request_with({ready}, 20, 1)}).of(0), expected, "features");
  EXPECT_EQ(engine->statistics().media_encoded, 1);
}

std::string refusal(Engine& engine, const Request& request) {
  try {
    engine.submit(request, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "accepted";
}

TEST(Pictures, WhatDoesNotFitIsRefusedAndTheNextRequestWorks) {
  const auto engine = small_engine({.vision = true});
  EXPECT_EQ(engine->info().media.unavailable, "");
  EXPECT_EQ(engine->info().media.image_id, image_id);
  EXPECT_EQ(engine->info().media.video_id, video_id);
  EXPECT_EQ(engine->info().media.max_patches, 256);
  const auto refused = [&](const std::string& what, const std::function<void(Request&)>& change) {
    Request request = request_with({picture(1, 4, 6, 1)}, 20, 1);
    change(request);
    const std::string said = refusal(*engine, request);
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  refused("has 7 placeholders (id 310) for images whose features are 6 rows",
          [](Request& request) { request.prompt_ids.push_back(image_id); });
  refused("has 5 placeholders", [](Request& request) { request.prompt_ids[20] = 1; });
  refused("has 6 placeholders (id 310) for images whose features are 0 rows",
          [](Request& request) { request.media.clear(); });
  refused("has 0 placeholders (id 311) for videos",
          [](Request& request) { request.media.push_back(picture(1, 2, 2, 1, Media::Kind::video)); });
  refused("media 0: a picture of 4 x 5 patches", [](Request& request) { request.media[0].w = 5; });
  refused("must be from 1", [](Request& request) { request.media[0].h = -4; });
  refused("is too large", [](Request& request) { request.media[0].h = std::int64_t{1} << 29; });
  refused("an image of 2 temporal groups", [](Request& request) { request.media[0].t = 2; });
  refused("28224 pixel values where 1 x 4 x 8 patches have 37632", [](Request& request) { request.media[0].w = 8; });
  refused("one of the two", [](Request& request) { request.media[0].pixels = nullptr; });
  refused("one of the two", [](Request& request) { request.media[0].features = request.media[0].pixels; });
  refused("--max-picture-patches", [](Request& request) { request.media[0] = picture(1, 16, 18, 1); });
  refused("not a finite number", [](Request& request) {
    std::vector<float> pixels = *request.media[0].pixels;
    pixels[77] = std::numeric_limits<float>::quiet_NaN();
    request.media[0].pixels = std::make_shared<const std::vector<float>>(pixels);
  });
  EXPECT_EQ(run_all(*engine, {request_with({picture(1, 4, 6, 1)}, 20, 1)}).of(0).finish, FinishReason::length);
}

TEST(Pictures, AModelWithoutATowerSaysSo) {
  const auto engine = small_engine({});
  EXPECT_NE(engine->info().media.unavailable.find("no vision_config"), std::string::npos);
  EXPECT_NE(refusal(*engine, request_with({picture(1, 4, 6, 1)}, 20, 1)).find("takes no pictures"), std::string::npos);
}

engine::FeatureRows rows_of(std::size_t bytes) { return std::make_shared<const std::vector<std::byte>>(bytes); }

TEST(FeatureCache, KeepsWhatWasUsedLast) {
  engine::FeatureCache cache(100);
  cache.keep("a", rows_of(40));
  cache.keep("b", rows_of(40));
  EXPECT_NE(cache.find("a"), nullptr);
  cache.keep("c", rows_of(20));
  EXPECT_EQ(cache.bytes(), 100);
  cache.keep("d", rows_of(1));  // b was used longest ago
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_NE(cache.find("a"), nullptr);
  EXPECT_NE(cache.find("c"), nullptr);
  EXPECT_EQ(cache.bytes(), 61);
  cache.keep("huge", rows_of(101));  // would push out all and not fit
  EXPECT_EQ(cache.find("huge"), nullptr);
  EXPECT_EQ(cache.bytes(), 61);
  const engine::FeatureRows held = cache.find("a");
  cache.keep("e", rows_of(100));
  EXPECT_EQ(cache.find("a"), nullptr);
  EXPECT_EQ(held->size(), 40u) << "who holds rows keeps them";
  EXPECT_EQ(cache.bytes(), 100);
}

}  // namespace
}  // namespace m3
