// AVX-512 (F, BW, VL, DQ) registers of 16 floats. Only *_avx512.cpp may include this: see simd_avx2.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "src/base/weight_matrix.h"
#include "src/ops/cpu/code_tables.h"

namespace m3::ops::cpu {
namespace {

alignas(64) constexpr float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

struct Simd {
  using V = __m512;
  static constexpr int lanes = 16;
  static constexpr int tile_tokens = 6;  // 24 accumulators, 4 weights and 1 x of 32 registers
  static constexpr int tile_rows = 4;
  static constexpr int panel_rows = 32;
  static constexpr const char* name = "AVX-512";

  static V zero() { return _mm512_setzero_ps(); }
  static V all(float value) { return _mm512_set1_ps(value); }
  static V load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, V value) { _mm512_storeu_ps(to, value); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
  // Both give b where either is NaN.
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static V min(V a, V b) { return _mm512_min_ps(a, b); }

  // Lane j and j + 8 first, then as AVX2 does.
  static __m256 fold(V v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
  static float sum(V v) {
    const __m256 folded = fold(v);
    const __m256 pairs = _mm256_hadd_ps(folded, folded);
    const __m256 quads = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }
  static __m128 sum4(V a, V b, V c, V d) {
    const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(fold(a), fold(b)), _mm256_hadd_ps(fold(c), fold(d)));
    return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
  }

  static V load_bf16(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  // Round to nearest even; NaN stays NaN, quiet.
  static __m512i round_bits(V value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
  }
  static V round_bf16(V value) { return _mm512_castsi512_ps(_mm512_slli_epi32(round_bits(value), 16)); }
  static void store_bf16(std::uint16_t* to, V value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(round_bits(value)));
  }

  // e^x to about 1e-7; 0 below -104, infinite above 88.7, NaN for NaN.
  static V exp(V x) {
    const V clamped = max(all(-104.0f), min(all(89.0f), x));
    const V n = _mm512_roundscale_ps(mul(clamped, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    V r = fnma(n, all(0.693359375f), clamped);
    r = fnma(n, all(-2.12194440e-4f), r);
    V p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = add(fma(p, mul(r, r), r), all(1.0f));
    return _mm512_scalef_ps(p, n);
  }

  // 16 e4m3 codes as value · 2^-8 (see simd_avx2.h).
  template <bool checked>
  static V widen_e4m3(const std::byte* codes) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i sign_twice = _mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1);
    __m256i half = _mm256_and_si256(sign_twice, _mm256_set1_epi16(static_cast<short>(0xbfff)));
    if constexpr (checked) {
      const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
      half = _mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)));
    }
    return _mm512_cvtph_ps(half);
  }

  struct NanScan {
    __m256i highest = _mm256_setzero_si256();
    void add(const std::byte* codes) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
      highest = _mm256_max_epu8(highest, _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)));
    }
    bool found() const { return _mm256_movemask_epi8(_mm256_cmpeq_epi8(highest, _mm256_set1_epi8(0x7f))) != 0; }
  };

  // 16 e2m1 codes of 8 bytes: each byte becomes two indices, of which the table reads the low 4 bits.
  static constexpr bool paired_columns = false;
  static V widen_e2m1(const std::byte* codes) {
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m512i indices = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    return _mm512_permutexvar_ps(indices, _mm512_load_ps(e2m1_values));
  }

  // 32 columns from column k (a multiple of 32) of one row, block scales included, times 1 / code_factor(format).
  // `checked`: NaN codes give NaN; otherwise the caller looks for them.
  template <WeightFormat format, bool checked>
  static void widen_group(const std::byte* values, const std::byte* scales, std::int64_t k, V (&w)[2]) {
    for (int i = 0; i < 2; ++i) {
      const std::int64_t column = k + 16 * i;
      if constexpr (format == WeightFormat::f32) {
        w[i] = load(reinterpret_cast<const float*>(values) + column);
      } else if constexpr (format == WeightFormat::bf16) {
        w[i] = load_bf16(reinterpret_cast<const std::uint16_t*>(values) + column);
      } else if constexpr (format == WeightFormat::f16) {
        w[i] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + 2 * column)));
      } else if constexpr (format == WeightFormat::fp8) {
        w[i] = widen_e4m3<checked>(values + column);
      } else if constexpr (format == WeightFormat::mxfp8) {
        w[i] = mul(widen_e4m3<checked>(values + column), all(e8m0_values[scales[k / 32]]));
      } else if constexpr (format == WeightFormat::mxfp4) {
        w[i] = mul(widen_e2m1(values + column / 2), all(e8m0_values[scales[k / 32]]));
      } else {
        w[i] = mul(widen_e2m1(values + column / 2), all(e4m3_values[static_cast<std::uint8_t>(scales[column / 16])]));
      }
    }
  }

  static void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
};

using V = Simd::V;
constexpr int L = Simd::lanes;

}  // namespace
}  // namespace m3::ops::cpu
