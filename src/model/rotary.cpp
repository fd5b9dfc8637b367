#include "src/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/ops/ops.h"

namespace m3::model {

namespace {

// The (fractional) frequency index whose wavelength turns `rotations` times over the original context.
double correction_index(double rotations, double theta, double original_context) {
  return rotary_dim * std::log(original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}  // namespace

Rotary make_rotary(const ModelConfig& config) {
  Rotary rotary;
  rotary.inv_freq.resize(rotary_dim / 2);
  ops::plain_inverse_frequencies(config.rope_theta, rotary.inv_freq);
  if (!config.yarn) return rotary;

  const YarnScaling& yarn = *config.yarn;
  const auto original = static_cast<double>(yarn.original_max_position_embeddings);
  double low = correction_index(yarn.beta_fast, config.rope_theta, original);
  double high = correction_index(yarn.beta_slow, config.rope_theta, original);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += 0.001;  // keeps the ramp defined
  for (std::size_t i = 0; i < rotary.inv_freq.size(); ++i) {
    const float ramp = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    const float plain = rotary.inv_freq[i];
    const float stretched = plain / static_cast<float>(yarn.factor);
    rotary.inv_freq[i] = plain * (1 - ramp) + stretched * ramp;
  }
  rotary.factor =
      static_cast<float>(yarn.attention_factor.value_or(yarn.factor <= 1 ? 1.0 : 0.1 * std::log(yarn.factor) + 1.0));
  return rotary;
}

}  // namespace m3::model
