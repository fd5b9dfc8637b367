// Sums of 8-bit levels times 16-bit weights, two products a lane at once (pmaddwd). Integers: no order of summation.
#include <immintrin.h>

#include "src/vision/resize_kernels.h"

namespace m3::vision::detail {

namespace {

// Four bytes; memcpy would be a call in unoptimised builds.
inline void store_int(std::uint8_t* out, int value) { _mm_storeu_si32(out, _mm_cvtsi32_si128(value)); }

// The sums of the two lanes of `a`, and of those of `b`.
inline __m256i add_lanes(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

}  // namespace

void filter_columns_avx2(const std::uint8_t* const in[column_rows], const FilterView& filter, int out_width,
                         std::uint8_t* const out[column_rows]) {
  // Of four RGB pixels the lower lane takes the first two and the upper one the others, as 16-bit pairs of a channel.
  const __m256i spread = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                          6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i halves = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  // The lanes are added in the end: one of them begins with it.
  const __m256i half = _mm256_zextsi128_si256(_mm_set1_epi32(1 << (filter.precision - 1)));
  const __m128i shift = _mm_cvtsi32_si128(filter.precision);
  for (int x = 0; x < out_width; ++x) {
    const Taps taps = filter.taps[x];
    const std::int16_t* weights = filter.weights + std::ptrdiff_t{x} * filter.stride;
    const std::ptrdiff_t first = std::ptrdiff_t{taps.first} * 3;
    __m256i sums[column_rows];
    for (__m256i& sum : sums) sum = half;
    for (int k = 0; k < taps.count; k += 4) {
      const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights + k));
      const __m256i pairs = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(four), halves);
      for (int row = 0; row < column_rows; ++row) {
        const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in[row] + first + k * 3));
        const __m256i levels = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(pixels), spread);
        sums[row] = _mm256_add_epi32(sums[row], _mm256_madd_epi16(levels, pairs));
      }
    }
    const __m256i words = _mm256_packs_epi32(_mm256_sra_epi32(add_lanes(sums[0], sums[1]), shift),
                                             _mm256_sra_epi32(add_lanes(sums[2], sums[3]), shift));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i even = _mm256_castsi256_si128(bytes);
    const __m128i odd = _mm256_extracti128_si256(bytes, 1);
    const int levels[column_rows] = {_mm_cvtsi128_si32(even), _mm_cvtsi128_si32(odd), _mm_extract_epi32(even, 1),
                                     _mm_extract_epi32(odd, 1)};
    for (int row = 0; row < column_rows; ++row) {
      std::uint8_t* to = out[row] + std::ptrdiff_t{x} * 3;
      if (x + 1 < out_width) {
        store_int(to, levels[row]);  // the fourth byte is the next pixel's, which comes later
      } else {
        to[0] = static_cast<std::uint8_t>(levels[row]);
        to[1] = static_cast<std::uint8_t>(levels[row] >> 8);
        to[2] = static_cast<std::uint8_t>(levels[row] >> 16);
      }
    }
  }
}

void filter_rows_avx2(const std::uint8_t* const in[], std::ptrdiff_t bytes, int count, const std::int16_t* weights,
                      int precision, std::uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(precision);
  for (std::ptrdiff_t next = 0; next < bytes; next += row_step) {
    const std::ptrdiff_t at = next + row_step <= bytes ? next : bytes - row_step;  // the last ones: some once more
    __m256i sums[4] = {half, half, half, half};
    for (int k = 0; k < count; k += 2) {
      const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[k] + at));
      const __m256i odd = k + 1 < count ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[k + 1] + at)) : zero;
      const __m256i pair = _mm256_broadcastd_epi32(_mm_loadu_si32(weights + k));
      const __m256i low = _mm256_unpacklo_epi8(even, odd);
      const __m256i high = _mm256_unpackhi_epi8(even, odd);
      sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
      sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
      sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
      sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
    }
    for (__m256i& sum : sums) sum = _mm256_sra_epi32(sum, shift);
    const __m256i levels =
        _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), levels);
  }
}

}  // namespace m3::vision::detail
