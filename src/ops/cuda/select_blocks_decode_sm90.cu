#include <algorithm>

#include "src/ops/cuda/select_decode_middle_sm90.cuh"
#include "src/ops/cuda/select_decode_sm90.cuh"

namespace m3::ops::cuda {

namespace {

// Tokens of a sequence times heads: past it, the kernel for prompts is the faster one.
constexpr int most_columns = 16;

int blocks_of(std::int64_t context) { return static_cast<int>((context + page_tokens - 1) / page_tokens); }

int blocks_of_threads(const SelectArgs& args) {
  const std::int64_t blocks = std::int64_t{args.batch.sequences} * blocks_of(args.batch.longest_context);
  return static_cast<int>(std::clamp<std::int64_t>(blocks, 1, processor_count()));
}

// Floats of the workspace.
std::int64_t scores_and_notes(const SelectArgs& args) {
  const int blocks = blocks_of(args.batch.longest_context);
  return std::int64_t{args.batch.tokens} * args.heads *
         (blocks + most_notes(blocks, args.batch.sequences, blocks_of_threads(args)));
}

template <class Shape, void (*Kernel)(SelectArgs, DecodeCall)>
cudaError_t run(const SelectArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const cudaError_t error = allow_shared(Kernel, Shape::shared_bytes, allowed);
  if (error != cudaSuccess) return error;
  const int groups = blocks_of_threads(args);
  DecodeCall call{};
  call.blocks = blocks_of(args.batch.longest_context);
  call.most_notes = most_notes(call.blocks, args.batch.sequences, groups);
  call.notes =
      reinterpret_cast<std::uint32_t*>(args.scores) + std::int64_t{args.batch.tokens} * args.heads * call.blocks;
  call.counters = args.counters;
  return launch(Kernel, static_cast<unsigned>(groups), Shape::threads, Shape::shared_bytes, stream, args, call);
}

template <bool Fp8, int Sets, int Stages, int ColumnTiles>
cudaError_t run(const SelectArgs& args, cudaStream_t stream) {
  return run<DecodeShape<Fp8, Sets, Stages, 2>, select_blocks_decode_sm90<Fp8, Sets, Stages, ColumnTiles>>(args,
                                                                                                           stream);
}

template <bool Fp8, int Sets, int Stages>
cudaError_t run_middle(const SelectArgs& args, cudaStream_t stream) {
  return run<DecodeShape<Fp8, Sets, Stages, 1>, middle::select_blocks_decode_middle_sm90<Fp8, Sets, Stages>>(args,
                                                                                                             stream);
}

}  // namespace

bool select_decode_takes_sm90(const SelectArgs& args) {
  return is_hopper() && !args.deterministic && args.dropped_count == 0 && args.topk <= list_length &&
         args.local_blocks >= 1 && args.batch.longest_query * args.heads <= most_columns && args.stride % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(args.index_q) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(args.index_k.data) % 16 == 0 && args.index_k.page_bytes % 16 == 0 &&
         args.batch.sequences <= std::min<std::int64_t>(most_decode_sequences, args.counters_size) &&
         scores_and_notes(args) <= args.score_floats;
}

cudaError_t launch_select_decode_sm90(const SelectArgs& args, cudaStream_t stream) {
  const bool fp8 = args.index_k.dtype == DType::f8_e4m3;
  if (args.batch.longest_query * args.heads <= 8) {
    if (const int blocks = blocks_of(args.batch.longest_context);
        blocks > middle::least_blocks && blocks <= most_direct) {
      return fp8 ? run_middle<true, 2, 6>(args, stream) : run_middle<false, 2, 4>(args, stream);
    }
    // As much on its way ahead of the kernel before as there is room for.
    return fp8 ? run<true, 2, 12, 1>(args, stream) : run<false, 2, 6, 1>(args, stream);
  }
  return fp8 ? run<true, 1, 6, 8>(args, stream) : run<false, 1, 3, 8>(args, stream);
}

}  // namespace m3::ops::cuda
