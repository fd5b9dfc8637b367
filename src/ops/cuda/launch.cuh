// Launching kernels so that one begins while the one before it ends (programmatic dependent launch; Hopper and later).
//
// Every kernel launched by `launch` calls `wait_for_previous` before it touches what another kernel may have written or
// may still read; constants (weights, arguments) may be prefetched ahead of it.
#pragma once

#include <cuda_runtime.h>

namespace m3::ops::cuda {

// All blocks of the kernel before have ended and their writes are visible. Lets the next kernel's blocks come up.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks the L2 for the line at `address`.
__device__ inline void prefetch_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// Raises the kernel's limit of shared memory where it is not that high yet.
template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes, int& allowed) {
  if (bytes <= allowed) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) allowed = bytes;
  return error;
}

// Of the device in use.
inline int processor_count() {
  static const int count = [] {
    int device = 0, processors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return processors;
  }();
  return count;
}

inline bool is_hopper() {
  static const bool hopper = [] {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
           minor == 0;
  }();
  return hopper;
}

inline bool launches_overlap() {
  static const bool overlap = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
  }();
  return overlap;
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = launches_overlap() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

// What cudaLaunchKernelEx takes for a kernel in clusters of `cluster` blocks along x (1: none), which begins as `launch`'s
// do; `spread`: a cluster's blocks rather on a multiprocessor each. Hopper alone.
struct ClusterLaunch {
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {};

  ClusterLaunch(unsigned cluster, dim3 grid, unsigned threads, std::size_t shared_bytes, cudaStream_t stream,
                bool spread = false) {
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster, 1, 1};
    attributes[2].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    attributes[2].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster == 1 ? 1 : spread ? 3 : 2;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;
};

}  // namespace m3::ops::cuda
