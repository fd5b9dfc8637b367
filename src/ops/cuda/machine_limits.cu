#include "src/ops/cuda/machine_limits.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "src/ops/cuda/device_calls.h"
#include "src/ops/cuda/fill_random.h"

namespace m3::ops::cuda {

namespace {

constexpr int repeats = 10;
constexpr int chunk_bytes = 32 << 10;
constexpr int stages = 6;  // chunks on their way to an SM

// Bulk copies into shared memory, 8 % faster than loads into registers (sm_90 and later).
__global__ void read_in_bulk(const std::byte* data, std::int64_t chunks) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte buffer[];
  __shared__ __align__(8) std::uint64_t arrived[stages];
  if (threadIdx.x != 0) return;
  const auto address = [](const void* shared) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)); };
  for (int stage = 0; stage < stages; ++stage)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&arrived[stage])));
  asm volatile("fence.mbarrier_init.release.cluster;");
  const auto wait = [&](int stage, unsigned phase) {
    unsigned done = 0;
    while (done == 0) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(address(&arrived[stage])), "r"(phase)
                   : "memory");
    }
  };
  std::int64_t turn = 0;
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x, ++turn) {
    const int stage = static_cast<int>(turn % stages);
    if (turn >= stages) wait(stage, static_cast<unsigned>(turn / stages - 1) & 1u);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&arrived[stage])),
                 "r"(chunk_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(buffer + stage * chunk_bytes)),
                 "l"(data + chunk * chunk_bytes), "r"(chunk_bytes), "r"(address(&arrived[stage]))
                 : "memory");
  }
  for (std::int64_t left = turn > stages ? turn - stages : 0; left < turn; ++left)
    wait(static_cast<int>(left % stages), static_cast<unsigned>(left / stages) & 1u);
#endif
}

__global__ void read_in_registers(const uint4* data, std::int64_t count, unsigned* sink) {
  constexpr int unrolled = 8;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned seen = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += unrolled * step) {
    uint4 values[unrolled];
#pragma unroll
    for (int k = 0; k < unrolled; ++k) values[k] = i + k * step < count ? __ldcs(data + i + k * step) : uint4{};
#pragma unroll
    for (int k = 0; k < unrolled; ++k) seen |= values[k].x | values[k].y | values[k].z | values[k].w;
  }
  if (seen == 0x12345678u) *sink = seen;  // keeps the loads
}

// Seconds of the fastest of several calls.
template <typename Call>
double best_time(const Call& call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "creating an event");
  check(cudaEventCreate(&end), "creating an event");
  float best = 1e30f;
  for (int i = 0; i < repeats; ++i) {
    check(cudaEventRecord(begin), "recording an event");
    call();
    check(cudaEventRecord(end), "recording an event");
    check(cudaEventSynchronize(end), "measuring the GPU");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "measuring the GPU");
    if (i > 0) best = std::min(best, milliseconds);  // the first warms up
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best * 1e-3;
}

// The part of cuBLAS that is used, without its headers.
struct Blas {
  using Handle = void*;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*multiply)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                  const void*, void*, int, int, int, int) = nullptr;
};
constexpr int blas_transposed = 1, blas_plain = 0, blas_bf16 = 14, blas_compute_f32 = 68, blas_default = -1;

}  // namespace

double measure_read_bandwidth() {
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
  const std::size_t bytes = std::min<std::size_t>(std::size_t{2} << 30, free_bytes / 2) / chunk_bytes * chunk_bytes;
  DeviceBuffer memory;
  std::byte* data = memory.reserve(bytes);
  check(cudaMemset(data, 0, bytes), "filling memory");
  cudaDeviceProp properties{};
  int device = 0;
  check(cudaGetDevice(&device), "asking for the GPU in use");
  check(cudaGetDeviceProperties(&properties, device), "asking for the GPU's properties");
  const int processors = properties.multiProcessorCount;
  double seconds = best_time([&] {
    read_in_registers<<<processors * 4, 512>>>(
        reinterpret_cast<const uint4*>(data), static_cast<std::int64_t>(bytes / 16), reinterpret_cast<unsigned*>(data));
    check(cudaGetLastError(), "reading memory");
  });
  if (properties.major >= 9) {
    check(cudaFuncSetAttribute(read_in_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * chunk_bytes),
          "asking for shared memory");
    seconds = std::min(seconds, best_time([&] {
                         read_in_bulk<<<processors, 32, stages * chunk_bytes>>>(
                             data, static_cast<std::int64_t>(bytes / chunk_bytes));
                         check(cudaGetLastError(), "reading memory");
                       }));
  }
  return static_cast<double>(bytes) / seconds;
}

double measure_matmul_peak() {
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  std::unique_ptr<void, Close> library;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so"}) {
    if (library == nullptr) library.reset(::dlopen(name, RTLD_NOW | RTLD_LOCAL));
  }
  if (library == nullptr) return 0;
  Blas blas;
  blas.create = reinterpret_cast<decltype(blas.create)>(::dlsym(library.get(), "cublasCreate_v2"));
  blas.destroy = reinterpret_cast<decltype(blas.destroy)>(::dlsym(library.get(), "cublasDestroy_v2"));
  blas.multiply = reinterpret_cast<decltype(blas.multiply)>(::dlsym(library.get(), "cublasGemmEx"));
  Blas::Handle handle = nullptr;
  if (blas.create == nullptr || blas.destroy == nullptr || blas.multiply == nullptr || blas.create(&handle) != 0)
    return 0;
  constexpr int side = 8192;
  constexpr std::size_t matrix_bytes = std::size_t{side} * side * 2;
  DeviceBuffer memory;
  std::byte* data = memory.reserve(3 * matrix_bytes);
  // Real values take more power than constant ones, and so clock lower.
  fill_random({data, 2 * matrix_bytes}, {.kind = RandomFill::Kind::bf16, .key = 1, .parameter = 1}, nullptr);
  const float one = 1, zero = 0;
  int status = 0;
  const double seconds = best_time([&] {
    status |= blas.multiply(handle, blas_transposed, blas_plain, side, side, side, &one, data, blas_bf16, side,
                            data + matrix_bytes, blas_bf16, side, &zero, data + 2 * matrix_bytes, blas_bf16, side,
                            blas_compute_f32, blas_default);
  });
  blas.destroy(handle);
  return status == 0 ? 2.0 * side * side * side / seconds : 0;
}

}  // namespace m3::ops::cuda
