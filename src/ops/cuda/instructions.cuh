// The machine's own instructions (PTX), each behind a function: conversions, tensor cores, asynchronous copies. Nothing
// else here holds assembly, so that tests can run the kernels on a processor with another version of this file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::ops::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

// The shared memory that a launch asked for, at 128 bytes.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ __align__(128) std::byte memory[];
  return memory;
}

// Round to nearest even; NaN stays NaN.
__device__ inline std::uint16_t narrow_bf16(float value) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Products of two pairs of bf16, each rounded once (exact where the product fits).
__device__ inline std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

__device__ inline float widen_f16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// What another block of threads may have written while this one ran: past the L1.
template <typename T>
__device__ inline T load_fresh(const T* address) {
  return __ldcg(address);
}

// d [16, 8] += a [16, 16] · b [16, 8], bf16 in, fp32 sums. Lane 4g + j holds rows g and g + 8, columns 2j and 2j + 1.
__device__ inline void mma_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void copy_async_16(void* shared, const void* global) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace m3::ops::cuda
