#include <cmath>
#include <numbers>

#include "src/ops/host/segments.h"
#include "src/ops/scalar/matmul.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

namespace {

// x · Φ(x). By erfc, so that the small values of negative x keep their digits.
float gelu(float x) { return x * (0.5f * std::erfc(x * -std::numbers::sqrt2_v<float> / 2)); }

}  // namespace

std::int64_t ScalarBackend::vision_linear_scratch_bytes(const Limits& limits) const {
  Arena arena;
  MatmulScratch(arena, pool_.size(), limits.vision_rows, std::max(limits.vision_columns, limits.vision_inner));
  arena.take<float>(limits.vision_rows * limits.vision_inner);
  return arena.used();
}

void ScalarBackend::gelu_mlp(const Tensor& hidden, const GeluMlpWeights& weights, const Tensor& out) {
  check_gelu_mlp(weights);
  check_tensor(hidden, DType::f32, hidden.rows, weights.fc1.columns, "gelu_mlp: hidden");
  check_tensor(out, DType::f32, hidden.rows, weights.fc2.rows, "gelu_mlp: out");
  const std::int64_t width = weights.fc1.rows;
  Arena arena = scratch();
  auto* inner = arena.take<float>(hidden.rows * width);
  const MatmulScratch memory(arena, pool_.size(), hidden.rows, std::max(weights.fc1.columns, width));
  matmul(
      pool_, memory, hidden.rows, [&](std::int64_t t) { return reinterpret_cast<const float*>(hidden.row(t)); },
      weights.fc1,
      [&](std::int64_t t, std::int64_t row, float value) {
        inner[t * width + row] = rounded(gelu(rounded(value + weights.fc1_bias[static_cast<std::size_t>(row)])));
      });
  matmul(
      pool_, memory, hidden.rows, [&](std::int64_t t) { return inner + t * width; }, weights.fc2,
      [&](std::int64_t t, std::int64_t row, float value) {
        reinterpret_cast<float*>(out.row(t))[row] = rounded(value + weights.fc2_bias[static_cast<std::size_t>(row)]);
      });
}

}  // namespace m3::ops::scalar
