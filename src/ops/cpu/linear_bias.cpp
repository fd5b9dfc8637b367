#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"

namespace m3::ops::cpu {

void CpuBackend::linear_bias(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                             const Tensor& out) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) {
    check_tensor(x, DType::bf16, x.rows, weight.columns, "linear_bias: x");
    rows += weight.rows;
  }
  check_tensor(out, DType::bf16, x.rows, rows, "linear_bias: out");
  if (std::ssize(bias) != rows) fail_internal("linear_bias: {} biases for {} rows", bias.size(), rows);
  multiply(
      x.rows, weights, scratch(), [&](std::int64_t t) { return reinterpret_cast<const std::uint16_t*>(x.row(t)); },
      [&](std::int64_t t, std::int64_t first, const float* values, std::int64_t count) {
        kernels_.add_bias(values, bias.data() + first, count, reinterpret_cast<std::uint16_t*>(out.row(t)) + first);
      });
}

}  // namespace m3::ops::cpu
