#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"

namespace m3::ops::cpu {

void CpuBackend::layer_norm(const Tensor& residual, const Tensor& delta, const LayerNormWeight& norm,
                            const Tensor& normed) {
  const std::int64_t columns = residual.columns;
  check_tensor(residual, DType::bf16, residual.rows, columns, "layer_norm: residual");
  if (!delta.empty()) check_tensor(delta, DType::bf16, residual.rows, columns, "layer_norm: delta");
  if (!normed.empty()) {
    check_tensor(normed, DType::bf16, residual.rows, columns, "layer_norm: normed");
    if (std::ssize(norm.weight) != columns || std::ssize(norm.bias) != columns) {
      fail_internal("layer_norm: {} weights and {} biases for {} columns", norm.weight.size(), norm.bias.size(),
                    columns);
    }
  }
  pool_.split(residual.rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      kernels_.layer_norm(reinterpret_cast<std::uint16_t*>(residual.row(row)),
                          delta.empty() ? nullptr : reinterpret_cast<const std::uint16_t*>(delta.row(row)),
                          norm.weight.data(), norm.bias.data(), norm.eps, columns,
                          normed.empty() ? nullptr : reinterpret_cast<std::uint16_t*>(normed.row(row)));
    }
  });
}

}  // namespace m3::ops::cpu
