#include "src/ops/scalar/matmul.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

std::int64_t ScalarBackend::matmul_scratch_bytes(const Limits& limits) const {
  Arena arena;
  const std::int64_t columns = std::max({limits.hidden, limits.intermediate, limits.query_heads * head_dim});
  MatmulScratch(arena, pool_.size(), std::max(limits.tokens, limits.logits_rows), columns);
  arena.take<float>(limits.tokens * limits.experts);  // route
  return arena.used();
}

// spec §3.3, §3.10: every product is rounded once.
void ScalarBackend::linear(const Tensor& x, std::span<const WeightMatrix> weights, const Tensor& out) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) {
    check_tensor(x, DType::f32, x.rows, weight.columns, "linear: x");
    rows += weight.rows;
  }
  check_tensor(out, DType::f32, x.rows, rows, "linear: out");
  std::int64_t first = 0;
  for (const WeightMatrix& weight : weights) {
    Arena arena = scratch();
    const MatmulScratch memory(arena, pool_.size(), x.rows, weight.columns);
    matmul(
        pool_, memory, x.rows, [&](std::int64_t t) { return reinterpret_cast<const float*>(x.row(t)); }, weight,
        [&](std::int64_t t, std::int64_t row, float value) {
          reinterpret_cast<float*>(out.row(t))[first + row] = rounded(value);
        });
    first += weight.rows;
  }
}

}  // namespace m3::ops::scalar
