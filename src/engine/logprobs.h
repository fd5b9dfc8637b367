// Log-probabilities of raw logits: before penalties, temperature and filters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "m3/request.h"

namespace m3::engine {

// log Σ exp(logits), computed from the largest down; sums in double.
double log_sum_exp(std::span<const float> logits);

// The `count` most probable ids, descending, ties to the lower id. `total`: log_sum_exp(logits).
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int count, double total);

TokenLogprob logprob_of(std::span<const float> logits, TokenId id, double total);

}  // namespace m3::engine
