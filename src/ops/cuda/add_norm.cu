#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int norm_threads = 512;
constexpr int norm_warps = norm_threads / warp_size;

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

constexpr int vector_threads = 256;
constexpr int vector_chunks = 8;  // of eight columns, a thread

// The same where rows are made of chunks of 16 bytes: rows of up to 256 · 64 columns.
template <bool Layer>
__global__ void __launch_bounds__(vector_threads) add_norm_vector_sm80(const __grid_constant__ AddNormArgs args) {
  __shared__ float shared[vector_threads / warp_size];
  const int thread = static_cast<int>(threadIdx.x);
  const int chunks = args.columns / 8;
  float weight[8];  // of the first chunk: a constant, on its way before the kernel ahead has ended
  const bool early = args.normed != nullptr && thread < chunks;
  for (int k = 0; k < 8; ++k) weight[k] = early ? args.weight[thread * 8 + k] : 0.0f;
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  auto* const x = reinterpret_cast<uint4*>(args.residual + row * args.residual_stride);
  const auto* const delta = reinterpret_cast<const uint4*>(args.delta + row * args.delta_stride);
  float values[vector_chunks][8];
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < vector_chunks; ++i) {
    const int chunk = i * vector_threads + thread;
    if (chunk >= chunks) continue;
    const uint4 in = x[chunk];
    const std::uint32_t pairs[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) values[i][2 * k] = low_bf16(pairs[k]), values[i][2 * k + 1] = high_bf16(pairs[k]);
    if (args.delta != nullptr) {
      const uint4 add = delta[chunk];
      const std::uint32_t others[4] = {add.x, add.y, add.z, add.w};
      std::uint32_t sums[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sums[k] = pack_bf16(values[i][2 * k] + low_bf16(others[k]), values[i][2 * k + 1] + high_bf16(others[k]));
        values[i][2 * k] = low_bf16(sums[k]), values[i][2 * k + 1] = high_bf16(sums[k]);
      }
      x[chunk] = uint4{sums[0], sums[1], sums[2], sums[3]};
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sum += values[i][k];
      squares += values[i][k] * values[i][k];
    }
  }
  if (args.normed == nullptr) return;
  const auto count = static_cast<float>(args.columns);
  float mean = 0;
  if constexpr (Layer) {
    mean = block_sum(sum, shared, vector_threads / warp_size) / count;
    squares = 0;
#pragma unroll
    for (int i = 0; i < vector_chunks; ++i) {
      if (i * vector_threads + thread >= chunks) continue;
#pragma unroll
      for (int k = 0; k < 8; ++k) squares += (values[i][k] - mean) * (values[i][k] - mean);
    }
  }
  const float r = inverse_root(block_sum(squares, shared, vector_threads / warp_size) / count + args.eps);
  auto* const y = reinterpret_cast<uint4*>(args.normed + row * args.normed_stride);
#pragma unroll
  for (int i = 0; i < vector_chunks; ++i) {
    const int chunk = i * vector_threads + thread;
    if (chunk >= chunks) continue;
    float out[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float w = i == 0 ? weight[k] : args.weight[chunk * 8 + k];
      if constexpr (Layer) {
        out[k] = ((values[i][k] - mean) * r) * w + args.bias[chunk * 8 + k];
      } else {
        out[k] = (values[i][k] * r) * (args.gemma ? 1.0f + w : w);
      }
    }
    y[chunk] = uint4{pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]), pack_bf16(out[4], out[5]),
                     pack_bf16(out[6], out[7])};
  }
}

bool in_chunks(const void* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

template <bool Layer>
cudaError_t launch_rows(const AddNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.columns % 8 == 0 && args.columns <= vector_threads * vector_chunks * 8 &&
      in_chunks(args.residual, args.residual_stride) && in_chunks(args.delta, args.delta_stride) &&
      in_chunks(args.normed, args.normed_stride)) {
    return launch(add_norm_vector_sm80<Layer>, static_cast<unsigned>(args.rows), vector_threads, 0, stream, args);
  }
  if (args.columns > norm_threads * 32) return cudaErrorInvalidValue;
  return launch(add_norm_any_sm80<Layer>, static_cast<unsigned>(args.rows), norm_threads, 0, stream, args);
}

}  // namespace

cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) { return launch_rows<false>(args, stream); }
cudaError_t launch_layer_norm(const AddNormArgs& args, cudaStream_t stream) { return launch_rows<true>(args, stream); }

}  // namespace m3::ops::cuda
