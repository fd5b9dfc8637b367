#include <cmath>

#include "src/base/error.h"
#include "src/ops/scalar/scalar_backend.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

// spec §4.4: x <- round(x + delta); y = round((x - mean) · r · w + b), r = 1/sqrt(mean((x - mean)²) + eps).
void ScalarBackend::layer_norm(const Tensor& residual, const Tensor& delta, const LayerNormWeight& norm,
                               const Tensor& normed) {
  const std::int64_t columns = residual.columns;
  check_tensor(residual, DType::f32, residual.rows, columns, "layer_norm: residual");
  if (!delta.empty()) check_tensor(delta, DType::f32, residual.rows, columns, "layer_norm: delta");
  if (!normed.empty()) {
    check_tensor(normed, DType::f32, residual.rows, columns, "layer_norm: normed");
    if (std::ssize(norm.weight) != columns || std::ssize(norm.bias) != columns) {
      fail_internal("layer_norm: {} weights and {} biases for {} columns", norm.weight.size(), norm.bias.size(),
                    columns);
    }
  }
  const auto count = static_cast<float>(columns);
  pool_.split(residual.rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      auto* x = reinterpret_cast<float*>(residual.row(row));
      if (!delta.empty()) {
        const auto* d = reinterpret_cast<const float*>(delta.row(row));
        for (std::int64_t i = 0; i < columns; ++i) x[i] = rounded(x[i] + d[i]);
      }
      if (normed.empty()) continue;
      auto* y = reinterpret_cast<float*>(normed.row(row));
      const float mean = sum(x, columns) / count;
      for (std::int64_t i = 0; i < columns; ++i) y[i] = x[i] - mean;
      const float r = inverse_root(dot(y, y, columns) / count + norm.eps);
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto at = static_cast<std::size_t>(i);
        y[i] = rounded((y[i] * r) * norm.weight[at] + norm.bias[at]);
      }
    }
  });
}

}  // namespace m3::ops::scalar
