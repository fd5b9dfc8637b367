#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int head_chunks = vision_head_dim / 8;  // of 16 bytes
constexpr int chunk_threads = 320;                // two heads of q and k for each of 16

// Pairs (i, i + 39) of the first 78 of 80 dimensions; a block a row, a thread a chunk of eight dimensions.
__global__ void __launch_bounds__(chunk_threads)
    vision_qkv_finish_sm80(std::uint16_t* packed, std::int64_t stride, int heads, const float* table,
                           std::int64_t table_stride) {
  wait_for_previous();
  constexpr int group = chunk_threads / head_chunks;  // heads at a time
  __shared__ uint4 raw[chunk_threads];
  __shared__ float angles[2 * vision_rotary_pairs];
  const int thread = static_cast<int>(threadIdx.x);
  const float* from = table + blockIdx.x * table_stride;
  if (thread < 2 * vision_rotary_pairs) angles[thread] = from[thread];
  auto* const row = reinterpret_cast<uint4*>(packed + blockIdx.x * stride);
  const int first = thread % head_chunks * 8;  // dimension
  const auto* const x = reinterpret_cast<const std::uint16_t*>(raw) + thread / head_chunks * vision_head_dim;
  for (int head = 0; head < heads; head += group) {
    const int chunk = head * head_chunks + thread;
    const bool own = chunk < heads * head_chunks;
    if (own) raw[thread] = row[chunk];
    __syncthreads();
    if (own) {
      float out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int d = first + k;
        const float value = widen_bf16(x[d]);
        if (d < vision_rotary_pairs) {
          out[k] = value * angles[d] - widen_bf16(x[d + vision_rotary_pairs]) * angles[d + vision_rotary_pairs];
        } else if (d < 2 * vision_rotary_pairs) {
          out[k] = value * angles[d - vision_rotary_pairs] + widen_bf16(x[d - vision_rotary_pairs]) * angles[d];
        } else {
          out[k] = value;
        }
      }
      row[chunk] = uint4{pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]), pack_bf16(out[4], out[5]),
                         pack_bf16(out[6], out[7])};
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_vision_qkv_finish(std::uint16_t* packed, std::int64_t stride, int rows, int heads,
                                     const float* table, std::int64_t table_stride, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (stride % 8 != 0 || reinterpret_cast<std::uintptr_t>(packed) % 16 != 0) return cudaErrorInvalidValue;
  return launch(vision_qkv_finish_sm80, static_cast<unsigned>(rows), chunk_threads, 0, stream, packed, stride,
                2 * heads, table, table_stride);
}

}  // namespace m3::ops::cuda
