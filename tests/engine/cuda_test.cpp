// On a machine with a GPU: the shipped checkpoint's greedy replies are those of the processor. Skipped elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
// Another order of summation makes other roundings to bf16 and, where blocks tie nearly, another choice: on these prompts
// margins of the processor's two instruction sets differ by 0.025 (root mean square), at most 0.22. A GPU rounds the weights
// of attention too, so three times as much is allowed.
constexpr double most_deviation = 0.075, most_noise = 0.66;

double margin_of(const std::vector<TokenLogprob>& best) { return double{best[0].logprob} - double{best[1].logprob}; }

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
  // How far the two best logits lie apart, on both, at every token whose prefix is the same: their differences are the
  // noise of rounding, and a reply may part only where the processor's margin is no more than that noise.
  int equal = 0;
  struct Parting {
    std::size_t prompt, token;
    double margin;
  };
  std::vector<Parting> partings;
  double squares = 0, largest = 0;
  std::int64_t compared = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const test::Reply theirs = expected.of(i), ours = replies.of(i);
    ASSERT_EQ(ours.error, "");
    const auto [a, b] = std::ranges::mismatch(theirs.ids, ours.ids);
    const auto common = static_cast<std::size_t>(a - theirs.ids.begin());
    for (std::size_t at = 0; at < common; ++at) {
      const std::vector<TokenLogprob>&mine = ours.top_logprobs[at], &other = theirs.top_logprobs[at];
      if (mine[0].id != other[0].id || mine[1].id != other[1].id) continue;
      const double noise = margin_of(mine) - margin_of(other);
      squares += noise * noise;
      largest = std::max(largest, std::abs(noise));
      ++compared;
    }
    if (common == theirs.ids.size()) {
      ++equal;
    } else {
      partings.push_back({i, common, margin_of(theirs.top_logprobs[common])});
    }
  }
  ASSERT_GT(compared, prompts * reply_tokens / 2);
  const double deviation = std::sqrt(squares / static_cast<double>(compared));
  std::cout << equal << " of " << prompts << " replies of " << reply_tokens << " tokens are equal; margins differ by "
            << deviation << " (root mean square of " << compared << "), at most " << largest << "\n";
  for (const Parting& parting : partings) {
    std::cout << "prompt " << parting.prompt << ": the first difference is at token " << parting.token << ", margin "
              << parting.margin << "\n";
    EXPECT_LT(parting.margin, largest) << "prompt " << parting.prompt;
  }
  EXPECT_LT(deviation, most_deviation);
  EXPECT_LT(largest, most_noise);
}

}  // namespace
}  // namespace m3::engine
