#include <cstring>

#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"

namespace m3::ops::cpu {

void CpuBackend::logits(const Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
                        const Tensor& logits) {
  const auto rows = static_cast<std::int64_t>(row_ids.size());
  check_tensor(hidden, DType::bf16, 0, head.columns, "logits: hidden");
  check_tensor(logits, DType::f32, rows, head.rows, "logits");
  for (const std::int32_t row : row_ids) {
    if (row < 0 || row >= hidden.rows) fail_internal("logits: row {} of {}", row, hidden.rows);
  }
  multiply(
      rows, {&head, 1}, scratch(),
      [&](std::int64_t r) {
        return reinterpret_cast<const std::uint16_t*>(hidden.row(row_ids[static_cast<std::size_t>(r)]));
      },
      [&](std::int64_t r, std::int64_t first, const float* values, std::int64_t count) {
        std::memcpy(reinterpret_cast<float*>(logits.row(r)) + first, values,
                    static_cast<std::size_t>(count) * sizeof(float));
      });
}

}  // namespace m3::ops::cpu
