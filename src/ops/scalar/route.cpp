#include "src/base/error.h"
#include "src/ops/host/choose.h"
#include "src/ops/scalar/matmul.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// spec §3.11: fp32 from the logits on.
void ScalarBackend::route(const Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
                          const Routing& routing) {
  const std::int64_t experts = gate.rows;
  const int k = routing.experts_per_token;
  check_tensor(hidden, DType::f32, hidden.rows, gate.columns, "route");
  if (!bias.empty() && static_cast<std::int64_t>(bias.size()) != experts) {
    fail_internal("route: {} biases for {} experts", bias.size(), experts);
  }
  Arena arena = scratch();
  const MatmulScratch memory(arena, pool_.size(), hidden.rows, gate.columns);
  auto* logits = arena.take<float>(hidden.rows * experts);
  matmul(
      pool_, memory, hidden.rows, [&](std::int64_t t) { return reinterpret_cast<const float*>(hidden.row(t)); }, gate,
      [&](std::int64_t t, std::int64_t expert, float value) { logits[t * experts + expert] = value; });
  pool_.split(hidden.rows, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      choose_experts({logits + t * experts, static_cast<std::size_t>(experts)}, bias, k, routing.expert_ids + t * k,
                     routing.expert_weights + t * k);
    }
  });
}

}  // namespace m3::ops::scalar
