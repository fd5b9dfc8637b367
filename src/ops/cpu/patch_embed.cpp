#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"

namespace m3::ops::cpu {

void CpuBackend::patch_embed(const Tensor& pixels, const WeightMatrix& weight, const Tensor& out) {
  check_tensor(pixels, DType::f32, out.rows, weight.columns, "patch_embed: pixels");
  check_tensor(out, DType::bf16, out.rows, weight.rows, "patch_embed: out");
  multiply(
      out.rows, {&weight, 1}, scratch(), [&](std::int64_t t) { return reinterpret_cast<const float*>(pixels.row(t)); },
      [&](std::int64_t t, std::int64_t first, const float* values, std::int64_t count) {
        kernels_.round_bf16(values, count, reinterpret_cast<std::uint16_t*>(out.row(t)) + first);
      });
}

}  // namespace m3::ops::cpu
