#include "src/engine/sampling.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace m3::engine {

namespace {

void check_range(const char* name, double value, double low, double high, bool low_open = false) {
  const bool inside = std::isfinite(value) && value <= high && (low_open ? value > low : value >= low);
  if (!inside) fail_usage("{} {}: give a number in {}{}, {}]", name, value, low_open ? "(" : "[", low, high);
}

}  // namespace

void check_sampling(const SamplingParameters& parameters, std::int64_t vocab_size) {
  if (parameters.temperature) check_range("temperature", *parameters.temperature, 0, 2);
  if (parameters.top_p) check_range("top_p", *parameters.top_p, 0, 1, true);
  if (parameters.min_p) check_range("min_p", *parameters.min_p, 0, 1);
  if (parameters.repetition_penalty) check_range("repetition_penalty", *parameters.repetition_penalty, 0, 10, true);
  if (parameters.top_k && *parameters.top_k < -1)
    fail_usage("top_k {}: give a number from 1, or 0 or -1 for all", *parameters.top_k);
  check_range("presence_penalty", parameters.presence_penalty, -2, 2);
  check_range("frequency_penalty", parameters.frequency_penalty, -2, 2);
  for (const auto& [id, bias] : parameters.logit_bias) {
    if (id < 0 || id >= vocab_size) fail_usage("logit_bias names id {}, outside the vocabulary of {}", id, vocab_size);
    check_range("logit_bias", bias, -100, 100);
  }
  const auto check_ids = [&](const char* name, const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocab_size) fail_usage("{} names id {}, outside the vocabulary of {}", name, id, vocab_size);
    }
  };
  check_ids("allowed_ids", parameters.allowed_ids);
  for (const std::vector<TokenId>& run : parameters.banned) {
    if (run.empty()) fail_usage("banned: a run of tokens is empty");
    check_ids("banned", run);
  }
}

ops::SamplingRow make_sampling_row(const SamplingParameters& parameters, const GenerationConfig& defaults,
                                   std::uint64_t seed, const std::vector<ops::SamplingRow::Bias>& bias) {
  ops::SamplingRow row;
  const float default_temperature = defaults.do_sample.value_or(true) ? defaults.temperature.value_or(1.0f) : 0.0f;
  row.temperature = parameters.temperature.value_or(default_temperature);
  row.top_k = std::max(0, parameters.top_k.value_or(defaults.top_k.value_or(0)));
  row.top_p = parameters.top_p.value_or(defaults.top_p.value_or(1.0f));
  row.min_p = parameters.min_p.value_or(defaults.min_p.value_or(0.0f));
  row.repetition_penalty = parameters.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f));
  row.presence_penalty = parameters.presence_penalty;
  row.frequency_penalty = parameters.frequency_penalty;
  row.seed = seed;
  row.logit_bias = bias;
  return row;
}

}  // namespace m3::engine
