#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// A column of blocks of threads a page. Pages of every type are multiples of 16 bytes.
__global__ void __launch_bounds__(256)
    copy_pages_any_sm80(const __grid_constant__ PagePart part, const std::int32_t* from, const std::int32_t* to) {
  wait_for_previous();
  const auto* source = reinterpret_cast<const uint4*>(part.data + from[blockIdx.y] * part.page_bytes);
  auto* target = reinterpret_cast<uint4*>(part.data + to[blockIdx.y] * part.page_bytes);
  const std::int64_t count = part.page_bytes / 16;
  for (std::int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * 256) {
    target[i] = source[i];
  }
}

}  // namespace

cudaError_t launch_copy_pages(const PagePart& part, const std::int32_t* from, const std::int32_t* to, int count,
                              cudaStream_t stream) {
  for (int first = 0; first < count; first += 32768) {
    const dim3 grid(16, static_cast<unsigned>(count - first < 32768 ? count - first : 32768));
    launch(copy_pages_any_sm80, grid, 256, 0, stream, part, from + first, to + first);
  }
  return cudaGetLastError();
}

}  // namespace m3::ops::cuda
