#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"

namespace m3::ops::cpu {

std::int64_t CpuBackend::linear_scratch_bytes(const Limits& limits) const {
  const std::int64_t columns = std::max({limits.hidden, limits.intermediate, limits.query_heads * head_dim});
  const std::int64_t route = limits.tokens * limits.experts * static_cast<std::int64_t>(sizeof(float)) + 64;
  return route + multiply_bytes(kernels_, pool_.size(), std::max(limits.tokens, limits.logits_rows), columns);
}

void CpuBackend::linear(const Tensor& x, std::span<const WeightMatrix> weights, const Tensor& out) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) {
    check_tensor(x, DType::bf16, x.rows, weight.columns, "linear: x");
    rows += weight.rows;
  }
  check_tensor(out, DType::bf16, x.rows, rows, "linear: out");
  multiply(
      x.rows, weights, scratch(), [&](std::int64_t t) { return reinterpret_cast<const std::uint16_t*>(x.row(t)); },
      [&](std::int64_t t, std::int64_t first, const float* values, std::int64_t count) {
        kernels_.round_bf16(values, count, reinterpret_cast<std::uint16_t*>(out.row(t)) + first);
      });
}

}  // namespace m3::ops::cpu
