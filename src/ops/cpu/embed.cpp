#include <algorithm>
#include <cstring>

#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/host/rows.h"

namespace m3::ops::cpu {

std::int64_t CpuBackend::embed_scratch_bytes(const Limits& limits) const {
  return pool_.size() * (limits.hidden * 4 + 64);
}

// An id that names no row (a failed sample of the step before) gives zeros.
void CpuBackend::embed(const Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
                       const Tensor& residual) {
  const std::int64_t columns = table.columns;
  check_tensor(residual, DType::bf16, batch.tokens, columns, "embed");
  Arena arena = scratch();
  auto* rows = arena.take<float>(pool_.size() * columns);
  pool_.split(batch.tokens, 8, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* wide = rows + thread * columns;
    for (std::int64_t token = begin; token < end; ++token) {
      if (live_sequence(batch, token) < 0) continue;
      if (const std::byte* feature = feature_row(batch, token, columns, DType::bf16)) {
        std::memcpy(residual.row(token), feature, static_cast<std::size_t>(columns) * 2);
        continue;
      }
      std::int32_t id = batch.token_ids[token];
      if (id < 0) id = previous[-id - 1];
      auto* row = reinterpret_cast<std::uint16_t*>(residual.row(token));
      if (id < 0 || id >= table.rows) {
        std::fill(row, row + columns, std::uint16_t{0});
      } else if (table.format == WeightFormat::bf16 && row_factor(table, id) == 1) {
        std::memcpy(row, table.values + id * table.row_bytes(), static_cast<std::size_t>(columns) * 2);
      } else {
        widen_row(table, id, wide);
        kernels_.round_bf16(wide, columns, row);
      }
    }
  });
}

}  // namespace m3::ops::cpu
