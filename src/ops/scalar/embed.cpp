#include <algorithm>
#include <cstring>

#include "src/ops/host/rows.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

std::int64_t ScalarBackend::embed_scratch_bytes(const Limits&) const { return 0; }

// spec §3.1: a row of the table, no scaling. An id that names no row (a failed sample of the step before)
// gives zeros.
void ScalarBackend::embed(const Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
                          const Tensor& residual) {
  check_tensor(residual, DType::f32, batch.tokens, table.columns, "embed");
  pool_.split(batch.tokens, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) {
      if (live_sequence(batch, token) < 0) continue;
      if (const std::byte* feature = feature_row(batch, token, table.columns, DType::f32)) {
        std::memcpy(residual.row(token), feature, static_cast<std::size_t>(table.columns) * sizeof(float));
        continue;
      }
      std::int32_t id = batch.token_ids[token];
      if (id < 0) id = previous[-id - 1];
      auto* row = reinterpret_cast<float*>(residual.row(token));
      if (id < 0 || id >= table.rows) {
        std::fill(row, row + table.columns, 0.0f);
        continue;
      }
      widen_row(table, id, row);
      for (std::int64_t column = 0; column < table.columns; ++column) row[column] = rounded(row[column]);
    }
  });
}

}  // namespace m3::ops::scalar
