#include <algorithm>
#include <limits>

#include "src/ops/cpu/attention.h"

namespace m3::ops::cpu {

namespace {

// Neighbouring tokens whose block lists are turned round: for each block, the tokens that chose it. Their states and
// queries (25 KiB a token) stay in the second-level cache with the block's rows, or nearly.
constexpr std::int64_t inverted_tokens = 32;

// One thread's memory for them.
struct InvertedPart {
  explicit InvertedPart(Arena& arena)
      : single(arena),
        wide_k(arena.take<float>(page_tokens * head_dim)),
        wide_v(arena.take<float>(page_tokens * head_dim)) {
    for (std::int64_t t = 0; t < inverted_tokens; ++t) {
      queries[t] = arena.take<float>(head_dim * max_heads);
      whole[t] = take_state(arena);
      segment[t] = take_state(arena);
    }
  }
  AttentionPart single;
  float* wide_k;
  float* wide_v;
  float* queries[inverted_tokens];
  AttentionState whole[inverted_tokens];
  AttentionState segment[inverted_tokens];
};

// The chosen blocks of one head of each token, walked in step. A token's runs come in the order and in the segments
// that attend_batch gives them, so that its bits are the same.
template <typename Run>
void attend_inverted(const AttentionTasks& tasks, std::int64_t first_token, std::int64_t count, std::int64_t head_task,
                     std::int64_t topk, const std::int32_t* const* lists, const Run& run, const InvertedPart& part) {
  struct Walk {
    std::int64_t next = 0;      // index into the token's list
    std::int64_t segment = -1;  // of the open state; -1 = none open
    bool any = false;           // `whole` holds a finished segment
  };
  Walk walks[inverted_tokens];
  const auto task_of = [&](std::int64_t t) { return (first_token + t) * tasks.tasks_per_token() + head_task; };
  const auto part_of = [&](std::int64_t t) {
    AttentionPart own = part.single;
    own.q = part.queries[t];
    return own;
  };
  const auto close = [&](std::int64_t t) {
    if (walks[t].segment < 0) return;
    if (walks[t].any) tasks.merge(part.whole[t], part.segment[t]);
    walks[t].any = true;
    walks[t].segment = -1;
  };
  const auto block_of = [&](std::int64_t t) {
    Walk& walk = walks[t];
    while (walk.next < topk && lists[t] != nullptr && run(task_of(t), walk.next).empty()) ++walk.next;
    return lists[t] != nullptr && walk.next < topk ? lists[t][walk.next] : std::numeric_limits<std::int32_t>::max();
  };
  std::int32_t blocks[inverted_tokens];
  for (std::int64_t t = 0; t < count; ++t) {
    blocks[t] = block_of(t);
    if (lists[t] != nullptr) tasks.load_query(task_of(t), part_of(t));
  }
  while (true) {
    const std::int32_t block = *std::min_element(blocks, blocks + count);
    if (block == std::numeric_limits<std::int32_t>::max()) break;
    // Those of one sequence that chose it. The longest run serves all; what several read is widened once.
    const auto first = std::find(blocks, blocks + count, block) - blocks;
    KeyRun longest = run(task_of(first), walks[first].next);
    const std::int32_t page = longest.page;
    std::int64_t readers = 0;
    for (std::int64_t t = first; t < count; ++t) {
      if (blocks[t] != block) continue;
      const KeyRun own = run(task_of(t), walks[t].next);
      if (own.page != page) continue;
      ++readers;
      longest.last = std::max(longest.last, own.last);
    }
    WideRows wide;
    if (readers > 1) {
      tasks.widen(task_of(first), longest, part.wide_k, part.wide_v);
      wide = {part.wide_k, part.wide_v};
    }
    for (std::int64_t t = first; t < count; ++t) {
      if (blocks[t] != block) continue;
      Walk& walk = walks[t];
      const KeyRun own = run(task_of(t), walk.next);
      if (own.page != page) continue;
      const std::int64_t segment = walk.next / segment_runs;
      if (segment != walk.segment) close(t);
      const AttentionState& state = walk.any ? part.segment[t] : part.whole[t];
      if (walk.segment < 0) tasks.begin(state);
      walk.segment = segment;
      tasks.attend_run(task_of(t), own, wide, part_of(t), state);
      ++walk.next;
      blocks[t] = block_of(t);
    }
  }
  for (std::int64_t t = 0; t < count; ++t) {
    close(t);
    if (walks[t].any) tasks.store(task_of(t), part_of(t), part.whole[t]);
  }
}

}  // namespace

std::int64_t CpuBackend::attend_scratch_bytes(const Limits& limits) const {
  const std::int64_t batch =
      bytes_of<AttentionPartials>(partial_capacity(limits.context)) + pool_.size() * bytes_of<AttentionPart>();
  return std::max(batch, pool_.size() * bytes_of<InvertedPart>());
}

void CpuBackend::attend_sparse(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                               const std::int32_t* block_ids, const Tensor& out) {
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_sparse: q");
  check_tensor(out, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_sparse: out");
  const AttentionTasks tasks(kernels_, args, q, pages, out);
  const auto list_of = [&](std::int64_t task) {
    return block_ids + (tasks.token(task) * args.kv_heads + tasks.kv_head(task)) * args.topk;
  };
  const auto runs = [&](std::int64_t task) -> std::int64_t {
    const std::int64_t token = tasks.token(task);
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0 || kv_page(batch, sequence, batch.positions[token] / page_tokens) < 0) return 0;
    return args.topk;
  };
  const auto run = [&](std::int64_t task, std::int64_t i) {
    const std::int64_t token = tasks.token(task);
    const std::int32_t block = list_of(task)[i];
    if (block < 0) return KeyRun{};
    const std::int64_t left = std::int64_t{batch.positions[token]} + 1 - std::int64_t{block} * page_tokens;
    return KeyRun{kv_page(batch, batch.sequence_of_token[token], block), 0, std::min<std::int64_t>(page_tokens, left)};
  };

  // Enough tokens for all threads: tiles of neighbours, whose blocks are looked up by block.
  const std::int64_t tiles = (batch.tokens + inverted_tokens - 1) / inverted_tokens;
  const std::int64_t per_token = tasks.tasks_per_token();
  if (tiles * per_token >= 2 * pool_.size() && batch.tokens >= inverted_tokens) {
    Arena arena = scratch();
    const ThreadArenas parts(arena, pool_.size(), bytes_of<InvertedPart>());
    pool_.each(tiles * per_token, [&](std::int64_t index, int thread) {
      Arena own = parts[thread];
      const InvertedPart part(own);
      const std::int64_t first = index / per_token * inverted_tokens;
      const std::int64_t count = std::min(inverted_tokens, batch.tokens - first);
      const std::int32_t* lists[inverted_tokens];
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t task = (first + t) * per_token + index % per_token;
        lists[t] = runs(task) > 0 ? list_of(task) : nullptr;
      }
      attend_inverted(tasks, first, count, index % per_token, args.topk, lists, run, part);
    });
    return;
  }
  attend_batch(pool_, scratch(), std::max<std::int64_t>(limits().context, args.topk * page_tokens), batch.tokens, tasks,
               runs, run);
}

}  // namespace m3::ops::cpu
