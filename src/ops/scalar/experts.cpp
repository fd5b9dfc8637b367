#include "src/ops/scalar/mlp.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// spec §3.12-3.13: routed experts ascending, the scaling factor folded into their weights, then the shared
// expert; one rounding of the sum.
void ScalarBackend::experts(const Tensor& hidden, const Routing& routing, int first,
                            std::span<const MlpWeights> experts, const MlpWeights* shared, float routed_scaling_factor,
                            const Activation& activation, const Tensor& out) {
  const std::int64_t tokens = hidden.rows;
  const std::int64_t columns = hidden.columns;
  const int k = routing.experts_per_token;
  check_tensor(hidden, DType::f32, tokens, columns, "experts: hidden");
  check_tensor(out, DType::f32, tokens, columns, "experts: out");
  std::int64_t width = shared != nullptr ? shared->gate.rows : 0;
  for (const MlpWeights& expert : experts) {
    check_mlp(expert, columns);
    width = std::max(width, expert.gate.rows);
  }
  if (shared != nullptr) check_mlp(*shared, columns);
  Arena arena = scratch();
  const MlpScratch memory(arena, pool_.size(), tokens, columns, width);
  std::fill(memory.sums, memory.sums + tokens * columns, 0.0f);
  const auto round = [this](float value) { return rounded(value); };

  for (std::size_t expert = 0; expert < experts.size(); ++expert) {
    std::int64_t listed = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int slot = 0; slot < k; ++slot) {
        if (routing.expert_ids[t * k + slot] != first + static_cast<int>(expert)) continue;
        memory.weights[listed] = routed_scaling_factor * routing.expert_weights[t * k + slot];
        memory.listed[listed++] = t;
      }
    }
    if (listed == 0) continue;
    add_mlp(pool_, memory, hidden, listed, experts[expert], activation, round,
            [&](std::int64_t i) { return memory.weights[i]; });
  }
  if (shared != nullptr) {
    for (std::int64_t t = 0; t < tokens; ++t) memory.listed[t] = t;
    add_mlp(pool_, memory, hidden, tokens, *shared, activation, round, [](std::int64_t) { return 1.0f; });
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto* row = reinterpret_cast<float*>(out.row(t));
    for (std::int64_t i = 0; i < columns; ++i) row[i] = rounded(memory.sums[t * columns + i]);
  }
}

}  // namespace m3::ops::scalar
