#include "src/engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace m3::engine {

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int count, double total) {
  if (count <= 0) return {};
  const std::size_t wanted = std::min(logits.size(), static_cast<std::size_t>(count));
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(wanted), ids.end(), before);
  std::vector<TokenLogprob> top;
  for (std::size_t i = 0; i < wanted; ++i) {
    top.push_back({ids[i], static_cast<float>(logits[static_cast<std::size_t>(ids[i])] - total)});
  }
  return top;
}

TokenLogprob logprob_of(std::span<const float> logits, TokenId id, double total) {
  return {id, static_cast<float>(logits[static_cast<std::size_t>(id)] - total)};
}

}  // namespace m3::engine
