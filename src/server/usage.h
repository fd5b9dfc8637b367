// Token counts of a reply.
#pragma once

#include "m3/request.h"
#include "src/server/json.h"

namespace m3::server {

// Over the samples of a reply, which share one prompt.
struct UsageSum {
  Usage total;
  void add(const Usage& sample) {
    total.prompt_tokens = sample.prompt_tokens;
    total.cached_tokens = std::max(total.cached_tokens, sample.cached_tokens);
    total.completion_tokens += sample.completion_tokens;
    total.reasoning_tokens += sample.reasoning_tokens;
  }
};

// OpenAI's "usage", with cached and reasoning tokens.
inline Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

// The chunk of a stream that has the usage and no choice, its last.
inline Json usage_chunk(Json head, Json usage) {
  head["choices"] = Json::array();
  head["usage"] = std::move(usage);
  return head;
}

}  // namespace m3::server
