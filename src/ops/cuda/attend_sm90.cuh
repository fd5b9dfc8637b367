// Attention on Hopper's warpgroup products: what its kernels share. Device code, inside
// `#if defined(__CUDA_ARCH_FEAT_SM90_ALL)` alone.
//
// A warpgroup takes 64 rows of queries (warp w rows 16w … 16w + 15) and 128 keys at a time. Rows of Q, K and V lie in
// shared memory as tiles of two halves of 64 elements, each [rows][128 bytes] with 16-byte pieces exchanged by row
// (wgmma.cuh, swizzle 128): K-major for Q and K, MN-major for V. Narrower rows (80 of the vision tower) fill the first
// pieces of the second half; the rest of it is never read.
#pragma once

#include "src/ops/cuda/attention.cuh"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

inline constexpr int tile_keys = 128;
inline constexpr int group_queries = 64;  // rows of a warpgroup
inline constexpr int swizzle_row = 128;   // bytes

// Of the device in use: whether it is a Hopper (9.0), and its multiprocessors.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}
inline bool runs_on_hopper() {
  static const bool hopper = device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
                             device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
  return hopper;
}
inline int multiprocessors() {
  static const int count = device_attribute(cudaDevAttrMultiProcessorCount);
  return count;
}

// Bytes of a tile and of its half.
__host__ __device__ constexpr int half_tile_bytes(int rows) { return rows * swizzle_row; }
__host__ __device__ constexpr int tile_bytes(int rows) { return 2 * half_tile_bytes(rows); }

// Where piece p (16 bytes) of a row lies.
template <int Rows>
__device__ inline int tile_piece(int row, int p) {
  return (p >> 3) * half_tile_bytes(Rows) + row * swizzle_row + (((p ^ row) & 7) << 4);
}

__device__ inline std::byte* tile_memory() {
  extern __shared__ __align__(1024) std::byte tiles[];
  return tiles;
}

__device__ inline float power_of_two(float exponent) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(exponent));
  return value;
}

// As copy_async_16; zeros where not `present`.
__device__ inline void copy_async_16_or_zero(std::byte* shared, const void* global, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(present ? 16 : 0)
               : "memory");
}

// Ring position of a producer or consumer: which buffer, and the parity of its phase.
template <int Buffers>
struct Turn {
  int buffer = 0;
  unsigned parity = 0;
  __device__ void next() {
    if (++buffer == Buffers) buffer = 0, parity ^= 1u;
  }
};

// Starts scores [64, 128] = q [64, 16 · Steps] · kᵀ.
template <int Steps>
__device__ inline void start_scores(float (&scores)[64], std::uint64_t q, int q_half, std::uint64_t k) {
  pin(scores);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < Steps; ++s) {
    wgmma<tile_keys>(scores, descriptor_at(q, s / 4 * q_half + s % 4 * 32),
                     descriptor_at(k, s / 4 * half_tile_bytes(tile_keys) + s % 4 * 32), s > 0);
  }
  wgmma_commit();
}

// Starts sums [64, N] (+)= p [64, 128] · v [128, N].
template <int N>
__device__ inline void start_values(float (&sums)[N / 2], const std::uint32_t (&p)[32], std::uint64_t v, bool add) {
  pin(sums);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < tile_keys / 16; ++s) {
    wgmma<N, true>(sums, p[4 * s], p[4 * s + 1], p[4 * s + 2], p[4 * s + 3], descriptor_at(v, s * 16 * swizzle_row),
                   add || s > 0);
  }
  wgmma_commit();
}

__device__ inline std::uint64_t key_descriptor(const std::byte* tile) {
  return tile_descriptor<128>(tile, 8 * swizzle_row);
}
__device__ inline std::uint64_t value_descriptor(const std::byte* tile) {
  return tile_descriptor<128>(tile, 8 * swizzle_row, half_tile_bytes(tile_keys));
}

// The largest of a row's scores over the four lanes that hold it.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(all_lanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(all_lanes, value, 2));
}
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(all_lanes, value, 1);
  return value + __shfl_xor_sync(all_lanes, value, 2);
}

// Whether a row of the warp has a shift, some score · scale, so large that its rounding counts: `weigh` multiplies scores
// out exactly, so all weights of the row are off by 2^(what was rounded off), here up to 2^(2^-14), of 2^60 up to
// 2^(2^36). Such scores are to be lowered.
__device__ inline bool any_rounded(float shift0, float shift1) {
  constexpr float most = 1024;
  return __any_sync(all_lanes, fmaxf(fabsf(shift0), fabsf(shift1)) > most);
}
// Scores less `from` of their row.
__device__ inline void lower(float (&scores)[64], float from0, float from1) {
#pragma unroll
  for (int i = 0; i < 64; ++i) scores[i] -= i / 2 % 2 == 0 ? from0 : from1;
}

// scores -> p = 2^(scores · scale - shift) as pairs of bf16; adds this lane's share to the sums.
__device__ inline void weigh(float (&scores)[64], float scale, float shift0, float shift1, float& sum0, float& sum1,
                             std::uint32_t (&p)[32]) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float shift = i % 2 == 0 ? shift0 : shift1;
    const float a = power_of_two(fmaf(scores[2 * i], scale, -shift));
    const float b = power_of_two(fmaf(scores[2 * i + 1], scale, -shift));
    sums[i % 4] += a + b;
    p[i] = pack_bf16(a, b);
  }
  sum0 += sums[0] + sums[2];
  sum1 += sums[1] + sums[3];
}

// Row r (0: g, 1: g + 8) of the scores at keys outside [first, last) -> none.
__device__ inline void hide(float (&scores)[64], int j, int r, int first, int last) {
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 8 * n + 2 * j + i;
      if (key < first || key >= last) scores[4 * n + 2 * r + i] = no_score;
    }
  }
}

__device__ inline float row_max(const float (&scores)[64], int r) {
  float a = scores[2 * r], b = scores[2 * r + 1];
#pragma unroll
  for (int n = 1; n < 16; ++n) {
    a = fmaxf(a, scores[4 * n + 2 * r]);
    b = fmaxf(b, scores[4 * n + 2 * r + 1]);
  }
  return fmaxf(a, b);
}

}  // namespace m3::ops::cuda
