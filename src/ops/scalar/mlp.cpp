#include "src/ops/scalar/mlp.h"

#include <cmath>

#include "src/base/error.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

float swigluoai(float gate, float up, const Activation& activation) {
  const float g = std::min(gate, activation.limit);
  const float u = std::min(std::max(up, -activation.limit), activation.limit);
  const float sigmoid = 1.0f / (1.0f + std::exp(-activation.alpha * g));
  return g * sigmoid * (u + activation.beta);
}

void check_mlp(const MlpWeights& weights, std::int64_t hidden) {
  const std::int64_t width = weights.gate.rows;
  if (weights.gate.columns != hidden || weights.up.columns != hidden || weights.up.rows != width ||
      weights.down.columns != width || weights.down.rows != hidden) {
    fail_internal("an MLP of gate [{}, {}], up [{}, {}], down [{}, {}] on a hidden size of {}", width,
                  weights.gate.columns, weights.up.rows, weights.up.columns, weights.down.rows, weights.down.columns,
                  hidden);
  }
}

std::int64_t ScalarBackend::experts_scratch_bytes(const Limits& limits) const {
  Arena arena;
  MlpScratch(arena, pool_.size(), limits.tokens, limits.hidden, limits.intermediate);
  return arena.used();
}

// A dense layer's MLP is a shared expert without routed ones.
void ScalarBackend::mlp(const Tensor& hidden, const MlpWeights& weights, const Activation& activation,
                        const Tensor& out) {
  experts(hidden, Routing{}, 0, {}, &weights, 1.0f, activation, out);
}

}  // namespace m3::ops::scalar
