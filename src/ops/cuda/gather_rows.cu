#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// A block a row, eight numbers a thread at a time.
__global__ void __launch_bounds__(256) gather_rows_sm80(const std::uint16_t* x, std::int64_t stride,
                                                        const std::int32_t* ids, int columns, std::uint16_t* out) {
  wait_for_previous();
  const auto* const from = reinterpret_cast<const uint4*>(x + ids[blockIdx.x] * stride);
  auto* const to = reinterpret_cast<uint4*>(out + std::int64_t{blockIdx.x} * columns);
  for (int i = static_cast<int>(threadIdx.x); i < columns / 8; i += 256) to[i] = from[i];
}

}  // namespace

cudaError_t launch_gather_rows(const std::uint16_t* x, std::int64_t stride, const std::int32_t* ids, int rows,
                               int columns, std::uint16_t* out, cudaStream_t stream) {
  return launch(gather_rows_sm80, static_cast<unsigned>(rows), 256, 0, stream, x, stride, ids, columns, out);
}

}  // namespace m3::ops::cuda
