#include <algorithm>

#include "src/ops/cuda/select_prefill_sm90.cuh"

namespace m3::ops::cuda {

namespace {

// 256 rows a block of threads: bf16 keys by four warpgroups of one tile, fp8 by two of two, which leaves the fifth more
// registers to widen them in.
constexpr int tile_rows = 256;

template <bool Fp8, int Groups, int Tiles>
cudaError_t run(const SelectArgs& args, const SelectPlan& plan, cudaStream_t stream) {
  using Shape = SelectShape<Groups, Tiles>;
  static_assert(Groups * Tiles * 64 == tile_rows);
  static int allowed = 0;
  cudaError_t error = allow_shared(select_blocks_lists_sm90<Fp8, Groups, Tiles>, Shape::shared_bytes, allowed);
  if (error == cudaSuccess) error = launch(select_blocks_plan_sm90, 1, 1024, 0, stream, args, plan);
  if (error == cudaSuccess) {
    error = launch(select_blocks_lists_sm90<Fp8, Groups, Tiles>, static_cast<unsigned>(plan.blocks_of_threads),
                   Shape::threads, Shape::shared_bytes, stream, args, plan);
  }
  if (error != cudaSuccess) return error;
  const int most_tiles = (args.batch.tokens + plan.tile_tokens - 1) / plan.tile_tokens + args.batch.sequences + 1;
  constexpr int blocks_a_tile = tile_rows / 64;
  return launch(select_blocks_merge_sm90, static_cast<unsigned>(most_tiles * blocks_a_tile), 256, 0, stream, args, plan,
                blocks_a_tile);
}

}  // namespace

std::int64_t select_prefill_workspace_bytes_sm90(std::int64_t tokens, std::int64_t sequences, int heads) {
  if (!is_hopper() || heads < 1 || heads > 64) return 0;
  SelectPlan plan;
  return lay_out_select_plan(nullptr, tokens, sequences, heads, tile_rows / heads, processor_count(), plan);
}

bool select_prefill_takes_sm90(const SelectArgs& args) {
  return is_hopper() && !args.deterministic && args.dropped_count == 0 && args.topk <= list_length &&
         args.local_blocks >= 1 && 64 % args.heads == 0 && args.stride % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(args.index_q) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(args.index_k.data) % 16 == 0 && args.index_k.page_bytes % 16 == 0 &&
         args.batch.sequences <= most_plan_sequences &&
         args.batch.tokens / (tile_rows / args.heads) + args.batch.sequences + 2 <= most_plan_tiles &&
         select_prefill_workspace_bytes_sm90(args.batch.tokens, args.batch.sequences, args.heads) <=
             args.score_floats * 4;
}

cudaError_t launch_select_prefill_sm90(const SelectArgs& args, cudaStream_t stream) {
  SelectPlan plan;
  lay_out_select_plan(reinterpret_cast<std::byte*>(args.scores), args.batch.tokens, args.batch.sequences, args.heads,
                      tile_rows / args.heads, processor_count(), plan);
  return args.index_k.dtype == DType::f8_e4m3 ? run<true, 2, 2>(args, plan, stream)
                                              : run<false, 4, 1>(args, plan, stream);
}

}  // namespace m3::ops::cuda
