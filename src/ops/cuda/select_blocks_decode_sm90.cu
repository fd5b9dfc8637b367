#include <algorithm>

#include "src/ops/cuda/select_decode_sm90.cuh"

namespace m3::ops::cuda {

namespace {

int blocks_of(std::int64_t context) { return static_cast<int>((context + page_tokens - 1) / page_tokens); }

template <bool Fp8, int Warps, int Stages, int ColumnTiles>
cudaError_t run(const SelectArgs& args, cudaStream_t stream) {
  using Shape = DecodeShape<Fp8, Warps, Stages>;
  static int allowed = 0;
  const auto kernel = select_blocks_decode_sm90<Fp8, Warps, Stages, ColumnTiles>;
  const cudaError_t error = allow_shared(kernel, Shape::shared_bytes, allowed);
  if (error != cudaSuccess) return error;
  const DecodeCall call{blocks_of(args.batch.longest_context), args.counters};
  const std::int64_t blocks = std::max<std::int64_t>(1, std::int64_t{args.batch.sequences} * call.blocks);
  return launch(kernel, static_cast<unsigned>(std::min<std::int64_t>(blocks, processor_count())), Shape::threads,
                Shape::shared_bytes, stream, args, call);
}

}  // namespace

bool select_decode_takes_sm90(const SelectArgs& args) {
  return is_hopper() && !args.deterministic && args.dropped_count == 0 && args.topk <= list_length &&
         args.local_blocks >= 1 && args.batch.longest_query * args.heads <= 64 && args.stride % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(args.index_q) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(args.index_k.data) % 16 == 0 && args.index_k.page_bytes % 16 == 0 &&
         args.batch.sequences <= std::min<std::int64_t>(most_decode_sequences, args.counters_size) &&
         std::int64_t{args.batch.tokens} * args.heads * blocks_of(args.batch.longest_context) <= args.score_floats;
}

cudaError_t launch_select_decode_sm90(const SelectArgs& args, cudaStream_t stream) {
  const bool fp8 = args.index_k.dtype == DType::f8_e4m3;
  if (args.batch.longest_query * args.heads <= 8) {
    return fp8 ? run<true, 8, 6, 1>(args, stream) : run<false, 8, 3, 1>(args, stream);
  }
  return fp8 ? run<true, 8, 6, 8>(args, stream) : run<false, 8, 3, 8>(args, stream);
}

}  // namespace m3::ops::cuda
