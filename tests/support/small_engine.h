// An engine over a small checkpoint with seeded weights, and replies computed without any scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/local_engine.h"
#include "tests/support/device_judge.h"

namespace m3::test {

struct SmallOptions {
  std::string device = "auto";            // "walled": the judge behind a wall (device_judge.h)
  DeviceJudge::Counts* counts = nullptr;  // of "walled"
  std::int64_t step_tokens = 512;
  std::int64_t sequences = 16;
  std::int64_t pages = 0;  // 0: as many as the sequences can use
  std::int64_t context = 640;
  bool prefix_cache = true;
  std::int64_t queued = 1024;
  bool vision = false;  // a tower with two layers; placeholders are 310 (image) and 311 (video)
  std::int64_t feature_cache_bytes = std::int64_t{1} << 20;
  double picture_piece = 0;  // as LocalEngineOptions has it
  std::optional<model::VisionBlocks> vision_blocks = {};
  std::function<void(std::int64_t step)> before_step = {};
};

// Three layers, 320 ids of which 0 … 258 and 300 … 302 have tokens, no end token.
std::shared_ptr<engine::LoadedModel> small_model(const SmallOptions& options);
std::unique_ptr<engine::LocalEngine> small_engine(const SmallOptions& options);

struct Reply {
  std::vector<TokenId> ids;
  std::string text;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs, prompt_top_logprobs;
  FinishReason finish = FinishReason::none;
  std::string error;
  bool refused = false;
  Usage usage;
  int events_after_the_last = 0;
};

// What a set of requests gets, by its index and sample.
class Replies {
 public:
  EventSink sink(std::size_t request);
  // Waits for the last event of every sample.
  void wait(const std::vector<Request>& requests) const;
  Reply of(std::size_t request, int sample = 0) const;

 private:
  struct State;
  static std::shared_ptr<State> make();
  std::shared_ptr<State> state_ = make();
};

// Submits all, waits for all.
Replies run_all(Engine& engine, const std::vector<Request>& requests);

// One sample by a loop over forward() in chunks of 64; max_tokens is set.
Reply alone(engine::LoadedModel& model, const Request& request, int sample = 0);

// Ids that have tokens.
std::vector<TokenId> random_prompt(std::int64_t tokens, std::uint32_t seed);

}  // namespace m3::test
