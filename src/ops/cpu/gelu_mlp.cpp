#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"
#include "src/ops/host/segments.h"

namespace m3::ops::cpu {

std::int64_t CpuBackend::vision_linear_scratch_bytes(const Limits& limits) const {
  if (limits.vision_rows == 0) return 0;
  Arena arena;
  arena.take<std::uint16_t>(limits.vision_rows * limits.vision_inner);
  return arena.used() + multiply_bytes(kernels_, pool_.size(), limits.vision_rows,
                                       std::max(limits.vision_columns, limits.vision_inner));
}

void CpuBackend::gelu_mlp(const Tensor& hidden, const GeluMlpWeights& weights, const Tensor& out) {
  check_gelu_mlp(weights);
  check_tensor(hidden, DType::bf16, hidden.rows, weights.fc1.columns, "gelu_mlp: hidden");
  check_tensor(out, DType::bf16, hidden.rows, weights.fc2.rows, "gelu_mlp: out");
  const std::int64_t width = weights.fc1.rows;
  Arena arena = scratch();
  auto* inner = arena.take<std::uint16_t>(hidden.rows * width);
  multiply(
      hidden.rows, {&weights.fc1, 1}, arena,
      [&](std::int64_t t) { return reinterpret_cast<const std::uint16_t*>(hidden.row(t)); },
      [&](std::int64_t t, std::int64_t first, const float* values, std::int64_t count) {
        kernels_.add_bias_gelu(values, weights.fc1_bias.data() + first, count, inner + t * width + first);
      });
  multiply(
      hidden.rows, {&weights.fc2, 1}, arena, [&](std::int64_t t) { return inner + t * width; },
      [&](std::int64_t t, std::int64_t first, const float* values, std::int64_t count) {
        kernels_.add_bias(values, weights.fc2_bias.data() + first, count,
                          reinterpret_cast<std::uint16_t*>(out.row(t)) + first);
      });
}

}  // namespace m3::ops::cpu
