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

  // 16 e4m3 codes as two registers of value · 2^-8: the codes' bits are a binary16 of that value, whose conversion
  // handles subnormals at full speed. The missing 2^8 is e4m3_factor.
  static void widen_e4m3(const std::byte* codes, V& first, V& second) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i sign_twice = _mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1);
    __m256i half = _mm256_and_si256(sign_twice, _mm256_set1_epi16(static_cast<short>(0xbfff)));
    const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    half = _mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)));  // NaN
    first = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    second = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
  }

  // 32 e2m1 codes; every value fits the upper byte of a binary16.
  static void widen_e2m1(const std::byte* codes, V (&w)[4]) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(bytes, nibble);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(e2m1_upper_bytes));
    const __m128i low = _mm_shuffle_epi8(table, _mm_unpacklo_epi8(even, odd));
    const __m128i high = _mm_shuffle_epi8(table, _mm_unpackhi_epi8(even, odd));
    const __m128i none = _mm_setzero_si128();
    w[0] = _mm256_cvtph_ps(_mm_unpacklo_epi8(none, low));
    w[1] = _mm256_cvtph_ps(_mm_unpackhi_epi8(none, low));
    w[2] = _mm256_cvtph_ps(_mm_unpacklo_epi8(none, high));
    w[3] = _mm256_cvtph_ps(_mm_unpackhi_epi8(none, high));
  }

  // 32 columns from column k (a multiple of 32) of one row, block scales included, times 1 / code_factor(format).
  template <WeightFormat format>
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
    } else if constexpr (format == WeightFormat::fp8 || format == WeightFormat::mxfp8) {
      widen_e4m3(values + k, w[0], w[1]);
      widen_e4m3(values + k + 16, w[2], w[3]);
      if constexpr (format == WeightFormat::mxfp8) {
        const V scale = all(e8m0_value(scales[k / 32]));
        for (int i = 0; i < 4; ++i) w[i] = mul(w[i], scale);
      }
    } else {
      widen_e2m1(values + k / 2, w);
      if constexpr (format == WeightFormat::mxfp4) {
        const V scale = all(e8m0_value(scales[k / 32]));
        for (int i = 0; i < 4; ++i) w[i] = mul(w[i], scale);
      } else {
        const V first = all(e4m3_values[static_cast<std::uint8_t>(scales[k / 16])]);
        const V second = all(e4m3_values[static_cast<std::uint8_t>(scales[k / 16 + 1])]);
        w[0] = mul(w[0], first);
        w[1] = mul(w[1], first);
        w[2] = mul(w[2], second);
        w[3] = mul(w[3], second);
      }
    }
  }

  static void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
};

using V = Simd::V;
constexpr int L = Simd::lanes;

}  // namespace
}  // namespace m3::ops::cpu
