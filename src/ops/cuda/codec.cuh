// Weights from their stored format to tensor-core operands in registers.
//
// A step is 64 columns: lane 4g + j of a warp holds the 16 columns 64·step + 16j … + 15 of row g. `widen` gives them as
// eight pairs of bf16, two for each of four instructions. Which column meets which place of an instruction is free as
// long as both operands agree: formats with `interleaved` pairs take (i, i + 4) of each 8 columns, the others (i, i + 1).
#pragma once

#include "src/base/weight_matrix.h"
#include "src/ops/cuda/device.cuh"

namespace m3::ops::cuda {

// Bytes of 64 columns of a row of values.
__host__ __device__ constexpr int step_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return 256;
    case WeightFormat::f16:
    case WeightFormat::bf16: return 128;
    case WeightFormat::fp8:
    case WeightFormat::mxfp8: return 64;
    default: return 32;
  }
}

// Times 2^(code - 127), exactly: in two factors where one would not be finite. `base`: a power of two that the codes
// still lack, as an exponent.
__device__ inline void scale_e8m0(std::uint32_t (&pairs)[8], std::uint32_t code, int base) {
  const int exponent = static_cast<int>(code) + base;  // biased: of the whole factor
  const int first = exponent > 254 ? 254 : exponent;
  const std::uint32_t factor = code == 255 ? 0x7fc07fc0u : static_cast<std::uint32_t>(first) * 0x00800080u;
#pragma unroll
  for (int i = 0; i < 8; ++i) pairs[i] = multiply_bf16(pairs[i], factor);
  if (exponent > 254) {
    const std::uint32_t rest = static_cast<std::uint32_t>(exponent - 254 + 127) * 0x00800080u;
#pragma unroll
    for (int i = 0; i < 8; ++i) pairs[i] = multiply_bf16(pairs[i], rest);
  }
}

// Eight e2m1 codes as four pairs of bf16 times 2^-126, interleaved.
__device__ inline void spread_e2m1(std::uint32_t codes, std::uint32_t* pairs) {
  pairs[0] = ((codes << 12) & 0x80008000u) | ((codes << 6) & 0x01c001c0u);
  pairs[1] = ((codes << 8) & 0x80008000u) | ((codes << 2) & 0x01c001c0u);
  pairs[2] = ((codes << 4) & 0x80008000u) | ((codes >> 2) & 0x01c001c0u);
  pairs[3] = (codes & 0x80008000u) | ((codes >> 6) & 0x01c001c0u);
}

template <WeightFormat Format>
struct Codec {
  static constexpr int lane_bytes = step_bytes(Format) / 4;
  static constexpr int words = lane_bytes / 4;
  // How many bf16 numbers add up to one weight: f32 is the sum of three, f16 of two, exactly.
  static constexpr int pieces = Format == WeightFormat::f32 ? 3 : Format == WeightFormat::f16 ? 2 : 1;
  static constexpr bool interleaved = Format == WeightFormat::mxfp4 || Format == WeightFormat::nvfp4;
  static constexpr bool scaled =
      Format == WeightFormat::mxfp8 || Format == WeightFormat::mxfp4 || Format == WeightFormat::nvfp4;
  // Columns that share a scale.
  static constexpr int scale_columns = Format == WeightFormat::nvfp4 ? 16 : 32;

  // The scale's byte for lane j's columns of a step, in a row's scales.
  __device__ static int scale_index(int step, int j) {
    return Format == WeightFormat::nvfp4 ? step * 4 + j : step * 2 + (j >> 1);
  }

  // Lane j's part of a step of a row that was copied to shared memory; rows of 128 bytes and more have neighbouring
  // chunks of 16 bytes swapped where `row` is odd, so that two rows meet all banks.
  __device__ static void load_shared(const std::byte* from, int row, int j, std::uint32_t (&raw)[words]) {
    if constexpr (lane_bytes == 8) {
      *reinterpret_cast<uint2*>(raw) = *reinterpret_cast<const uint2*>(from + j * 8);
    } else {
#pragma unroll
      for (int i = 0; i < words; i += 4) {
        const int chunk = j * (words / 4) + i / 4;
        *reinterpret_cast<uint4*>(raw + i) =
            *reinterpret_cast<const uint4*>(from + (words >= 8 ? chunk ^ (row & 1) : chunk) * 16);
      }
    }
  }

  // The piece'th number of each of the 16 columns.
  __device__ static void widen(const std::uint32_t (&raw)[words], std::uint32_t scale, int piece,
                               std::uint32_t (&pairs)[8]) {
    if constexpr (Format == WeightFormat::bf16) {
#pragma unroll
      for (int i = 0; i < 8; ++i) pairs[i] = raw[i];
    } else if constexpr (Format == WeightFormat::fp8 || Format == WeightFormat::mxfp8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) spread_e4m3(raw[i], pairs[2 * i], pairs[2 * i + 1]);
      if constexpr (Format == WeightFormat::fp8) {
#pragma unroll
        for (int i = 0; i < 8; ++i) pairs[i] = multiply_bf16(pairs[i], 0x7b807b80u);
      } else {
        scale_e8m0(pairs, scale, 120);
      }
    } else if constexpr (Format == WeightFormat::mxfp4) {
      spread_e2m1(raw[0], pairs);
      spread_e2m1(raw[1], pairs + 4);
      scale_e8m0(pairs, scale, 126);
    } else if constexpr (Format == WeightFormat::nvfp4) {
      spread_e2m1(raw[0], pairs);
      spread_e2m1(raw[1], pairs + 4);
      const std::uint32_t factor = narrow_bf16(widen_e4m3(scale)) * 0x00010001u;
#pragma unroll
      for (int i = 0; i < 8; ++i) pairs[i] = multiply_bf16(multiply_bf16(pairs[i], 0x7e807e80u), factor);  // 2^126
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float a = 0, b = 0;
        if constexpr (Format == WeightFormat::f32) {
          a = __uint_as_float(raw[2 * i]), b = __uint_as_float(raw[2 * i + 1]);
        } else {
          a = widen_f16(static_cast<std::uint16_t>(raw[i])), b = widen_f16(static_cast<std::uint16_t>(raw[i] >> 16));
        }
        for (int past = 0; past < piece; ++past) a -= round_bf16(a), b -= round_bf16(b);
        pairs[i] = pack_bf16(a, b);
      }
    }
  }

  // 16 activations in order -> the pairs that meet `widen`'s.
  __device__ static void arrange(const uint4& first, const uint4& second, std::uint32_t (&pairs)[8]) {
    if constexpr (interleaved) {
      pairs[0] = __byte_perm(first.x, first.z, 0x5410), pairs[1] = __byte_perm(first.x, first.z, 0x7632);
      pairs[2] = __byte_perm(first.y, first.w, 0x5410), pairs[3] = __byte_perm(first.y, first.w, 0x7632);
      pairs[4] = __byte_perm(second.x, second.z, 0x5410), pairs[5] = __byte_perm(second.x, second.z, 0x7632);
      pairs[6] = __byte_perm(second.y, second.w, 0x5410), pairs[7] = __byte_perm(second.y, second.w, 0x7632);
    } else {
      pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
      pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
    }
  }
};

// One column of a row, block scale included: for shapes that the tensor-core kernels do not take.
__device__ inline float widen_one(WeightFormat format, const std::byte* values, const std::byte* scales,
                                  std::int64_t column) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values);
  const auto* halves = reinterpret_cast<const std::uint16_t*>(values);
  const auto* scale = reinterpret_cast<const std::uint8_t*>(scales);
  const auto nibble = [&] { return column % 2 == 0 ? bytes[column / 2] & 15u : bytes[column / 2] >> 4; };
  switch (format) {
    case WeightFormat::f32: return reinterpret_cast<const float*>(values)[column];
    case WeightFormat::f16: return widen_f16(halves[column]);
    case WeightFormat::bf16: return widen_bf16(halves[column]);
    case WeightFormat::fp8: return widen_e4m3(bytes[column]);
    case WeightFormat::mxfp8: return widen_e4m3(bytes[column]) * widen_e8m0(scale[column / 32]);
    case WeightFormat::mxfp4: return widen_e2m1(nibble()) * widen_e8m0(scale[column / 32]);
    case WeightFormat::nvfp4: return widen_e2m1(nibble()) * widen_e4m3(scale[column / 16]);
  }
  return 0;
}

}  // namespace m3::ops::cuda
