// Launches on the processor.
#pragma once

#include "device.h"

namespace m3::ops::cuda {

inline void wait_for_previous() {}
inline void prefetch_l2(const void*) {}
inline int processor_count() { return 3; }

template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes, int&) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes, cudaStream_t,
                   const Arguments&... arguments) {
  emulation::queue(
      [=] { emulation::run(grid, dim3(threads), shared_bytes, [=] { kernel(Parameters(arguments)...); }); });
  return cudaSuccess;
}

}  // namespace m3::ops::cuda
