#include "src/ops/scalar/matmul.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// spec §4.4: a convolution whose windows do not overlap is one product a patch.
void ScalarBackend::patch_embed(const Tensor& pixels, const WeightMatrix& weight, const Tensor& out) {
  check_tensor(pixels, DType::f32, out.rows, weight.columns, "patch_embed: pixels");
  check_tensor(out, DType::f32, out.rows, weight.rows, "patch_embed: out");
  Arena arena = scratch();
  const MatmulScratch memory(arena, pool_.size(), out.rows, weight.columns);
  matmul(
      pool_, memory, out.rows, [&](std::int64_t t) { return reinterpret_cast<const float*>(pixels.row(t)); }, weight,
      [&](std::int64_t t, std::int64_t row, float value) {
        reinterpret_cast<float*>(out.row(t))[row] = rounded(value);
      });
}

}  // namespace m3::ops::scalar
