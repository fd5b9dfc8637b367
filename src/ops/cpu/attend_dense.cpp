#include "src/ops/cpu/attention.h"

namespace m3::ops::cpu {

void CpuBackend::attend_dense(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                              const Tensor& out) {
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_dense: q");
  check_tensor(out, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_dense: out");
  const AttentionTasks tasks(kernels_, args, q, pages, out);
  const auto end_of = [&](std::int64_t token) { return std::int64_t{batch.positions[token]} + 1; };
  const auto begin_of = [&](std::int64_t token) {
    return args.window > 0 ? std::max<std::int64_t>(0, end_of(token) - args.window) : 0;
  };
  const auto runs = [&](std::int64_t task) -> std::int64_t {
    const std::int64_t token = tasks.token(task);
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0) return 0;
    const std::int64_t own = (end_of(token) - 1) / page_tokens;
    return kv_page(batch, sequence, own) < 0 ? 0 : own + 1 - begin_of(token) / page_tokens;
  };
  const auto run = [&](std::int64_t task, std::int64_t i) {
    const std::int64_t token = tasks.token(task);
    const std::int64_t begin = begin_of(token);
    const std::int64_t block = begin / page_tokens + i;
    return KeyRun{kv_page(batch, batch.sequence_of_token[token], block),
                  std::max<std::int64_t>(0, begin - block * page_tokens),
                  std::min<std::int64_t>(page_tokens, end_of(token) - block * page_tokens)};
  };
  attend_batch(pool_, scratch(), limits().context, batch.tokens, tasks, runs, run);
}

}  // namespace m3::ops::cpu
