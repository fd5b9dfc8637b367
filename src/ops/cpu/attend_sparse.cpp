#include "src/ops/cpu/attention.h"

namespace m3::ops::cpu {

void CpuBackend::attend_sparse(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                               const std::int32_t* block_ids, const Tensor& out) {
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_sparse: q");
  check_tensor(out, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_sparse: out");
  const AttentionTasks tasks(kernels_, args, q, pages, out);
  const auto runs = [&](std::int64_t task) -> std::int64_t {
    const std::int64_t token = tasks.token(task);
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0 || kv_page(batch, sequence, batch.positions[token] / page_tokens) < 0) return 0;
    return args.topk;
  };
  const auto run = [&](std::int64_t task, std::int64_t i) {
    const std::int64_t token = tasks.token(task);
    const std::int32_t block = block_ids[(token * args.kv_heads + tasks.kv_head(task)) * args.topk + i];
    if (block < 0) return KeyRun{};
    const std::int64_t left = std::int64_t{batch.positions[token]} + 1 - std::int64_t{block} * page_tokens;
    return KeyRun{kv_page(batch, batch.sequence_of_token[token], block), 0, std::min<std::int64_t>(page_tokens, left)};
  };
  attend_batch(pool_, scratch(), std::max<std::int64_t>(limits().context, args.topk * page_tokens), batch.tokens, tasks,
               runs, run);
}

}  // namespace m3::ops::cpu
