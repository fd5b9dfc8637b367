#include "src/base/error.h"
#include "src/ops/scalar/matmul.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// The bias joins the fp32 sum, before the one rounding.
void ScalarBackend::linear_bias(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                                const Tensor& out) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) {
    check_tensor(x, DType::f32, x.rows, weight.columns, "linear_bias: x");
    rows += weight.rows;
  }
  check_tensor(out, DType::f32, x.rows, rows, "linear_bias: out");
  if (std::ssize(bias) != rows) fail_internal("linear_bias: {} biases for {} rows", bias.size(), rows);
  std::int64_t first = 0;
  for (const WeightMatrix& weight : weights) {
    Arena arena = scratch();
    const MatmulScratch memory(arena, pool_.size(), x.rows, weight.columns);
    matmul(
        pool_, memory, x.rows, [&](std::int64_t t) { return reinterpret_cast<const float*>(x.row(t)); }, weight,
        [&](std::int64_t t, std::int64_t row, float value) {
          reinterpret_cast<float*>(out.row(t))[first + row] =
              rounded(value + bias[static_cast<std::size_t>(first + row)]);
        });
    first += weight.rows;
  }
}

}  // namespace m3::ops::scalar
