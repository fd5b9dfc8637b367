#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int head_chunks = vision_head_dim / 8;  // of 16 bytes
constexpr int chunk_threads = 320;                // two heads of q and k for each of 16

// Rows of a block: what they load is under way together (one row a block took 54 us for 8192, of which reading is 19).
constexpr int block_rows = 4;

// Pairs (i, i + 39) of the first 78 of 80 dimensions; a thread takes a chunk of eight dimensions of each row.
__global__ void __launch_bounds__(chunk_threads)
    vision_qkv_finish_sm80(std::uint16_t* packed, std::int64_t stride, int rows, int heads, const float* table,
                           std::int64_t table_stride) {
  wait_for_previous();
  constexpr int group = chunk_threads / head_chunks;  // heads at a time
  constexpr int row_angles = 2 * vision_rotary_pairs;
  __shared__ uint4 raw[block_rows][chunk_threads];
  __shared__ float angles[block_rows][row_angles];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.x) * block_rows;
  const int own_rows = min(block_rows, rows - first_row);
  for (int i = thread; i < own_rows * row_angles; i += chunk_threads) {
    angles[i / row_angles][i % row_angles] = table[(first_row + i / row_angles) * table_stride + i % row_angles];
  }
  const auto row_at = [&](int r) { return reinterpret_cast<uint4*>(packed + (first_row + r) * stride); };
  const int first = thread % head_chunks * 8;  // dimension
  for (int head = 0; head < heads; head += group) {
    const int chunk = head * head_chunks + thread;
    const bool own = chunk < heads * head_chunks;
#pragma unroll
    for (int r = 0; r < block_rows; ++r) {
      if (own && r < own_rows) raw[r][thread] = row_at(r)[chunk];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < block_rows; ++r) {
      if (!own || r >= own_rows) continue;
      const auto* const x = reinterpret_cast<const std::uint16_t*>(raw[r]) + thread / head_chunks * vision_head_dim;
      float out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int d = first + k;
        const float value = widen_bf16(x[d]);
        if (d < vision_rotary_pairs) {
          out[k] = value * angles[r][d] - widen_bf16(x[d + vision_rotary_pairs]) * angles[r][d + vision_rotary_pairs];
        } else if (d < 2 * vision_rotary_pairs) {
          out[k] = value * angles[r][d - vision_rotary_pairs] + widen_bf16(x[d - vision_rotary_pairs]) * angles[r][d];
        } else {
          out[k] = value;
        }
      }
      row_at(r)[chunk] = uint4{pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]), pack_bf16(out[4], out[5]),
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
  const auto blocks = static_cast<unsigned>((rows + block_rows - 1) / block_rows);
  return launch(vision_qkv_finish_sm80, blocks, chunk_threads, 0, stream, packed, stride, rows, 2 * heads, table,
                table_stride);
}

}  // namespace m3::ops::cuda
