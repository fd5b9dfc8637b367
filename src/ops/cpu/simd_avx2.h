// AVX2 registers of 8 floats. Only *_avx2.cpp may include this: everything has internal linkage, so that no code for
// this instruction set can stand in for another unit's.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "src/base/weight_matrix.h"
#include "src/ops/cpu/code_tables.h"

namespace m3::ops::cpu {
namespace {

// The 16 products of an e2m1 code and a scale, all exact in bf16, as two tables of bytes.
struct alignas(32) ScaledE2m1 {
  std::uint8_t lower[16] = {};
  std::uint8_t upper[16] = {};
};

template <typename Scales>
struct ScaledE2m1Tables {
  ScaledE2m1 table[256] = {};
  constexpr explicit ScaledE2m1Tables(const Scales& scales) {
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 16; ++code) {
        const auto bits =
            __builtin_bit_cast(std::uint32_t, exact_product(e2m1_values[code], scales[static_cast<std::byte>(scale)]));
        table[scale].lower[code] = static_cast<std::uint8_t>(bits >> 16);
        table[scale].upper[code] = static_cast<std::uint8_t>(bits >> 24);
      }
    }
  }
  constexpr const ScaledE2m1& operator[](std::byte scale) const { return table[static_cast<std::uint8_t>(scale)]; }
};
constexpr ScaledE2m1Tables<E8m0Values> e2m1_by_e8m0(e8m0_values);
constexpr ScaledE2m1Tables<E4m3Values> e2m1_by_e4m3(e4m3_values);

struct Simd {
  using V = __m256;
  static constexpr int lanes = 8;
  static constexpr int tile_tokens = 4;  // 4 x 3 accumulators, 3 weights and 1 x fill the 16 registers
  static constexpr int tile_rows = 3;
  static constexpr int panel_rows = 24;
  static constexpr const char* name = "AVX2";

  static V zero() { return _mm256_setzero_ps(); }
  static V all(float value) { return _mm256_set1_ps(value); }
  static V load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, V value) { _mm256_storeu_ps(to, value); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V div(V a, V b) { return _mm256_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
  // Both give b where either is NaN.
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static V min(V a, V b) { return _mm256_min_ps(a, b); }

  static V absolute(V v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
  // By x's sign bit.
  static V where_negative(V x, V a, V b) { return _mm256_blendv_ps(b, a, x); }

  // ((0+1)+(2+3)) + ((4+5)+(6+7)), the order of sum4 too.
  static float sum(V v) {
    const V pairs = _mm256_hadd_ps(v, v);
    const V quads = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }
  static __m128 sum4(V a, V b, V c, V d) {
    const V quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
  }

  static V load_bf16(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // Round to nearest even; NaN stays NaN, quiet.
  static __m256i round_bits(V value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  static V round_bf16(V value) { return _mm256_castsi256_ps(_mm256_slli_epi32(round_bits(value), 16)); }
  static void store_bf16(std::uint16_t* to, V value) {
    const __m256i bits = round_bits(value);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }

  // e^x to about 1e-7; 0 below -87.3, infinite above 88.7, NaN for NaN.
  static V exp(V x) {
    const V low = all(-87.33654f);
    const V high = all(88.72283f);
    const V clamped = max(low, min(high, x));
    const V n = _mm256_round_ps(mul(clamped, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    V r = fnma(n, all(0.693359375f), clamped);
    r = fnma(n, all(-2.12194440e-4f), r);
    V p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = add(fma(p, mul(r, r), r), all(1.0f));
    // 2^n in two factors: n may be 128, where one exponent would be infinite.
    const __m256i exponent = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(exponent, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const V first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const V second =
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23));
    V result = mul(mul(p, first), second);
    result = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), result);
    return _mm256_blendv_ps(result, all(__builtin_inff()), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
  }

  // 32 e4m3 codes in order as value · 2^-8: the codes' bits make a binary16 of that value, whose conversion handles
  // subnormals at full speed everywhere. The missing 2^8 is e4m3_factor.
  static void widen_e4m3(const std::byte* codes, V (&w)[4]) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i none = _mm256_setzero_si256();
    const __m256i low = half_bits(_mm256_unpacklo_epi8(none, bytes));   // codes 0-7 and 16-23
    const __m256i high = half_bits(_mm256_unpackhi_epi8(none, bytes));  // codes 8-15 and 24-31
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(low));
    w[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(high));
    w[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
    w[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
  }
  // A code in the upper byte of 16 bits -> sign, a zero exponent bit, the code's other bits; NaN for NaN.
  static __m256i half_bits(__m256i upper) {
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(upper, 1), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    return _mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)));
  }

  // Whether NaN codes were among groups of 32 e4m3 codes.
  struct NanScan {
    __m256i highest = _mm256_setzero_si256();
    void add(const std::byte* codes) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
      highest = _mm256_max_epu8(highest, _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)));
    }
    bool found() const { return _mm256_movemask_epi8(_mm256_cmpeq_epi8(highest, _mm256_set1_epi8(0x7f))) != 0; }
  };

  // Short codes are widened as bf16 pairs in 32-bit words, which come apart with a shift and a mask: register r then
  // holds the columns 4i + r of 32 (i = 0 ... 7). Putting them in order would cost as much as widening them, so x is
  // brought into that order instead (widen_interleaved).
  static constexpr bool interleaved(WeightFormat format) {
    return format == WeightFormat::fp8 || format == WeightFormat::mxfp8 || format == WeightFormat::mxfp4 ||
           format == WeightFormat::nvfp4;
  }
  static constexpr int group_columns = 32;
  static V lower_half(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static V upper_half(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
  static __m256i two_runs(const std::uint16_t* low, const std::uint16_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
                                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
  }
  // out <- 32 bf16 values as fp32 in that order.
  static void interleave(const std::uint16_t* from, float* out) {
    const __m256i a = two_runs(from, from + 16);
    const __m256i b = two_runs(from + 8, from + 24);
    store(out, _mm256_shuffle_ps(lower_half(a), lower_half(b), 0x88));
    store(out + 8, _mm256_shuffle_ps(upper_half(a), upper_half(b), 0x88));
    store(out + 16, _mm256_shuffle_ps(lower_half(a), lower_half(b), 0xdd));
    store(out + 24, _mm256_shuffle_ps(upper_half(a), upper_half(b), 0xdd));
  }

  // 32 e4m3 codes as value * 2^-120: moved into place, a code's bits are a bf16 of that value. Subnormal codes are
  // subnormal there too, which costs nothing on AMD; Intel's cores take about 150 cycles for one in a product, but
  // scaled weights hold one in 10,000. NaN codes come out as 480 * 2^-120 unless `checked`.
  template <bool checked>
  [[gnu::always_inline]] static inline void place_e4m3(const std::byte* codes, V (&w)[4]) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    __m256i odd = placed_bits(bytes);
    __m256i even = placed_bits(_mm256_slli_epi16(bytes, 8));
    if constexpr (checked) {
      odd = with_placed_nan(odd);
      even = with_placed_nan(even);
    }
    w[0] = lower_half(even);
    w[1] = lower_half(odd);
    w[2] = upper_half(even);
    w[3] = upper_half(odd);
  }
  static __m256i placed_bits(__m256i upper) {
    return _mm256_and_si256(_mm256_srai_epi16(upper, 4), _mm256_set1_epi16(static_cast<short>(0x87f0)));
  }
  static __m256i with_placed_nan(__m256i bits) {
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x07f0));
    return _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi16(0x7fc0)));
  }

  // 16 bytes of e2m1 codes times their block's scale: the table holds the products.
  [[gnu::always_inline]] static inline __m256i e2m1_indices(const std::byte* codes) {
    const __m256i low = _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m256i high = _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8)));
    const __m256i shifts = _mm256_setr_epi32(0, 0, 4, 4, 0, 0, 4, 4);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_blend_epi32(low, high, 0xf0), shifts), _mm256_set1_epi8(15));
  }
  [[gnu::always_inline]] static inline void look_up_e2m1(__m256i indices, __m256i lower_table, __m256i upper_table,
                                                         V (&w)[4]) {
    const __m256i lower = _mm256_shuffle_epi8(lower_table, indices);
    const __m256i upper = _mm256_shuffle_epi8(upper_table, indices);
    const __m256i even = _mm256_unpacklo_epi8(lower, upper);
    const __m256i odd = _mm256_unpackhi_epi8(lower, upper);
    w[0] = lower_half(even);
    w[1] = lower_half(odd);
    w[2] = upper_half(even);
    w[3] = upper_half(odd);
  }
  static __m256i table(const std::uint8_t (&bytes)[16]) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }

  // 32 columns from column k (a multiple of 32) of one row, block scales included, times 1 / code_factor(format).
  // `checked`: any codes and scales; otherwise the caller looks for NaN codes and for scales above plain_scale.
  template <WeightFormat format, bool checked>
  [[gnu::always_inline]] static inline void widen_group(const std::byte* values, const std::byte* scales,
                                                        std::int64_t k, V (&w)[4]) {
    if constexpr (format == WeightFormat::f32) {
      const auto* from = reinterpret_cast<const float*>(values) + k;
      for (int i = 0; i < 4; ++i) w[i] = load(from + 8 * i);
    } else if constexpr (format == WeightFormat::bf16) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(values) + k;
      for (int i = 0; i < 4; ++i) w[i] = load_bf16(from + 8 * i);
    } else if constexpr (format == WeightFormat::f16) {
      const auto* from = values + 2 * k;
      for (int i = 0; i < 4; ++i) {
        w[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i)));
      }
    } else if constexpr (format == WeightFormat::fp8) {
      place_e4m3<checked>(values + k, w);
      for (int i = 0; i < 4; ++i) w[i] = mul(w[i], all(placed_factor));
    } else if constexpr (format == WeightFormat::mxfp8) {
      place_e4m3<checked>(values + k, w);
      if constexpr (checked) {
        const V scale = all(e8m0_values[scales[k / 32]]);
        for (int i = 0; i < 4; ++i) w[i] = mul(mul(w[i], all(placed_factor)), scale);
      } else {
        const V factor = all(placed_scales[scales[k / 32]]);
        for (int i = 0; i < 4; ++i) w[i] = mul(w[i], factor);
      }
    } else if constexpr (format == WeightFormat::mxfp4) {
      const ScaledE2m1& products = e2m1_by_e8m0[scales[k / 32]];
      look_up_e2m1(e2m1_indices(values + k / 2), table(products.lower), table(products.upper), w);
    } else {
      const ScaledE2m1& first = e2m1_by_e4m3[scales[k / 16]];
      const ScaledE2m1& second = e2m1_by_e4m3[scales[k / 16 + 1]];
      look_up_e2m1(e2m1_indices(values + k / 2), _mm256_blend_epi32(table(first.lower), table(second.lower), 0xf0),
                   _mm256_blend_epi32(table(first.upper), table(second.upper), 0xf0), w);
    }
  }

  static void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
  static void prefetch_far(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1); }
};

using V = Simd::V;
constexpr int L = Simd::lanes;

}  // namespace
}  // namespace m3::ops::cpu
