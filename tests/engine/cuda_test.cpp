// On a machine with a GPU: the shipped checkpoint's greedy replies are those of the processor. Skipped elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "m3/engine.h"
#include "src/base/mapped_file.h"
#include "src/ops/backends.h"
#include "tests/support/small_engine.h"

namespace m3::engine {
namespace {

constexpr int prompts = 50;
constexpr std::int64_t reply_tokens = 48;
// Logits differ in the last bits of bf16; where the first two are closer than this, either may win.
constexpr float decided_margin = 0.05f;

std::unique_ptr<Engine> load(const std::string& device) {
  EngineOptions options;
  options.checkpoint = M3_MODELS "/m3-tiny-chat";
  options.device = device;
  options.max_model_len = 4096;
  options.cache_bytes = std::int64_t{256} << 20;
  return Engine::load(options);
}

// Pieces of the held-out text of growing length, past the point where blocks are chosen.
std::vector<Request> requests_of(const Engine& engine) {
  const std::string text = read_text_file(M3_MODELS "/m3-tiny-chat/heldout-sample.txt", std::size_t{1} << 20);
  const std::vector<TokenId> ids = engine.encode(text, false);
  std::vector<Request> requests;
  for (int i = 0; i < prompts; ++i) {
    Request request;
    const std::size_t size = 4 + static_cast<std::size_t>(i * i) * 5 / 4;
    const std::size_t first = static_cast<std::size_t>(i) * 97 % (ids.size() - size);
    request.prompt_ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(first),
                              ids.begin() + static_cast<std::ptrdiff_t>(first + size));
    request.max_tokens = reply_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.logprobs = 2;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(Cuda, GreedyRepliesOfTheShippedCheckpointAreTheProcessors) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const auto cuda = load("cuda"), cpu = load(ops::cpu_backend_available() ? "cpu" : "scalar");
  const std::vector<Request> requests = requests_of(*cpu);
  const test::Replies expected = test::run_all(*cpu, requests), replies = test::run_all(*cuda, requests);
  int equal = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const test::Reply theirs = expected.of(i), ours = replies.of(i);
    ASSERT_EQ(ours.error, "");
    const auto [a, b] = std::ranges::mismatch(theirs.ids, ours.ids);
    if (a == theirs.ids.end()) {
      ++equal;
      continue;
    }
    const auto at = static_cast<std::size_t>(a - theirs.ids.begin());
    const float margin = theirs.top_logprobs[at][0].logprob - theirs.top_logprobs[at][1].logprob;
    std::cout << "prompt " << i << ": the first difference is at token " << at << ", margin " << margin << "\n";
    EXPECT_LT(margin, decided_margin) << "prompt " << i << " token " << at;
  }
  std::cout << equal << " of " << prompts << " replies of " << reply_tokens << " tokens are equal\n";
}

}  // namespace
}  // namespace m3::engine
