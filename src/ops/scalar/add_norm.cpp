#include <cmath>

#include "src/base/error.h"
#include "src/ops/scalar/scalar_backend.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

// spec §3.2: x <- round(x + delta); y = round((x · r) · (1 + w)) with r = 1/sqrt(mean(x²) + eps).
void ScalarBackend::add_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm, const Tensor& normed,
                             Communicator* communicator) {
  refuse_communicator(communicator);
  const std::int64_t columns = residual.columns;
  check_tensor(residual, DType::f32, residual.rows, columns, "add_norm: residual");
  if (!delta.empty()) check_tensor(delta, DType::f32, residual.rows, columns, "add_norm: delta");
  if (!normed.empty()) {
    check_tensor(normed, DType::f32, residual.rows, columns, "add_norm: normed");
    if (static_cast<std::int64_t>(norm.weight.size()) != columns) {
      fail_internal("add_norm: {} weights for {} columns", norm.weight.size(), columns);
    }
  }
  pool_.split(residual.rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      auto* x = reinterpret_cast<float*>(residual.row(row));
      if (!delta.empty()) {
        const auto* d = reinterpret_cast<const float*>(delta.row(row));
        for (std::int64_t i = 0; i < columns; ++i) x[i] = rounded(x[i] + d[i]);
      }
      if (normed.empty()) continue;
      auto* y = reinterpret_cast<float*>(normed.row(row));
      const float mean = dot(x, x, columns) / static_cast<float>(columns);
      const float r = inverse_root(mean + norm.eps);
      for (std::int64_t i = 0; i < columns; ++i) {
        const float w = norm.weight[static_cast<std::size_t>(i)];
        y[i] = rounded((x[i] * r) * (norm.gemma ? 1.0f + w : w));
      }
    }
  });
}

}  // namespace m3::ops::scalar
