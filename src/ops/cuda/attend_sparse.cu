#include <algorithm>

#include "src/ops/cuda/attend_decode.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// Up to these many tokens a block of threads takes one slot instead of four: too few tokens to fill the GPU otherwise.
constexpr int spread_tokens = 8;

// For fewer tokens lists of queries by block cost more than they save.
constexpr int prompt_list_tokens = 64;

template <bool Fp8, int Slots>
cudaError_t launch_decode(const AttendArgs& args, dim3 grid, unsigned* counters, cudaStream_t stream) {
  static int allowed = 0;
  constexpr int bytes = SlotMemory<Fp8>::bytes;
  const auto kernel = attend_sparse_decode_sm80<Fp8, Slots>;
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  return launch(kernel, grid, 256, bytes, stream, args, counters);
}

}  // namespace

cudaError_t launch_attend_sparse(const AttendCall& call, cudaStream_t stream) {
  const bool prompt = call.batch.longest_query >= prompt_tokens && call.batch.tokens >= prompt_list_tokens;
  if (prompt && attend_sparse_takes_sm90(call)) return launch_attend_sparse_sm90(call, stream);
  if (attend_decode_takes_sm90(call)) return launch_attend_decode_sm90(call, stream);
  AttendArgs args{call.batch,
                  call.q,
                  call.q_stride,
                  call.pages.k,
                  call.pages.v,
                  0,
                  0,
                  call.args.query_heads,
                  call.args.kv_heads,
                  0,
                  call.block_ids,
                  call.args.topk,
                  0,
                  0,
                  nullptr,
                  call.out,
                  call.out_stride};
  const bool fp8 = call.pages.k.dtype == DType::f8_e4m3;
  args.scale = call.args.scale * (fp8 ? call.pages.k_scale : 1.0f) * log2_e;
  args.v_scale = fp8 ? call.pages.v_scale : 1.0f;
  const int slots = args.batch.tokens <= spread_tokens ? 1 : group_slots;
  args.splits = (args.topk + slots - 1) / slots;
  args.partials = static_cast<Partial*>(call.workspace);
  const int tiles = args.kv_heads * row_tiles(args.query_heads, args.kv_heads);
  const std::int64_t token_bytes = std::int64_t{tiles} * args.splits * static_cast<std::int64_t>(sizeof(Partial));
  const auto most = std::min<std::int64_t>({call.workspace_bytes / token_bytes, 32768, call.counters_size / tiles});
  if (most < 1) return cudaErrorInvalidValue;
  for (int first = 0; first < args.batch.tokens; first += static_cast<int>(most)) {
    const auto count = static_cast<unsigned>(std::min<std::int64_t>(most, args.batch.tokens - first));
    args.first_token = first;
    const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(tiles), count);
    const auto run = fp8 ? (slots == 1 ? launch_decode<true, 1> : launch_decode<true, group_slots>)
                         : (slots == 1 ? launch_decode<false, 1> : launch_decode<false, group_slots>);
    if (const cudaError_t error = run(args, grid, call.counters, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace m3::ops::cuda
