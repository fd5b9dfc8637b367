// CUDA's device language on the processor. A thread of the device is a fiber; blocks run one after another, the fibers of
// a block until each waits at a barrier, in an order that changes from turn to turn, so that a missing barrier shows.
// Included ahead of every kernel file; `extern __shared__` arrays are turned into emulation::dynamic_shared() beforehand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT: as CUDA's
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace emulation {

struct Place {
  dim3 thread, block, block_size, grid;
};
extern Place* here;  // of the fiber that runs

// Runs a kernel: `body` in every thread of every block.
void run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);
std::byte* dynamic_shared();
void block_barrier();
void warp_barrier();
// Exchange of 64 bits between the lanes of a warp: what each lane gave, after all have.
const std::uint64_t* exchange(std::uint64_t own);
int block_count(bool value);                  // how many threads of the block gave true
void copy_later(void* to, const void* from);  // 16 bytes
void commit();
void wait(int pending);

}  // namespace emulation

#define threadIdx (emulation::here->thread)
#define blockIdx (emulation::here->block)
#define blockDim (emulation::here->block_size)
#define gridDim (emulation::here->grid)

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp() { emulation::warp_barrier(); }
inline int __syncthreads_or(int value) { return emulation::block_count(value != 0) > 0; }
inline int __syncthreads_and(int value) { return emulation::block_count(value == 0) == 0; }

template <typename T>
std::uint64_t emulated_bits(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <typename T>
T emulated_value(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline unsigned emulated_lane() { return threadIdx.x % 32; }
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  return emulated_value<T>(emulation::exchange(emulated_bits(value))[source & 31]);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulated_value<T>(emulation::exchange(emulated_bits(value))[emulated_lane() ^ static_cast<unsigned>(mask)]);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  const unsigned lane = emulated_lane();
  return emulated_value<T>(emulation::exchange(emulated_bits(value))[lane >= delta ? lane - delta : lane]);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const std::uint64_t* all = emulation::exchange(value ? 1 : 0);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= static_cast<unsigned>(all[lane]) << lane;
  return votes;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const std::uint64_t* all = emulation::exchange(value);
  return static_cast<unsigned>(*std::max_element(all, all + 32));
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  const std::uint64_t* all = emulation::exchange(value);
  return static_cast<unsigned>(*std::min_element(all, all + 32));
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline float __uint_as_float(unsigned bits) { return emulated_value<float>(bits); }
inline unsigned __float_as_uint(float value) { return static_cast<unsigned>(emulated_bits(value)); }
inline unsigned __float2uint_rn(float value) { return static_cast<unsigned>(std::nearbyint(value)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7u))) & 255u;
    if ((pick & 8u) != 0) byte = (byte & 128u) != 0 ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T, typename U>
T atomicAdd(T* at, U value) {
  const T old = *at;
  *at = static_cast<T>(old + value);
  return old;
}
template <typename T>
T atomicExch(T* at, T value) {
  return std::exchange(*at, value);
}
inline unsigned atomicInc(unsigned* at, unsigned last) { return std::exchange(*at, *at >= last ? 0u : *at + 1); }
inline void __threadfence() {}
using std::max;
using std::min;
