#include <cstring>

#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/multiply.h"
#include "src/ops/host/choose.h"

namespace m3::ops::cpu {

void CpuBackend::route(const Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
                       const Routing& routing) {
  const std::int64_t experts = gate.rows;
  const int k = routing.experts_per_token;
  check_tensor(hidden, DType::bf16, hidden.rows, gate.columns, "route");
  if (!bias.empty() && static_cast<std::int64_t>(bias.size()) != experts) {
    fail_internal("route: {} biases for {} experts", bias.size(), experts);
  }
  Arena arena = scratch();
  auto* logits = arena.take<float>(hidden.rows * experts);
  multiply(
      hidden.rows, {&gate, 1}, arena,
      [&](std::int64_t t) { return reinterpret_cast<const std::uint16_t*>(hidden.row(t)); },
      [&](std::int64_t t, std::int64_t first, const float* values, std::int64_t count) {
        std::memcpy(logits + t * experts + first, values, static_cast<std::size_t>(count) * sizeof(float));
      });
  pool_.split(hidden.rows, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      choose_experts({logits + t * experts, static_cast<std::size_t>(experts)}, bias, k, routing.expert_ids + t * k,
                     routing.expert_weights + t * k);
    }
  });
}

}  // namespace m3::ops::cpu
