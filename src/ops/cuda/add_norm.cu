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

template <bool Layer>
cudaError_t launch_rows(const AddNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.columns > norm_threads * 32) return cudaErrorInvalidValue;
  return launch(add_norm_any_sm80<Layer>, static_cast<unsigned>(args.rows), norm_threads, 0, stream, args);
}

}  // namespace

cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) { return launch_rows<false>(args, stream); }
cudaError_t launch_layer_norm(const AddNormArgs& args, cudaStream_t stream) { return launch_rows<true>(args, stream); }

}  // namespace m3::ops::cuda
