#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// Pixels and weights keep their fp32, so these are no tensor cores: 64 patches by 64 rows of W a block, 4 by 4 a thread,
// each sum in one chain of fused products over ascending columns.
constexpr int tile = 64;
constexpr int depth = 16;  // columns of a step
constexpr int threads = 256;
constexpr int pitch = tile + 4;

// Four columns of one row from `column` on; zeros past its end.
template <bool Wide>
__device__ inline void load_pixels(const float* row, std::int64_t column, std::int64_t columns, float (&to)[4]) {
  if constexpr (Wide) {
    uint4 raw = {0, 0, 0, 0};
    if (column < columns) raw = *reinterpret_cast<const uint4*>(row + column);
    to[0] = __uint_as_float(raw.x), to[1] = __uint_as_float(raw.y);
    to[2] = __uint_as_float(raw.z), to[3] = __uint_as_float(raw.w);
  } else {
    for (int i = 0; i < 4; ++i) to[i] = column + i < columns ? row[column + i] : 0.0f;
  }
}

template <bool Wide>
__device__ inline void load_weights(const PatchEmbedArgs& args, std::int64_t row, std::int64_t column, float (&to)[4]) {
  if constexpr (Wide) {
    load_pixels<true>(reinterpret_cast<const float*>(args.weight.values) + row * args.weight.columns, column,
                      args.weight.columns, to);
  } else {
    const std::byte* values = args.weight.values + row * args.row_bytes;
    const std::byte* scales = args.weight.scales + row * args.scale_bytes;
    for (int i = 0; i < 4; ++i) {
      to[i] = column + i < args.weight.columns ? widen_one(args.weight.format, values, scales, column + i) : 0.0f;
    }
  }
}

// `Wide`: rows of fp32 at 16 bytes, both of pixels and of W.
template <bool Wide>
__global__ void __launch_bounds__(threads) patch_embed_any_sm80(const __grid_constant__ PatchEmbedArgs args) {
  wait_for_previous();
  __shared__ float pixels[2][depth][pitch];
  __shared__ float weights[2][depth][pitch];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first_patch = std::int64_t{blockIdx.y} * tile;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * tile;
  const std::int64_t columns = args.weight.columns;
  const int own_row = thread / 4;
  const int own_column = thread % 4 * 4;
  const float* const from = args.pixels + min(first_patch + own_row, args.patches - 1) * args.pixel_stride;
  const std::int64_t weight_row = min(first_row + own_row, args.weight.rows - 1);
  const int patch = thread / 16 * 4;
  const int row = thread % 16 * 4;
  float next_pixels[4], next_weights[4];
  const auto fetch = [&](std::int64_t column) {
    load_pixels<Wide>(from, column + own_column, columns, next_pixels);
    load_weights<Wide>(args, weight_row, column + own_column, next_weights);
  };
  const auto keep = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pixels[buffer][own_column + i][own_row] = next_pixels[i];
      weights[buffer][own_column + i][own_row] = next_weights[i];
    }
  };
  float sums[4][4] = {};
  fetch(0);
  keep(0);
  __syncthreads();
  int buffer = 0;
  for (std::int64_t column = 0; column < columns; column += depth) {
    const bool more = column + depth < columns;
    if (more) fetch(column + depth);
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = pixels[buffer][k][patch + i], b[i] = weights[buffer][k][row + i];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int n = 0; n < 4; ++n) sums[i][n] = fmaf(a[i], b[n], sums[i][n]);
      }
    }
    if (more) keep(buffer ^ 1);
    __syncthreads();
    buffer ^= 1;
  }
  for (int i = 0; i < 4; ++i) {
    if (first_patch + patch + i >= args.patches) break;
    for (int n = 0; n < 4; ++n) {
      const std::int64_t column = first_row + row + n;
      if (column >= args.weight.rows) break;
      float factor = args.weight.tensor_scale;
      if (args.weight.row_scales != nullptr) factor *= args.weight.row_scales[column];
      args.out[(first_patch + patch + i) * args.out_stride + column] = narrow_bf16(sums[i][n] * factor);
    }
  }
}

}  // namespace

cudaError_t launch_patch_embed(const PatchEmbedArgs& args, cudaStream_t stream) {
  if (args.patches == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((args.weight.rows + tile - 1) / tile),
                  static_cast<unsigned>((args.patches + tile - 1) / tile));
  const auto at_16 = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const bool wide = args.weight.format == WeightFormat::f32 && args.weight.columns % 4 == 0 &&
                    args.pixel_stride % 4 == 0 && at_16(args.pixels) && at_16(args.weight.values);
  return launch(wide ? patch_embed_any_sm80<true> : patch_embed_any_sm80<false>, grid, threads, 0, stream, args);
}

}  // namespace m3::ops::cuda
