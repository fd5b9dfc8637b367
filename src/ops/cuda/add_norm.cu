#include <algorithm>

#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int norm_threads = 512;
constexpr int norm_warps = norm_threads / warp_size;
static_assert(most_norm_columns == norm_threads * 32);

// A block a row. The rounded sums stay in registers for rows of up to 512 · 32 columns, so that the row is read once.
template <bool Layer>
__global__ void __launch_bounds__(norm_threads) add_norm_any_sm80(const __grid_constant__ AddNormArgs args) {
  wait_for_previous();
  __shared__ float shared[norm_warps];
  constexpr int held = 32;
  const std::int64_t row = blockIdx.x;
  std::uint16_t* x = args.residual + row * args.residual_stride;
  const std::uint16_t* delta = args.delta + row * args.delta_stride;
  float values[held];
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int column = i * norm_threads + static_cast<int>(threadIdx.x);
    values[i] = 0;
    if (i * norm_threads >= args.columns) continue;
    if (column >= args.columns) continue;
    float value = widen_bf16(x[column]);
    if (args.delta != nullptr) {
      value = round_bf16(value + widen_bf16(delta[column]));
      x[column] = narrow_bf16(value);
    }
    values[i] = value;
    sum += value;
    squares += value * value;
  }
  if (args.normed == nullptr) return;
  const auto count = static_cast<float>(args.columns);
  float mean = 0;
  if constexpr (Layer) {
    mean = block_sum(sum, shared, norm_warps) / count;
    squares = 0;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int column = i * norm_threads + static_cast<int>(threadIdx.x);
      if (column < args.columns) squares += (values[i] - mean) * (values[i] - mean);
    }
  }
  const float r = inverse_root(block_sum(squares, shared, norm_warps) / count + args.eps);
  std::uint16_t* y = args.normed + row * args.normed_stride;
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int column = i * norm_threads + static_cast<int>(threadIdx.x);
    if (column >= args.columns) continue;
    const float w = args.weight[column];
    if constexpr (Layer) {
      y[column] = narrow_bf16(((values[i] - mean) * r) * w + args.bias[column]);
    } else {
      y[column] = narrow_bf16((values[i] * r) * (args.gemma ? 1.0f + w : w));
    }
  }
}

// The same where rows are made of chunks of 16 bytes, a chunk a thread: the block reads the next row while it adds up
// this one's squares. Weights stay in registers; they are on their way before the kernel ahead has ended.
constexpr int most_chunks = 1024;

// Sum over the block's warps, in one fixed order. `shared` [32] of the call before the last may be reused.
__device__ float row_sum(float value, float* shared, int warps) {
  value = warp_sum(value);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  if (lane == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  return warp_sum(lane < warps ? shared[lane] : 0.0f);
}

template <bool Layer>
__global__ void __launch_bounds__(most_chunks) add_norm_chunks_sm80(const __grid_constant__ AddNormArgs args) {
  __shared__ float shared[4][warp_size];
  const int thread = static_cast<int>(threadIdx.x);
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  const bool mine = thread * 8 < args.columns;
  float weight[8] = {}, bias[8] = {};
  if (mine && args.normed != nullptr) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      weight[k] = args.weight[thread * 8 + k];
      if constexpr (Layer) bias[k] = args.bias[thread * 8 + k];
      if (!Layer && args.gemma) weight[k] = 1.0f + weight[k];
    }
  }
  const auto count = static_cast<float>(args.columns);
  wait_for_previous();
  uint4 x = {0, 0, 0, 0}, delta = {0, 0, 0, 0};
  const auto load = [&](std::int64_t row) {
    if (!mine || row >= args.rows) return;
    x = *reinterpret_cast<const uint4*>(args.residual + row * args.residual_stride + thread * 8);
    if (args.delta != nullptr) {
      delta = *reinterpret_cast<const uint4*>(args.delta + row * args.delta_stride + thread * 8);
    }
  };
  load(blockIdx.x);
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const std::uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
    float values[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) values[2 * k] = low_bf16(pairs[k]), values[2 * k + 1] = high_bf16(pairs[k]);
    if (args.delta != nullptr) {
      const std::uint32_t others[4] = {delta.x, delta.y, delta.z, delta.w};
      std::uint32_t sums[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sums[k] = pack_bf16(values[2 * k] + low_bf16(others[k]), values[2 * k + 1] + high_bf16(others[k]));
        values[2 * k] = low_bf16(sums[k]), values[2 * k + 1] = high_bf16(sums[k]);
      }
      if (mine) {
        *reinterpret_cast<uint4*>(args.residual + row * args.residual_stride + thread * 8) =
            uint4{sums[0], sums[1], sums[2], sums[3]};
      }
    }
    load(row + gridDim.x);
    if (args.normed == nullptr) continue;
    float mean = 0, squares = 0;
    if constexpr (Layer) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) sum += values[k];
      mean = row_sum(sum, shared[2 + turn], warps) / count;
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] -= mean;
    }
    if (mine) {
#pragma unroll
      for (int k = 0; k < 8; ++k) squares += values[k] * values[k];
    }
    const float r = inverse_root(row_sum(squares, shared[turn], warps) / count + args.eps);
    turn ^= 1;
    if (!mine) continue;
    float out[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      out[k] = (values[k] * r) * weight[k];
      if constexpr (Layer) out[k] += bias[k];
    }
    *reinterpret_cast<uint4*>(args.normed + row * args.normed_stride + thread * 8) = uint4{
        pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]), pack_bf16(out[4], out[5]), pack_bf16(out[6], out[7])};
  }
}

bool in_chunks(const void* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

template <bool Layer>
cudaError_t launch_rows(const AddNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.columns % 8 == 0 && args.columns <= most_chunks * 8 && in_chunks(args.residual, args.residual_stride) &&
      in_chunks(args.delta, args.delta_stride) && in_chunks(args.normed, args.normed_stride)) {
    const int threads = (args.columns / 8 + warp_size - 1) / warp_size * warp_size;
    // As many blocks as run at once.
    const int most = processor_count() * std::max(1, 2048 / threads);
    return launch(add_norm_chunks_sm80<Layer>, static_cast<unsigned>(std::min(args.rows, most)),
                  static_cast<unsigned>(threads), 0, stream, args);
  }
  if (args.columns > most_norm_columns) return cudaErrorInvalidValue;
  return launch(add_norm_any_sm80<Layer>, static_cast<unsigned>(args.rows), norm_threads, 0, stream, args);
}

}  // namespace

cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) { return launch_rows<false>(args, stream); }
cudaError_t launch_layer_norm(const AddNormArgs& args, cudaStream_t stream) { return launch_rows<true>(args, stream); }

}  // namespace m3::ops::cuda
