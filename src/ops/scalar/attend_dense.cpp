#include "src/base/error.h"
#include "src/ops/host/rows.h"
#include "src/ops/scalar/attention.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

std::int64_t ScalarBackend::attend_scratch_bytes(const Limits& limits) const {
  const std::int64_t group = limits.query_heads / std::max<std::int64_t>(1, limits.kv_heads);
  return pool_.size() * bytes_of<AttentionScratch>(group, limits.context);
}

// spec §3.7: causal by absolute position; `window` keeps the last keys only, the own one included.
void ScalarBackend::attend_dense(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                                 const Tensor& out) {
  const int group = args.query_heads / args.kv_heads;
  const std::int64_t context = limits().context;
  check_tensor(q, DType::f32, batch.tokens, args.query_heads * head_dim, "attend_dense: q");
  check_tensor(out, DType::f32, batch.tokens, args.query_heads * head_dim, "attend_dense: out");
  Arena whole = scratch();
  const ThreadArenas threads(whole, pool_.size(), bytes_of<AttentionScratch>(group, context));
  pool_.each(batch.tokens * args.kv_heads, [&](std::int64_t task, int thread) {
    const std::int64_t token = task / args.kv_heads;
    const std::int64_t kv_head = task % args.kv_heads;
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0) return;
    const std::int64_t end = std::int64_t{batch.positions[token]} + 1;
    const std::int64_t begin = args.window > 0 ? std::max<std::int64_t>(0, end - args.window) : 0;
    if (end > context) fail_internal("attend_dense: position {} past the context {}", end - 1, context);
    if (kv_page(batch, sequence, (end - 1) / page_tokens) < 0) return;

    Arena arena = threads[thread];
    const AttentionScratch memory(arena, group, context);
    const std::int64_t first_block = begin / page_tokens;
    const auto run = [&](std::int64_t i) {
      const std::int64_t block = first_block + i;
      return KeyRun{kv_page(batch, sequence, block), std::max<std::int64_t>(0, begin - block * page_tokens),
                    std::min<std::int64_t>(page_tokens, end - block * page_tokens)};
    };
    const std::int64_t columns = kv_head * group * head_dim;
    const auto* q_row = reinterpret_cast<const float*>(q.row(token)) + columns;
    const std::int64_t runs = (end - 1) / page_tokens + 1 - first_block;
    if (!attend(pages, kv_head, q_row, group, args.scale, memory, context, runs, run)) return;
    auto* out_row = reinterpret_cast<float*>(out.row(token)) + columns;
    for (int i = 0; i < group * head_dim; ++i) out_row[i] = rounded(memory.sums[i]);
  });
}

}  // namespace m3::ops::scalar
