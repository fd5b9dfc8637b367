#include <algorithm>
#include <array>
#include <limits>

#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/host/choose.h"
#include "src/ops/host/pages.h"
#include "src/ops/host/rows.h"

namespace m3::ops::cpu {

namespace {

// Tokens that share one pass over the index keys, and blocks of one task.
constexpr std::int64_t tile_tokens = 64;
constexpr std::int64_t task_blocks = 4;

std::int64_t blocks_of(std::int64_t context) { return (context + page_tokens - 1) / page_tokens; }

struct SelectScratch {
  SelectScratch(Arena& arena, std::int64_t tokens, std::int64_t heads, std::int64_t blocks)
      : queries(arena.take<float>(std::min(tokens, tile_tokens) * heads * head_dim)),
        scores(arena.take<float>(std::min(tokens, tile_tokens) * heads * blocks)) {}
  float* queries;  // [tokens of the tile, heads, 128]
  float* scores;   // [tokens of the tile, heads, blocks]
};

struct SelectPart {
  SelectPart(Arena& arena, std::int64_t heads, std::int64_t topk)
      : rows(arena.take<float>(key_chunk * head_dim)),
        visible(arena.take<std::int32_t>(tile_tokens * heads)),
        candidates(arena.take<ScoredBlock>(topk)) {}
  float* rows;
  std::int32_t* visible;
  ScoredBlock* candidates;
};

// Neighbouring tokens of one sequence.
struct TokenRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int32_t sequence = -1;
  std::int64_t blocks = 0;      // the most that one of them sees; 0 = all inert
  std::int64_t first_task = 0;  // of ceil(blocks / task_blocks)
};

}  // namespace

std::int64_t CpuBackend::select_blocks_scratch_bytes(const Limits& limits) const {
  return bytes_of<SelectScratch>(limits.tokens, limits.kv_heads, blocks_of(limits.context)) +
         pool_.size() * bytes_of<SelectPart>(limits.kv_heads, limits.topk_blocks);
}

void CpuBackend::select_blocks(const Batch& batch, const SelectBlocks& args, const Tensor& index_q,
                               const LayerPages& pages, std::int32_t* block_ids) {
  const std::int64_t heads = args.index_heads;
  const std::int64_t ids_per_token = heads * args.topk;
  const std::int64_t capacity = blocks_of(limits().context);
  check_tensor(index_q, DType::bf16, batch.tokens, heads * head_dim, "select_blocks");
  Arena arena = scratch();
  const SelectScratch memory(arena, batch.tokens, heads, capacity);
  const ThreadArenas parts(arena, pool_.size(), bytes_of<SelectPart>(heads, std::int64_t{args.topk}));
  const auto blocks_of_token = [&](std::int64_t token) -> std::int64_t {
    const std::int32_t sequence = live_sequence(batch, token);
    if (sequence < 0) return 0;
    const std::int64_t own = batch.positions[token] / page_tokens;
    return index_page(batch, sequence, own) < 0 ? 0 : own + 1;
  };

  for (std::int64_t tile = 0; tile < batch.tokens; tile += tile_tokens) {
    const std::int64_t tokens = std::min(tile_tokens, batch.tokens - tile);
    std::array<TokenRun, tile_tokens> runs;
    std::size_t run_count = 0;
    for (std::int64_t token = tile; token < tile + tokens; ++token) {
      const std::int32_t sequence = batch.sequence_of_token[token];
      if (run_count == 0 || runs[run_count - 1].sequence != sequence) {
        runs[run_count++] = {token, 0, sequence, 0, 0};
      }
      TokenRun& run = runs[run_count - 1];
      ++run.count;
      run.blocks = std::max(run.blocks, blocks_of_token(token));
    }
    std::int64_t tasks = 0;
    for (std::size_t i = 0; i < run_count; ++i) {
      runs[i].first_task = tasks;
      tasks += (runs[i].blocks + task_blocks - 1) / task_blocks;
      if (runs[i].blocks > capacity) {
        fail_internal("select_blocks: {} blocks where {} were planned", runs[i].blocks, capacity);
      }
    }

    pool_.split(tokens, 8, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t t = begin; t < end; ++t) {
        float* query = memory.queries + t * heads * head_dim;
        kernels_.widen_bf16(reinterpret_cast<const std::uint16_t*>(index_q.row(tile + t)), heads * head_dim,
                            heads * head_dim, query);
        if (pages.index_k.dtype != DType::f8_e4m3) continue;
        for (std::int64_t i = 0; i < heads * head_dim; ++i) query[i] = e4m3_to_float(float_to_e4m3(query[i]));
      }
    });

    pool_.each(tasks, [&](std::int64_t task, int thread) {
      std::size_t at = 0;
      while (at + 1 < run_count && runs[at + 1].first_task <= task) ++at;
      const TokenRun& run = runs[at];
      Arena own = parts[thread];
      const SelectPart part(own, heads, args.topk);
      const std::int64_t first_block = (task - run.first_task) * task_blocks;
      for (std::int64_t block = first_block; block < std::min(first_block + task_blocks, run.blocks); ++block) {
        std::int64_t most = 0;
        for (std::int64_t t = 0; t < run.count; ++t) {
          const std::int64_t token = run.first + t;
          const std::int64_t visible =
              block < blocks_of_token(token)
                  ? std::min<std::int64_t>(page_tokens, batch.positions[token] + 1 - block * page_tokens)
                  : 0;
          for (std::int64_t head = 0; head < heads; ++head) {
            part.visible[t * heads + head] = static_cast<std::int32_t>(visible);
          }
          most = std::max(most, visible);
        }
        const std::int32_t page = index_page(batch, run.sequence, block);
        const std::int64_t first_query = (run.first - tile) * heads;
        ScoreCall call;
        call.queries = memory.queries + first_query * head_dim;
        call.visible = part.visible;
        call.count = run.count * heads;
        call.type = pages.index_k.dtype;
        call.keys = page >= 0 ? page_run(pages.index_k, page, 0) : nullptr;
        const std::int32_t next = block + 1 < run.blocks ? index_page(batch, run.sequence, block + 1) : -1;
        call.next = next >= 0 ? page_run(pages.index_k, next, 0) : nullptr;
        call.key_count = page >= 0 ? most : 0;
        call.rows = part.rows;
        call.scores = memory.scores + first_query * capacity + block;
        call.stride = capacity;
        kernels_.score_page(call);
      }
    });

    pool_.split(tokens, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      Arena own = parts[thread];
      const SelectPart part(own, heads, args.topk);
      for (std::int64_t t = begin; t < end; ++t) {
        std::int32_t* ids = block_ids + (tile + t) * ids_per_token;
        const std::int64_t blocks = blocks_of_token(tile + t);
        if (blocks == 0) {
          std::fill(ids, ids + ids_per_token, -1);
          continue;
        }
        for (std::int64_t head = 0; head < heads; ++head) {
          choose_blocks({memory.scores + (t * heads + head) * capacity, static_cast<std::size_t>(blocks)}, args,
                        part.candidates, ids + head * args.topk);
        }
      }
    });
  }
}

}  // namespace m3::ops::cpu
