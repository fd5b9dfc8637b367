// Activations as e4m3 codes with one scale a token (ptpc_fp8).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "src/base/number_formats.h"

namespace m3::ops {

// out[count] <- the values of the codes e4m3(x / s); returns s = max|x| / 448, or 1 for a row of zeros.
inline float quantise_token(const float* x, std::int64_t count, float* out) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  for (std::int64_t i = 0; i < count; ++i) out[i] = e4m3_to_float(float_to_e4m3(x[i] / scale));
  return scale;
}

}  // namespace m3::ops
