#include "src/base/error.h"
#include "src/ops/host/rows.h"
#include "src/ops/scalar/attention.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// spec §3.9: the tokens of the chosen blocks at positions <= the query's.
void ScalarBackend::attend_sparse(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                                  const std::int32_t* block_ids, const Tensor& out) {
  const int group = args.query_heads / args.kv_heads;
  const std::int64_t context = limits().context;
  check_tensor(q, DType::f32, batch.tokens, args.query_heads * head_dim, "attend_sparse: q");
  check_tensor(out, DType::f32, batch.tokens, args.query_heads * head_dim, "attend_sparse: out");
  Arena whole = scratch();
  const ThreadArenas threads(whole, pool_.size(), bytes_of<AttentionScratch>(group, context));
  pool_.each(batch.tokens * args.kv_heads, [&](std::int64_t task, int thread) {
    const std::int64_t token = task / args.kv_heads;
    const std::int64_t kv_head = task % args.kv_heads;
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0) return;
    const std::int64_t end = std::int64_t{batch.positions[token]} + 1;
    if (end > context) fail_internal("attend_sparse: position {} past the context {}", end - 1, context);
    if (kv_page(batch, sequence, (end - 1) / page_tokens) < 0) return;

    Arena arena = threads[thread];
    const AttentionScratch memory(arena, group, context);
    const std::int32_t* ids = block_ids + task * args.topk;
    const auto run = [&](std::int64_t i) {
      const std::int32_t block = ids[i];
      if (block < 0) return KeyRun{};
      return KeyRun{kv_page(batch, sequence, block), 0,
                    std::min<std::int64_t>(page_tokens, end - std::int64_t{block} * page_tokens)};
    };
    const std::int64_t columns = kv_head * group * head_dim;
    const auto* q_row = reinterpret_cast<const float*>(q.row(token)) + columns;
    if (!attend(pages, kv_head, q_row, group, args.scale, memory, context, args.topk, run)) return;
    auto* out_row = reinterpret_cast<float*>(out.row(token)) + columns;
    for (int i = 0; i < group * head_dim; ++i) out_row[i] = rounded(memory.sums[i]);
  });
}

}  // namespace m3::ops::scalar
