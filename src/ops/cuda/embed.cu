#include "src/ops/cuda/batch.cuh"
#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// A block a token.
__global__ void __launch_bounds__(256)
    embed_any_sm80(const __grid_constant__ EmbedArgs args, std::int64_t row_bytes, std::int64_t scale_bytes) {
  wait_for_previous();
  const int token = static_cast<int>(blockIdx.x);
  if (live_sequence(args.batch, token) < 0) return;
  std::uint16_t* to = args.residual + token * args.stride;
  const std::int64_t columns = args.table.columns;
  if (args.batch.feature_rows != nullptr && args.batch.feature_rows[token] >= 0) {
    const auto* from =
        reinterpret_cast<const std::uint16_t*>(args.batch.features) + args.batch.feature_rows[token] * columns;
    for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) to[i] = from[i];
    return;
  }
  int id = args.batch.token_ids[token];
  if (id < 0) id = args.previous[-id - 1];
  // An id that names no row (a failed sample of the step before) gives zeros.
  const bool known = id >= 0 && id < args.table.rows;
  const std::byte* values = args.table.values + (known ? id : 0) * row_bytes;
  const std::byte* scales = args.table.scales + (known ? id : 0) * scale_bytes;
  float factor = args.table.tensor_scale;
  if (args.table.row_scales != nullptr) factor *= args.table.row_scales[known ? id : 0];
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    to[i] = known ? narrow_bf16(widen_one(args.table.format, values, scales, i) * factor) : 0;
  }
}

}  // namespace

cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.batch.tokens == 0) return cudaSuccess;
  return launch(embed_any_sm80, static_cast<unsigned>(args.batch.tokens), 256, 0, stream, args, args.table.row_bytes(),
                args.table.scale_row_bytes());
}

}  // namespace m3::ops::cuda
