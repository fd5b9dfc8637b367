#include "src/base/error.h"
#include "src/ops/scalar/matmul.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// spec §3.14: fp32, not rounded.
void ScalarBackend::logits(const Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
                           const Tensor& logits) {
  const auto rows = static_cast<std::int64_t>(row_ids.size());
  check_tensor(hidden, DType::f32, 0, head.columns, "logits: hidden");
  check_tensor(logits, DType::f32, rows, head.rows, "logits");
  for (const std::int32_t row : row_ids) {
    if (row < 0 || row >= hidden.rows) fail_internal("logits: row {} of {}", row, hidden.rows);
  }
  Arena arena = scratch();
  const MatmulScratch memory(arena, pool_.size(), rows, head.columns);
  const auto x = [&](std::int64_t r) {
    return reinterpret_cast<const float*>(hidden.row(row_ids[static_cast<std::size_t>(r)]));
  };
  matmul(pool_, memory, rows, x, head,
         [&](std::int64_t r, std::int64_t id, float value) { reinterpret_cast<float*>(logits.row(r))[id] = value; });
}

}  // namespace m3::ops::scalar
