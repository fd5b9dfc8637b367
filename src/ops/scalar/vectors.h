// The judge's arithmetic on rows of floats. Sums run in 16 lanes (element i belongs to lane i mod 16), which
// are then added in a fixed tree: the same order for any batch, and a loop that compilers vectorise.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace m3::ops::scalar {

inline constexpr int lanes = 16;

inline float add_lanes(float (&lane)[lanes]) {
  for (int i = 0; i < 8; ++i) lane[i] += lane[i + 8];
  for (int i = 0; i < 4; ++i) lane[i] += lane[i + 4];
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

// 1/sqrt; NaN where the squares overflowed, since 1/sqrt(inf) = 0 would turn a broken row into one of plain zeros.
inline float inverse_root(float mean_plus_eps) {
  if (!(mean_plus_eps <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return 1.0f / std::sqrt(mean_plus_eps);
}

inline float dot(const float* a, const float* b, std::int64_t count) {
  float lane[lanes] = {};
  const std::int64_t rest = count % lanes;
  const std::int64_t whole = count - rest;
  for (std::int64_t i = 0; i < whole; i += lanes) {
    for (int j = 0; j < lanes; ++j) lane[j] += a[i + j] * b[i + j];
  }
  for (std::int64_t j = 0; j < rest; ++j) lane[j] += a[whole + j] * b[whole + j];
  return add_lanes(lane);
}

inline float sum(const float* a, std::int64_t count) {
  float lane[lanes] = {};
  const std::int64_t rest = count % lanes;
  const std::int64_t whole = count - rest;
  for (std::int64_t i = 0; i < whole; i += lanes) {
    for (int j = 0; j < lanes; ++j) lane[j] += a[i + j];
  }
  for (std::int64_t j = 0; j < rest; ++j) lane[j] += a[whole + j];
  return add_lanes(lane);
}

}  // namespace m3::ops::scalar
