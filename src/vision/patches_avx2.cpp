// A division for each value: exact, as the reference does it. Looking them up in a table takes longer.
#include <immintrin.h>

#include "src/vision/patch_kernels.h"

namespace m3::vision::detail {

namespace {

// Where the levels of a channel lie in 16 RGB pixels: [channel][third of the 48 bytes], -1 where another third has it.
alignas(16) constexpr std::int8_t places[3][3][16] = {{{0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
                                                       {-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1},
                                                       {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13}},
                                                      {{1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
                                                       {-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1},
                                                       {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14}},
                                                      {{2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
                                                       {-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1},
                                                       {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15}}};

inline __m128i load(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

inline void store_eight(__m128i levels, __m256 shift, __m256 scale, float* out) {
  const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(levels));
  _mm256_storeu_ps(out, _mm256_div_ps(_mm256_sub_ps(values, shift), scale));
}

}  // namespace

void normalise_channel_avx2(const std::uint8_t* rgb, std::ptrdiff_t row_bytes, int side, int channel, float shift,
                            float scale, float* out) {
  const __m128i first = load(places[channel][0]);
  const __m128i second = load(places[channel][1]);
  const __m128i third = load(places[channel][2]);
  const __m256 shifts = _mm256_set1_ps(shift);
  const __m256 scales = _mm256_set1_ps(scale);
  for (int row = 0; row < side; ++row, rgb += row_bytes, out += side) {
    for (int x = 0; x < side; x += patch_step) {
      const std::uint8_t* in = rgb + std::ptrdiff_t{x} * 3;
      const __m128i levels =
          _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(load(in), first), _mm_shuffle_epi8(load(in + 16), second)),
                       _mm_shuffle_epi8(load(in + 32), third));
      store_eight(levels, shifts, scales, out + x);
      store_eight(_mm_srli_si128(levels, 8), shifts, scales, out + x + 8);
    }
  }
}

}  // namespace m3::vision::detail
