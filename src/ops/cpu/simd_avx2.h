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

  // 32 e4m3 codes as value · 2^-8: the codes' bits make a binary16 of that value, whose conversion handles subnormals
  // at full speed. The missing 2^8 is e4m3_factor. NaN codes come out as 480 · 2^-8 unless `checked`.
  template <bool checked>
  static void widen_e4m3(const std::byte* codes, V (&w)[4]) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i none = _mm256_setzero_si256();
    __m256i low = half_bits(_mm256_unpacklo_epi8(none, bytes));   // codes 0-7 and 16-23
    __m256i high = half_bits(_mm256_unpackhi_epi8(none, bytes));  // codes 8-15 and 24-31
    if constexpr (checked) {
      low = with_nan(low);
      high = with_nan(high);
    }
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(low));
    w[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(high));
    w[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
    w[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
  }
  // A code in the upper byte of 16 bits -> sign, a zero exponent bit, the code's other bits.
  static __m256i half_bits(__m256i upper) {
    return _mm256_and_si256(_mm256_srai_epi16(upper, 1), _mm256_set1_epi16(static_cast<short>(0xbfff)));
  }
  static __m256i with_nan(__m256i half) {
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

  // 32 e2m1 codes. The even columns of each 8 come out in lanes 0-3, the odd ones in lanes 4-7 (paired_columns):
  // putting them in order would cost as much as widening them.
  static constexpr bool paired_columns = true;
  static void widen_e2m1(const std::byte* codes, V (&w)[4]) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    const __m256i indices = _mm256_and_si256(_mm256_srlv_epi32(twice, shifts), _mm256_set1_epi8(15));
    const __m256i upper = _mm256_shuffle_epi8(table(e2m1_upper_bytes), indices);
    const __m256i lower = _mm256_shuffle_epi8(table(e2m1_lower_bytes), indices);
    const __m256i first = _mm256_unpacklo_epi8(lower, upper);
    const __m256i second = _mm256_unpackhi_epi8(lower, upper);
    const __m256i none = _mm256_setzero_si256();
    w[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, first));
    w[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, first));
    w[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, second));
    w[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, second));
  }
  static __m256i table(const std::uint8_t (&bytes)[16]) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }

  // 32 columns from column k (a multiple of 32) of one row, block scales included, times 1 / code_factor(format).
  // `checked`: NaN codes give NaN; otherwise the caller looks for them.
  template <WeightFormat format, bool checked>
  static void widen_group(const std::byte* values, const std::byte* scales, std::int64_t k, V (&w)[4]) {
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
      widen_e4m3<checked>(values + k, w);
    } else if constexpr (format == WeightFormat::mxfp8) {
      widen_e4m3<checked>(values + k, w);
      const V scale = all(e8m0_values[scales[k / 32]]);
      for (int i = 0; i < 4; ++i) w[i] = mul(w[i], scale);
    } else if constexpr (format == WeightFormat::mxfp4) {
      widen_e2m1(values + k / 2, w);
      const V scale = all(e8m0_values[scales[k / 32]]);
      for (int i = 0; i < 4; ++i) w[i] = mul(w[i], scale);
    } else {
      widen_e2m1(values + k / 2, w);
      const V first = all(e4m3_values[static_cast<std::uint8_t>(scales[k / 16])]);
      const V second = all(e4m3_values[static_cast<std::uint8_t>(scales[k / 16 + 1])]);
      w[0] = mul(w[0], first);
      w[1] = mul(w[1], first);
      w[2] = mul(w[2], second);
      w[3] = mul(w[3], second);
    }
  }

  static void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
};

using V = Simd::V;
constexpr int L = Simd::lanes;

}  // namespace
}  // namespace m3::ops::cpu
