#include "src/engine/request_check.h"

#include "src/base/error.h"
#include "src/engine/sampling.h"

namespace m3::engine {

namespace {

constexpr int most_samples = 1024;
constexpr int most_logprobs = 1024;

void check_prompt(const Request& request, const ModelInfo& info, std::int64_t position_limit) {
  if (request.prompt_ids.empty()) fail_usage("the prompt is empty: give at least one token");
  for (std::size_t i = 0; i < request.prompt_ids.size(); ++i) {
    const TokenId id = request.prompt_ids[i];
    if (id < 0 || id >= info.vocab_size)
      fail_usage("prompt id {} at index {} is outside the vocabulary of {}", id, i, info.vocab_size);
  }
  const auto prompt = static_cast<std::int64_t>(request.prompt_ids.size());
  if (prompt >= info.max_model_len) {
    fail_usage(
        "the prompt has {} tokens but the context holds {}, of which at least one is for the reply; shorten it{}",
        prompt, info.max_model_len, info.max_model_len < position_limit ? " or raise --max-model-len" : "");
  }
}

void check_logprobs(const char* name, int value) {
  if (value > most_logprobs || value < -1) fail_usage("{} {}: give a number from 0 to {}", name, value, most_logprobs);
}

void check_reasoning(const Request& request, const ModelInfo& info) {
  const Reasoning& reasoning = request.reasoning;
  const auto inside = [&](TokenId id) { return id >= 0 && id < info.vocab_size; };
  if (reasoning.begin_id >= info.vocab_size || reasoning.end_id >= info.vocab_size) {
    fail_usage("reasoning: the ids {} and {} lie outside the vocabulary of {}", reasoning.begin_id, reasoning.end_id,
               info.vocab_size);
  }
  if (reasoning.budget && *reasoning.budget < 0)
    fail_usage("reasoning budget {}: give a number from 0", *reasoning.budget);
  if (reasoning.start == Reasoning::Start::outside) {
    if (reasoning.budget) fail_usage("reasoning budget {}: there is no reasoning to limit", *reasoning.budget);
    return;
  }
  const bool needed = reasoning.budget || request.constraint.kind != Constraint::Kind::none;
  if (!needed) return;
  if (!inside(reasoning.end_id)) fail_usage("reasoning: no token ends it, so nothing can be required behind it");
  if (reasoning.start == Reasoning::Start::either && !inside(reasoning.begin_id)) {
    fail_usage("reasoning: no token begins it");
  }
}

}  // namespace

void check_request(const Request& request, const ModelInfo& info, std::int64_t position_limit) {
  check_prompt(request, info, position_limit);
  check_sampling(request.sampling, info.vocab_size);
  if (request.samples < 1 || request.samples > most_samples)
    fail_usage("samples {}: give a number from 1 to {}", request.samples, most_samples);
  if (request.max_tokens && *request.max_tokens < 1)
    fail_usage("max_tokens {}: give a number from 1", *request.max_tokens);
  if (request.min_tokens < 0) fail_usage("min_tokens {}: give a number from 0", request.min_tokens);
  if (request.max_tokens && request.min_tokens > *request.max_tokens)
    fail_usage("min_tokens {} is more than max_tokens {}", request.min_tokens, *request.max_tokens);
  check_logprobs("logprobs", request.logprobs);
  check_logprobs("prompt_logprobs", request.prompt_logprobs);
  check_reasoning(request, info);
  for (const std::string& stop : request.stop) {
    if (stop.empty()) fail_usage("a stop string is empty");
  }
  for (const TokenId id : request.stop_ids) {
    if (id < 0 || id >= info.vocab_size) fail_usage("stop id {} is outside the vocabulary of {}", id, info.vocab_size);
  }
}

}  // namespace m3::engine
