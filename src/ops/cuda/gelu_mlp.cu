#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// x · Φ(x). By erfc, so that the small values of negative x keep their digits.
__device__ inline float gelu(float x) { return x * (0.5f * erfcf(x * -0.70710678118654752f)); }

// Eight numbers a thread.
__global__ void __launch_bounds__(256) gelu_sm80(const std::uint16_t* x, std::int64_t count, std::uint16_t* y) {
  wait_for_previous();
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (first + 8 <= count) {
    const uint4 in = *reinterpret_cast<const uint4*>(x + first);
    const std::uint32_t pairs[4] = {in.x, in.y, in.z, in.w};
    std::uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = pack_bf16(gelu(low_bf16(pairs[i])), gelu(high_bf16(pairs[i])));
    *reinterpret_cast<uint4*>(y + first) = uint4{out[0], out[1], out[2], out[3]};
    return;
  }
  for (std::int64_t i = first; i < count; ++i) y[i] = narrow_bf16(gelu(widen_bf16(x[i])));
}

}  // namespace

cudaError_t launch_gelu(const std::uint16_t* x, std::int64_t count, std::uint16_t* y, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(gelu_sm80, static_cast<unsigned>((count + 2047) / 2048), 256, 0, stream, x, count, y);
}

}  // namespace m3::ops::cuda
