// The router's products for few tokens on Hopper. A gate of 3 MB is dealt out over all multiprocessors, 16 experts by 384
// columns each, and stands split into bf16 pieces in registers before the kernel ahead has ended: what is left to do then
// is to fetch x and to multiply.
#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int route_warps = 4;
constexpr int warp_columns = 96;
constexpr int segment_columns = route_warps * warp_columns;

// fp32 as the sum of three bf16 (two where it has 16 bits), exactly.
template <int Pieces>
__device__ void split(float low, float high, std::uint32_t (&pairs)[Pieces]) {
#pragma unroll
  for (int p = 0; p < Pieces; ++p) {
    const std::uint32_t a = __float_as_uint(low), b = __float_as_uint(high);
    pairs[p] = __byte_perm(a, b, 0x7632);
    low -= __uint_as_float(a & 0xffff0000u);
    high -= __uint_as_float(b & 0xffff0000u);
  }
}

// sums [columns / 384, tokens, experts]. Lane 4 g + j of a warp takes columns 8 j … 8 j + 7 of every 32.
template <bool Wide>
__global__ void __launch_bounds__(route_warps* warp_size)
    route_sums_sm90(const std::byte* gate, int experts, int columns, const std::uint16_t* x, std::int64_t x_stride,
                    int tokens, float* sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int pieces = Wide ? 3 : 1;
  constexpr int steps = warp_columns / 32;
  __shared__ float parts[route_warps][16][9];
  asm volatile("griddepcontrol.launch_dependents;");
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int first = static_cast<int>(blockIdx.y) * segment_columns + warp * warp_columns + j * 8;
  const int row = static_cast<int>(blockIdx.x) * 16;
  std::uint32_t a[steps][pieces][2][4];  // of rows g and g + 8: four pairs
#pragma unroll
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at = std::int64_t{row + g + 8 * r} * columns + first + step * 32;
      if constexpr (Wide) {
        const auto* from = reinterpret_cast<const float4*>(gate + at * 4);
        const float4 low = __ldg(from), high = __ldg(from + 1);
        std::uint32_t split_pairs[4][pieces];
        split(low.x, low.y, split_pairs[0]);
        split(low.z, low.w, split_pairs[1]);
        split(high.x, high.y, split_pairs[2]);
        split(high.z, high.w, split_pairs[3]);
#pragma unroll
        for (int p = 0; p < pieces; ++p) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[step][p][r][i] = split_pairs[i][p];
        }
      } else {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(gate + at * 2));
        a[step][0][r][0] = v.x, a[step][0][r][1] = v.y, a[step][0][r][2] = v.z, a[step][0][r][3] = v.w;
      }
    }
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float* to = sums + std::int64_t{blockIdx.y} * tokens * experts;
  uint4 next[steps];
  const auto load = [&](int token) {
    const std::uint16_t* from = x + min(token + g, tokens - 1) * x_stride + first;
#pragma unroll
    for (int step = 0; step < steps; ++step) next[step] = *reinterpret_cast<const uint4*>(from + step * 32);
  };
  load(0);
  for (int token = 0; token < tokens; token += 8) {
    float acc[pieces][4] = {};
    uint4 b[steps];
#pragma unroll
    for (int step = 0; step < steps; ++step) b[step] = next[step];
    if (token + 8 < tokens) load(token + 8);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int p = 0; p < pieces; ++p) {
        mma_bf16(acc[p], a[step][p][0][0], a[step][p][1][0], a[step][p][0][1], a[step][p][1][1], b[step].x, b[step].y);
        mma_bf16(acc[p], a[step][p][0][2], a[step][p][1][2], a[step][p][0][3], a[step][p][1][3], b[step].z, b[step].w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = 0;
#pragma unroll
      for (int p = pieces - 1; p >= 0; --p) sum += acc[p][i];
      parts[warp][g + i / 2 * 8][2 * j + i % 2] = sum;
    }
    __syncthreads();
    const int expert = static_cast<int>(threadIdx.x) % 16, at = static_cast<int>(threadIdx.x) / 16;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < route_warps; ++w) sum += parts[w][expert][at];
    if (token + at < tokens) to[std::int64_t{token + at} * experts + row + expert] = sum;
    __syncthreads();
  }
#endif
}

bool on_16_bytes(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

int route_segments_sm90(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens) {
  if (!is_hopper() || tokens > route_segment_tokens || gate.columns % segment_columns != 0 || gate.rows % 16 != 0) {
    return 0;
  }
  if (gate.format != WeightFormat::f32 && gate.format != WeightFormat::bf16) return 0;
  if (gate.row_scales != nullptr || x_stride % 8 != 0 || !on_16_bytes(x) || !on_16_bytes(gate.values)) return 0;
  const auto segments = static_cast<int>(gate.columns / segment_columns);
  return segments >= 2 && segments <= most_route_segments ? segments : 0;
}

cudaError_t launch_route_sums_sm90(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens,
                                   float* sums, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(gate.rows / 16), static_cast<unsigned>(gate.columns / segment_columns));
  const auto kernel = gate.format == WeightFormat::f32 ? route_sums_sm90<true> : route_sums_sm90<false>;
  return launch(kernel, grid, route_warps * warp_size, 0, stream, gate.values, static_cast<int>(gate.rows),
                static_cast<int>(gate.columns), x, x_stride, tokens, sums);
}

}  // namespace m3::ops::cuda
