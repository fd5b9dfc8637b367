#include <algorithm>
#include <limits>

#include "src/base/error.h"
#include "src/ops/host/choose.h"
#include "src/ops/host/pages.h"
#include "src/ops/host/rows.h"
#include "src/ops/scalar/scalar_backend.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

namespace {

struct SelectScratch {
  SelectScratch(Arena& arena, std::int64_t heads, std::int64_t blocks, std::int64_t topk)
      : keys(arena.take<float>(page_tokens * head_dim)),
        queries(arena.take<float>(heads * head_dim)),
        scores(arena.take<float>(heads * blocks)),
        candidates(arena.take<ScoredBlock>(topk)) {}
  float* keys;     // [128, 128] of the block at hand
  float* queries;  // [heads, 128] as the cache's type sees them
  float* scores;   // [heads, blocks]
  ScoredBlock* candidates;
};

std::int64_t blocks_of(std::int64_t context) { return (context + page_tokens - 1) / page_tokens; }

}  // namespace

std::int64_t ScalarBackend::select_blocks_scratch_bytes(const Limits& limits) const {
  return pool_.size() * bytes_of<SelectScratch>(limits.kv_heads, blocks_of(limits.context), limits.topk_blocks);
}

// spec §3.8.
void ScalarBackend::select_blocks(const Batch& batch, const SelectBlocks& args, const Tensor& index_q,
                                  const LayerPages& pages, std::int32_t* block_ids) {
  const int heads = args.index_heads;
  const std::int64_t ids_per_token = std::int64_t{heads} * args.topk;
  const std::int64_t capacity = blocks_of(limits().context);
  check_tensor(index_q, DType::f32, batch.tokens, heads * head_dim, "select_blocks");
  Arena whole = scratch();
  const ThreadArenas threads(whole, pool_.size(), bytes_of<SelectScratch>(heads, capacity, args.topk));
  pool_.each(batch.tokens, [&](std::int64_t token, int thread) {
    std::int32_t* ids = block_ids + token * ids_per_token;
    std::fill(ids, ids + ids_per_token, -1);
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0) return;
    const std::int64_t position = batch.positions[token];
    const std::int64_t blocks = position / page_tokens + 1;
    if (index_page(batch, sequence, blocks - 1) < 0) return;
    if (blocks > capacity) fail_internal("select_blocks: position {} past the context {}", position, limits().context);

    Arena arena = threads[thread];
    const SelectScratch memory(arena, heads, capacity, args.topk);
    const auto* q = reinterpret_cast<const float*>(index_q.row(token));
    for (int i = 0; i < heads * head_dim; ++i) {
      memory.queries[i] = pages.index_k.dtype == DType::f8_e4m3 ? e4m3_to_float(float_to_e4m3(q[i])) : q[i];
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t visible = std::min<std::int64_t>(page_tokens, position + 1 - block * page_tokens);
      const std::int32_t page = index_page(batch, sequence, block);
      if (page >= 0) read_cache_rows(pages.index_k, page, 0, 0, visible, 1.0f, memory.keys);
      for (int head = 0; head < heads; ++head) {
        float best = -std::numeric_limits<float>::infinity();
        for (std::int64_t key = 0; page >= 0 && key < visible; ++key) {
          const float score = dot(memory.queries + head * head_dim, memory.keys + key * head_dim, head_dim);
          if (score > best) best = score;
        }
        memory.scores[head * capacity + block] = best;
      }
    }
    for (int head = 0; head < heads; ++head) {
      choose_blocks({memory.scores + head * capacity, static_cast<std::size_t>(blocks)}, args, memory.candidates,
                    ids + head * args.topk);
    }
  });
}

}  // namespace m3::ops::scalar
