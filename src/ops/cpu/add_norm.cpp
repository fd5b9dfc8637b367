#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"

namespace m3::ops::cpu {

void CpuBackend::add_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm, const Tensor& normed,
                          Communicator* communicator) {
  refuse_communicator(communicator);
  const std::int64_t columns = residual.columns;
  check_tensor(residual, DType::bf16, residual.rows, columns, "add_norm: residual");
  if (!delta.empty()) check_tensor(delta, DType::bf16, residual.rows, columns, "add_norm: delta");
  if (!normed.empty()) {
    check_tensor(normed, DType::bf16, residual.rows, columns, "add_norm: normed");
    if (static_cast<std::int64_t>(norm.weight.size()) != columns) {
      fail_internal("add_norm: {} weights for {} columns", norm.weight.size(), columns);
    }
  }
  pool_.split(residual.rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      kernels_.add_norm(reinterpret_cast<std::uint16_t*>(residual.row(row)),
                        delta.empty() ? nullptr : reinterpret_cast<const std::uint16_t*>(delta.row(row)),
                        norm.weight.data(), norm.gemma, norm.eps, columns,
                        normed.empty() ? nullptr : reinterpret_cast<std::uint16_t*>(normed.row(row)));
    }
  });
}

}  // namespace m3::ops::cpu
