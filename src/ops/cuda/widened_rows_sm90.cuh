// W of the products of many rows on Hopper, as bf16 in registers (see matmul_widened_sm90.cuh): what a thread loads of a
// step of two rows, and what it makes of it a k16 at a time.
#pragma once

#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/matmul.h"
#include "src/ops/cuda/wgmma_items.cuh"

namespace m3::ops::cuda {

inline constexpr int wide_octet = 8;  // steps that share a copy of scales
// Bytes of a row's scales of an octet.
template <WeightFormat Format>
inline constexpr int scale_row_bytes = Format == WeightFormat::nvfp4 ? 32
                                       : Codec<Format>::scaled       ? 16
                                                                     : 0;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// Two codes of e8m0, in halves, as bf16: exponents, but 0 is 2^-127 and 255 NaN.
__device__ inline std::uint32_t factors_e8m0(std::uint32_t codes) {
  const std::uint32_t others = ((codes + 0x00010001u) & 0x00fe00feu) + 0x00fe00feu;  // bit 8: neither 0 nor 255
  return (codes << 7) | ((~others >> 2) & 0x00400040u);
}

// What multiplies one row's numbers of a step.
template <WeightFormat Format>
struct RowScale {
  std::uint32_t factors[Format == WeightFormat::nvfp4 ? 2 : 1];  // pairs: of the k16s in turn, or of the step's halves

  __device__ void load(std::uint32_t row, int step) {
    const int at = step % wide_octet;
    if constexpr (Format == WeightFormat::nvfp4) {
      spread_e4m3(load_word(row + at * 4), factors[0], factors[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        factors[i] = multiply_bf16(factors[i], 0x7b807b80u);  // 2^120
        // 480 stands for what is not a number.
        if ((factors[i] & 0x7fffu) == 0x43f0u) factors[i] |= 0x7fc0u;
        if ((factors[i] & 0x7fff0000u) == 0x43f00000u) factors[i] |= 0x7fc00000u;
      }
    } else if constexpr (Codec<Format>::scaled) {
      factors[0] = factors_e8m0(__byte_perm(load_half(row + at * 2), 0, 0x4140));
    }
  }
  // Of columns 16 s … of the step.
  __device__ void apply(std::uint32_t& first, std::uint32_t& second, int s) const {
    if constexpr (step_bytes(Format) == 64) {
      first = multiply_bf16(first, 0x7b807b80u);  // what `spread_e4m3` leaves out
      second = multiply_bf16(second, 0x7b807b80u);
    }
    if constexpr (Codec<Format>::scaled) {
      const bool low = Format == WeightFormat::nvfp4 ? s % 2 == 0 : s < 2;
      const std::uint32_t factor =
          __byte_perm(factors[Format == WeightFormat::nvfp4 ? s / 2 : 0], 0, low ? 0x1010 : 0x3232);
      first = multiply_bf16(first, factor);
      second = multiply_bf16(second, factor);
    }
  }
};

// The bytes of one row with a lane's numbers of a k16: columns 16 s + 2 j, + 1, and + 8, + 9. `row`: where those of the
// step begin (see RowsOfStep::place); `offset`: in whole eights of rows.
template <WeightFormat Format>
__device__ inline uint2 load_row(std::uint32_t row, int s, int offset) {
  if constexpr (step_bytes(Format) == 64) {
    const std::uint32_t from = (row ^ (16u * static_cast<unsigned>(s))) + offset;
    return {load_word(from), load_word(from + 8)};
  } else {
    return load_words2((row ^ (16u * static_cast<unsigned>(s / 2))) + 8 * (s % 2) + offset);
  }
}
// Those numbers, without scale (e4m3: times 2^-120); `pick` is pick_of(j).
template <WeightFormat Format>
__device__ inline unsigned pick_of(int j) {
  if (step_bytes(Format) == 64)
    return (j & 1) != 0 ? 0xb3a2 : 0x9180;  // two bytes, each with its sign eight times over
  return static_cast<unsigned>(j) * 0x11u + 0x40u;
}
template <WeightFormat Format>
__device__ inline void widen_row(const uint2& raw, unsigned pick, std::uint32_t& first, std::uint32_t& second) {
  if constexpr (step_bytes(Format) == 64) {
    first = (choose_bytes(raw.x, pick) << 4) & 0x87f087f0u;
    second = (choose_bytes(raw.y, pick) << 4) & 0x87f087f0u;
  } else {
    const std::uint32_t codes = __byte_perm(raw.x, raw.y, pick);
    // Four e2m1 codes choose from tables of the halves of bf16: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    const std::uint32_t places = codes & 0x7777u;
    const std::uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, places);
    std::uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, places);
    // A code with its sign bit chooses the sign of a byte, eight times over: 0xff, others the byte, 0x80.
    high |= (choose_bytes(0x80808080u, codes) << 1) & 0x80808080u;
    first = __byte_perm(low, high, 0x5140);
    second = __byte_perm(low, high, 0x7362);
  }
}

// Where a step's numbers of a thread's first row begin, with the lane's place in it, and the row's scales.
struct StepPlace {
  std::uint32_t weights, scales;
  int step;
};

// A thread's numbers of a step of two rows of W, widened a k16 at a time; the next step's are loaded meanwhile. Pieces of
// 16 bytes of a row lie at piece ^ (row % 8), and the second row is whole eights on.
template <WeightFormat Format, bool Arranged>
struct RowsOfStep;

// Columns in order: a k16's numbers lie apart.
template <WeightFormat Format>
struct RowsOfStep<Format, false> {
  uint2 raw[2][2];  // of two k16s, each in its turn
  RowScale<Format> scales[2], next_scales[2];

  // Of a lane in the rows of a stage.
  __device__ static std::uint32_t place(int row, int j) {
    return row * 128 + (row & 7) * 16 + (step_bytes(Format) == 64 ? 4 * (j >> 1) : 0);
  }
  template <int NextRow>
  __device__ void load_k16(const StepPlace& from, int s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) raw[s % 2][r] = load_row<Format>(from.weights, s, r * NextRow * 128);
  }
  template <int NextRow>
  __device__ void load_scales(RowScale<Format> (&to)[2], const StepPlace& from) {
    if constexpr (Codec<Format>::scaled) {
#pragma unroll
      for (int r = 0; r < 2; ++r) to[r].load(from.scales + r * NextRow * scale_row_bytes<Format>, from.step);
    }
  }
  template <int NextRow>
  __device__ void load(const StepPlace& from, int) {
    load_k16<NextRow>(from, 0);
    load_scales<NextRow>(scales, from);
    load_k16<NextRow>(from, 1);
  }
  template <int NextRow>
  __device__ void widen(int s, unsigned pick, std::uint32_t (&to)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      widen_row<Format>(raw[s % 2][r], pick, to[r], to[2 + r]);
      scales[r].apply(to[r], to[2 + r], s);
    }
  }
  // Behind the widening of `s`; `next` behind s = 0.
  template <int NextRow>
  __device__ void load_ahead(int s, const StepPlace& here, const StepPlace& next, bool more, int) {
    if (s < 2) {
      load_k16<NextRow>(here, s + 2);
    } else if (more) {
      load_k16<NextRow>(next, s - 2);
      if (s == 2) load_scales<NextRow>(next_scales, next);
    }
    if (s == 3 && more) {
#pragma unroll
      for (int r = 0; r < 2; ++r) scales[r] = next_scales[r];
    }
  }
};

// bf16 needs no widening, and its columns no arranging: a k16 of the warp's 16 rows is four matrices in shared memory, as
// the tensor cores want them. Lane 8 i + r fetches row r of matrix i: of the first or second rows, columns 0 or 8 on.
template <>
struct RowsOfStep<WeightFormat::bf16, false> {
  // `row`: the one that the lane fetches, `half`: of a k16's columns.
  __device__ static std::uint32_t place(int row, int half) { return row * 128 + ((row & 7) ^ half) * 16; }
  __device__ static void load_k16(const StepPlace& from, int s, std::uint32_t (&to)[4]) {
    load_matrices(from.weights ^ (32u * static_cast<unsigned>(s)), to);
  }
};

// Columns of x arranged for this (see takes_arranged): a lane's 16 numbers of a row lie together, under one scale.
template <WeightFormat Format>
struct RowsOfStep<Format, true> {
  static constexpr bool nibbles = step_bytes(Format) == 32;
  struct Numbers {
    std::uint32_t raw[2][nibbles ? 2 : 4];
    std::uint32_t code[2];
  };
  Numbers now, next;
  std::uint32_t factors[2];

  __device__ static std::uint32_t place(int row, int j) {
    return row * 128 + (nibbles ? (row & 7 ^ j >> 1) * 16 + (j & 1) * 8 : (row & 7 ^ j) * 16);
  }
  template <int NextRow>
  __device__ static void load_numbers(Numbers& to, const StepPlace& from, int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t row = from.weights + r * NextRow * 128;
      if constexpr (nibbles) {
        const uint2 words = load_words2(row);
        to.raw[r][0] = words.x, to.raw[r][1] = words.y;
      } else {
        const uint4 words = load_words4(row);
        to.raw[r][0] = words.x, to.raw[r][1] = words.y, to.raw[r][2] = words.z, to.raw[r][3] = words.w;
      }
      if constexpr (Codec<Format>::scaled) {
        constexpr bool sixteens = Format == WeightFormat::nvfp4;
        const int at = from.step % wide_octet * (sixteens ? 4 : 2) + (sixteens ? j : j >> 1);
        to.code[r] = load_byte(from.scales + r * NextRow * scale_row_bytes<Format> + at);
      }
    }
  }
  __device__ void work_out_factors() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (Format == WeightFormat::nvfp4) {
        factors[r] = multiply_bf16((choose_bytes(now.code[r], 0x8080) << 4) & 0x87f087f0u, 0x7b807b80u);  // 2^120
        factors[r] =
            multiply_bf16(factors[r], 0x7a807a80u);  // 2^118: of the codes' 2^126; the row's factor has the rest
        if ((now.code[r] & 0x7fu) == 0x7fu) factors[r] = 0x7fc07fc0u;  // not a number
      } else if constexpr (Codec<Format>::scaled) {
        factors[r] = factors_e8m0(now.code[r] * 0x00010001u);
      }
    }
  }
  template <int NextRow>
  __device__ void load(const StepPlace& from, int j) {
    load_numbers<NextRow>(now, from, j);
    work_out_factors();
  }
  template <int NextRow>
  __device__ void load_ahead(int s, const StepPlace&, const StepPlace& from, bool more, int j) {
    if (s == 0 && more) load_numbers<NextRow>(next, from, j);
    if (s == 3 && more) {
      now = next;
      work_out_factors();
    }
  }
  template <int NextRow>
  __device__ void widen(int s, unsigned, std::uint32_t (&to)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        std::uint32_t& number = to[2 * pair + r];
        if constexpr (nibbles) {
          const std::uint32_t codes = now.raw[r][s / 2] >> (s % 2 * 8);
          // A code is moved to a bf16's sign and to its exponent and mantissa by one product, in both halves.
          number = pair == 0 ? (codes & 0x000f000fu) * 0x1040u : (codes & 0x00f000f0u) * 0x0104u;
          number &= 0x81c081c0u;
          if constexpr (Format == WeightFormat::mxfp4) number = multiply_bf16(number, 0x7e807e80u);  // 2^126
        } else {
          constexpr unsigned picks[4] = {0xc480, 0xd591, 0xe6a2, 0xf7b3};
          number = (choose_bytes(now.raw[r][s / 2 * 2], now.raw[r][s / 2 * 2 + 1], picks[s % 2 * 2 + pair]) << 4) &
                   0x87f087f0u;
          number = multiply_bf16(number, 0x7b807b80u);  // 2^120
        }
        if constexpr (Codec<Format>::scaled) number = multiply_bf16(number, factors[r]);
      }
    }
  }
};

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
