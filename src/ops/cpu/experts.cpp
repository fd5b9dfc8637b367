#include <algorithm>

#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/cpu/mlp_jobs.h"

namespace m3::ops::cpu {

std::int64_t CpuBackend::experts_scratch_bytes(const Limits& limits) const {
  return bytes_of<MlpScratch>(limits.tokens, limits.tokens * (limits.experts_per_token + 1), limits.experts + 1,
                              limits.hidden, limits.intermediate) +
         pool_.size() * bytes_of<MultiplyPart>(kernels_, std::max(limits.hidden, limits.intermediate));
}

void CpuBackend::experts(const Tensor& hidden, const Routing& routing, int first, std::span<const MlpWeights> experts,
                         const MlpWeights* shared, float routed_scaling_factor, const Activation& activation,
                         const Tensor& out) {
  const std::int64_t tokens = hidden.rows;
  const std::int64_t columns = hidden.columns;
  const int k = routing.experts_per_token;
  const auto count = static_cast<std::int64_t>(experts.size());
  check_tensor(hidden, DType::bf16, tokens, columns, "experts: hidden");
  check_tensor(out, DType::bf16, tokens, columns, "experts: out");
  std::int64_t width = shared != nullptr ? shared->gate.rows : 0;
  for (const MlpWeights& expert : experts) {
    check_mlp(expert, columns);
    width = std::max(width, expert.gate.rows);
  }
  if (shared != nullptr) check_mlp(*shared, columns);

  Arena arena = scratch();
  const MlpScratch memory(arena, tokens, tokens * (k + 1), count + 1, columns, width);
  const ThreadArenas parts(arena, pool_.size(), bytes_of<MultiplyPart>(kernels_, std::max(columns, width)));

  // Entries by expert, tokens ascending within each; experts without a token take no job.
  for (std::int64_t expert = 0; expert <= count; ++expert) memory.jobs[expert] = {};
  for (std::int64_t i = 0; i < tokens * k; ++i) {
    const std::int64_t expert = routing.expert_ids[i] - first;
    if (expert >= 0 && expert < count) ++memory.jobs[expert].count;
  }
  std::int64_t entries = 0;
  for (std::int64_t expert = 0; expert < count; ++expert) {
    memory.jobs[expert].weights = &experts[static_cast<std::size_t>(expert)];
    memory.jobs[expert].begin = entries;
    entries += memory.jobs[expert].count;
    memory.jobs[expert].count = 0;
  }
  for (std::int64_t i = 0; i < tokens * k; ++i) {
    const std::int64_t expert = routing.expert_ids[i] - first;
    if (expert < 0 || expert >= count) continue;
    MlpJob& job = memory.jobs[expert];
    const std::int64_t entry = job.begin + job.count++;
    memory.tokens_of[entry] = static_cast<std::int32_t>(i / k);
    memory.weights_of[entry] = routed_scaling_factor * routing.expert_weights[i];
  }
  std::int64_t jobs = 0;
  for (std::int64_t expert = 0; expert < count; ++expert) {
    if (memory.jobs[expert].count > 0) memory.jobs[jobs++] = memory.jobs[expert];
  }
  if (shared != nullptr) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      memory.tokens_of[entries + t] = static_cast<std::int32_t>(t);
      memory.weights_of[entries + t] = 1;
    }
    memory.jobs[jobs++] = {shared, entries, tokens};
  }

  pool_.split(tokens, 16, [&](std::int64_t begin, std::int64_t end, int) {
    std::fill(memory.sums + begin * columns, memory.sums + end * columns, 0.0f);
  });
  MlpRunner(kernels_, pool_, memory, parts, hidden, width, activation).run(jobs);
  pool_.split(tokens, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.round_bf16(memory.sums + t * columns, columns, reinterpret_cast<std::uint16_t*>(out.row(t)));
    }
  });
}

}  // namespace m3::ops::cpu
