// AVX-512 (F, BW, VL, DQ) registers of 16 floats. Only *_avx512.cpp may include this: see simd_avx2.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "src/base/weight_matrix.h"
#include "src/ops/cpu/code_tables.h"

namespace m3::ops::cpu {
namespace {

// The products of an e2m1 code and a scale.
struct alignas(64) E2m1Products {
  float value[16] = {};
};
template <typename Scales>
struct E2m1ProductTables {
  E2m1Products table[256] = {};
  constexpr explicit E2m1ProductTables(const Scales& scales) {
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 16; ++code) {
        table[scale].value[code] = exact_product(e2m1_values[code], scales[static_cast<std::byte>(scale)]);
      }
    }
  }
  constexpr const E2m1Products& operator[](std::byte scale) const { return table[static_cast<std::uint8_t>(scale)]; }
};
constexpr E2m1ProductTables<E8m0Values> e2m1_by_e8m0(e8m0_values);
constexpr E2m1ProductTables<E4m3Values> e2m1_by_e4m3(e4m3_values);

// The two bytes of value / e4m3_factor as bf16 of the e4m3 codes without a sign.
struct alignas(64) E4m3Bytes {
  std::uint8_t lower[128] = {};
  std::uint8_t upper[128] = {};
  constexpr E4m3Bytes() {
    for (int code = 0; code < 128; ++code) {
      const float value = e4m3_values.value[code];  // clang takes no arithmetic that gives a NaN for a constant
      const auto bits = __builtin_bit_cast(std::uint32_t, value != value ? value : value * (1 / e4m3_factor));
      lower[code] = static_cast<std::uint8_t>(bits >> 16);
      upper[code] = static_cast<std::uint8_t>(bits >> 24);
    }
  }
};
constexpr E4m3Bytes e4m3_bytes;

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

  static V absolute(V v) { return _mm512_abs_ps(v); }
  // By x's sign bit.
  static V where_negative(V x, V a, V b) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), b, a);
  }

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

  // 32 e4m3 codes in order as value · 2^-8 (see simd_avx2.h).
  static void widen_e4m3(const std::byte* codes, V (&w)[2]) {
    for (int i = 0; i < 2; ++i) {
      const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i)));
      const __m256i sign_twice = _mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1);
      const __m256i half = _mm256_and_si256(sign_twice, _mm256_set1_epi16(static_cast<short>(0xbfff)));
      const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
      w[i] = _mm512_cvtph_ps(_mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80))));
    }
  }

  // The table below knows NaN codes.
  struct NanScan {
    void add(const std::byte*) {}
    static constexpr bool found() { return false; }
  };

  // 8-bit codes are widened as bf16 pairs in 32-bit words: of 64 columns, registers 0 and 1 hold the even and odd
  // ones of the first 8 of each 16, registers 2 and 3 those of the second 8. x is brought into that order.
  static constexpr bool interleaved(WeightFormat format) {
    return format == WeightFormat::fp8 || format == WeightFormat::mxfp8;
  }
  static constexpr int group_columns = 64;
  static V lower_half(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static V upper_half(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  [[gnu::always_inline]] static inline void split(__m512i first, __m512i second, V (&w)[4]) {
    w[0] = lower_half(first);
    w[1] = upper_half(first);
    w[2] = lower_half(second);
    w[3] = upper_half(second);
  }
  // out <- 64 bf16 values as fp32 in that order.
  static void interleave(const std::uint16_t* from, float* out) {
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + 32);
    const __m512i firsts = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
    const __m512i seconds = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
    V w[4];
    split(_mm512_permutex2var_epi64(a, firsts, b), _mm512_permutex2var_epi64(a, seconds, b), w);
    for (int i = 0; i < 4; ++i) store(out + 16 * i, w[i]);
  }

  // 64 e4m3 codes as value / e4m3_factor, NaN for NaN: a table of 128 for each byte of the bf16, then the sign.
  [[gnu::always_inline]] static inline void look_up_e4m3(const std::byte* codes, V (&w)[4]) {
    const __m512i bytes = _mm512_loadu_si512(codes);
    const __m512i lower =
        _mm512_permutex2var_epi8(_mm512_load_si512(e4m3_bytes.lower), bytes, _mm512_load_si512(e4m3_bytes.lower + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(e4m3_bytes.upper), bytes, _mm512_load_si512(e4m3_bytes.upper + 64));
    // magnitude | (bytes & 0x80)
    const __m512i upper = _mm512_ternarylogic_epi32(magnitude, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
    split(_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper), w);
  }

  // 16 e2m1 codes of 8 bytes times their scale: 32-bit word i takes the byte at bit 4i, of which the table of products
  // reads the low 4 bits.
  [[gnu::always_inline]] static inline V look_up_e2m1(const std::byte* codes, const E2m1Products& products) {
    const __m512i offsets =
        _mm512_setr_epi64(0x0000000400000000, 0x0000000c00000008, 0x0000001400000010, 0x0000001c00000018,
                          0x0000002400000020, 0x0000002c00000028, 0x0000003400000030, 0x0000003c00000038);
    long long word;
    __builtin_memcpy(&word, codes, 8);
    const __m512i indices = _mm512_multishift_epi64_epi8(offsets, _mm512_set1_epi64(word));
    return _mm512_permutexvar_ps(indices, _mm512_load_ps(products.value));
  }

  // 64 columns from column k (a multiple of 64) of one row, block scales included, times 1 / code_factor(format).
  // `checked` makes no difference here.
  template <WeightFormat format, bool checked>
  [[gnu::always_inline]] static inline void widen_group(const std::byte* values, const std::byte* scales,
                                                        std::int64_t k, V (&w)[4]) {
    if constexpr (format == WeightFormat::fp8) {
      look_up_e4m3(values + k, w);
    } else if constexpr (format == WeightFormat::mxfp8) {
      look_up_e4m3(values + k, w);
      const V scale =
          _mm512_mask_blend_ps(0xff00, all(e8m0_values[scales[k / 32]]), all(e8m0_values[scales[k / 32 + 1]]));
      for (int i = 0; i < 4; ++i) w[i] = mul(w[i], scale);
    } else {
      for (int i = 0; i < 4; ++i) {
        const std::int64_t column = k + 16 * i;
        if constexpr (format == WeightFormat::f32) {
          w[i] = load(reinterpret_cast<const float*>(values) + column);
        } else if constexpr (format == WeightFormat::bf16) {
          w[i] = load_bf16(reinterpret_cast<const std::uint16_t*>(values) + column);
        } else if constexpr (format == WeightFormat::f16) {
          w[i] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + 2 * column)));
        } else if constexpr (format == WeightFormat::mxfp4) {
          w[i] = look_up_e2m1(values + column / 2, e2m1_by_e8m0[scales[column / 32]]);
        } else {
          w[i] = look_up_e2m1(values + column / 2, e2m1_by_e4m3[scales[column / 16]]);
        }
      }
    }
  }

  static void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
  static void prefetch_far(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1); }
};

using V = Simd::V;
constexpr int L = Simd::lanes;

}  // namespace
}  // namespace m3::ops::cpu
