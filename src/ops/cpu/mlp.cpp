#include "src/ops/cpu/cpu_backend.h"

namespace m3::ops::cpu {

// A dense layer's MLP is a shared expert without routed ones: the same sums, one rounding.
void CpuBackend::mlp(const Tensor& hidden, const MlpWeights& weights, const Activation& activation, const Tensor& out) {
  experts(hidden, Routing{}, 0, {}, &weights, 1.0f, activation, out);
}

}  // namespace m3::ops::cpu
