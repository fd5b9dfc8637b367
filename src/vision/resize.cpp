#include "src/vision/resize.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/error.h"

namespace m3::vision {

namespace {

// One output position reads `count` inputs from `first` on; its weights start at weights[i * stride].
struct Taps {
  int first, count;
};

struct Filter {
  std::vector<Taps> taps;
  std::vector<std::int16_t> weights;
  int stride = 0;     // even, so that weights can be taken in pairs; the rest is zero
  int precision = 0;  // weights are multiples of 2^-precision
};

// The cubic kernel with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

Filter make_filter(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double stretch = std::max(scale, 1.0);
  const double support = 2 * stretch;

  Filter filter;
  filter.taps.resize(static_cast<std::size_t>(out));
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;
  filter.stride = (most + 1) / 2 * 2;
  std::vector<double> exact(static_cast<std::size_t>(out) * static_cast<std::size_t>(filter.stride));
  double largest = 0;
  for (int i = 0; i < out; ++i) {
    const double centre = scale * (i + 0.5);
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), in);
    filter.taps[static_cast<std::size_t>(i)] = {first, end - first};
    double* weights = exact.data() + std::size_t(i) * std::size_t(filter.stride);
    double sum = 0;
    for (int k = 0; k < end - first; ++k) {
      weights[k] = cubic((k + first - centre + 0.5) / stretch);
      sum += weights[k];
    }
    for (int k = 0; k < end - first; ++k) {
      if (sum != 0) weights[k] /= sum;
      largest = std::max(largest, weights[k]);
    }
  }

  // As many bits as let the largest weight fit 16.
  while (filter.precision < 22 && static_cast<int>(0.5 + largest * (1 << (filter.precision + 1))) < (1 << 15)) {
    ++filter.precision;
  }
  filter.weights.resize(exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double scaled = exact[i] * (1 << filter.precision);
    filter.weights[i] = static_cast<std::int16_t>(static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
  }
  return filter;
}

std::uint8_t to_level(int sum, int precision) {
  return static_cast<std::uint8_t>(std::clamp(sum >> precision, 0, 255));
}

#if defined(__SSE2__)

// A pair of weights for _mm_madd_epi16: four times (even, odd).
__m128i weight_pair(const std::int16_t* weights) {
  int pair;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm_set1_epi32(pair);
}

// Columns of one row. `wide`: the row as four 16-bit numbers a pixel, with a pixel to spare at the end.
void filter_row(const std::uint8_t* in, int width, const Filter& filter, std::int16_t* wide, std::uint8_t* out,
                int out_width) {
  for (int x = 0; x < width; ++x) {
    for (int c = 0; c < 3; ++c) wide[x * 4 + c] = in[x * 3 + c];
  }
  const __m128i half = _mm_set1_epi32(1 << (filter.precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(filter.precision);
  for (int x = 0; x < out_width; ++x) {
    const Taps taps = filter.taps[static_cast<std::size_t>(x)];
    const std::int16_t* weights = filter.weights.data() + std::ptrdiff_t{x} * filter.stride;
    const std::int16_t* pixel = wide + std::ptrdiff_t{taps.first} * 4;
    __m128i sum = half;
    for (int k = 0; k < taps.count; k += 2, pixel += 8) {
      const __m128i two = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel));
      const __m128i mixed = _mm_unpacklo_epi16(two, _mm_unpackhi_epi64(two, two));
      sum = _mm_add_epi32(sum, _mm_madd_epi16(mixed, weight_pair(weights + k)));
    }
    const __m128i words = _mm_packs_epi32(_mm_sra_epi32(sum, shift), _mm_setzero_si128());
    const int levels = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    out[0] = static_cast<std::uint8_t>(levels);
    out[1] = static_cast<std::uint8_t>(levels >> 8);
    out[2] = static_cast<std::uint8_t>(levels >> 16);
    out += 3;
  }
}

// One output row of `bytes` values from the rows at `in`, `bytes` apart; returns how many it wrote.
std::ptrdiff_t filter_rows(const std::uint8_t* in, std::ptrdiff_t bytes, int count, const std::int16_t* weights,
                           int precision, std::uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i half = _mm_set1_epi32(1 << (precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(precision);
  std::ptrdiff_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    __m128i sums[4] = {half, half, half, half};
    for (int k = 0; k < count; k += 2) {
      const std::uint8_t* row = in + k * bytes + at;
      const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
      const __m128i odd = k + 1 < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + bytes)) : zero;
      const __m128i pair = weight_pair(weights + k);
      const __m128i low = _mm_unpacklo_epi8(even, odd);
      const __m128i high = _mm_unpackhi_epi8(even, odd);
      sums[0] = _mm_add_epi32(sums[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
      sums[1] = _mm_add_epi32(sums[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
      sums[2] = _mm_add_epi32(sums[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
      sums[3] = _mm_add_epi32(sums[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
    }
    for (__m128i& sum : sums) sum = _mm_sra_epi32(sum, shift);
    const __m128i levels = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]), _mm_packs_epi32(sums[2], sums[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + at), levels);
  }
  return at;
}

#else

void filter_row(const std::uint8_t* in, int, const Filter& filter, std::int16_t*, std::uint8_t* out, int out_width) {
  for (int x = 0; x < out_width; ++x, out += 3) {
    const Taps taps = filter.taps[static_cast<std::size_t>(x)];
    const std::int16_t* weights = filter.weights.data() + std::ptrdiff_t{x} * filter.stride;
    for (int c = 0; c < 3; ++c) {
      int sum = 1 << (filter.precision - 1);
      for (int k = 0; k < taps.count; ++k) sum += in[(taps.first + k) * 3 + c] * weights[k];
      out[c] = to_level(sum, filter.precision);
    }
  }
}

std::ptrdiff_t filter_rows(const std::uint8_t*, std::ptrdiff_t, int, const std::int16_t*, int, std::uint8_t*) {
  return 0;
}

#endif

Picture resize_width(const Picture& picture, int width) {
  const Filter filter = make_filter(picture.width, width);
  Picture result = {width, picture.height, {}};
  result.rgb.resize(std::size_t(width) * std::size_t(picture.height) * 3);
  // Weights in pairs read one pixel past an odd count, at weight zero.
  std::vector<std::int16_t> wide((std::size_t(picture.width) + 2) * 4);
  for (int y = 0; y < picture.height; ++y) {
    filter_row(picture.rgb.data() + std::size_t(y) * std::size_t(picture.width) * 3, picture.width, filter, wide.data(),
               result.rgb.data() + std::size_t(y) * std::size_t(width) * 3, width);
  }
  return result;
}

Picture resize_height(const Picture& picture, int height) {
  const Filter filter = make_filter(picture.height, height);
  const std::ptrdiff_t bytes = std::ptrdiff_t{picture.width} * 3;
  Picture result = {picture.width, height, {}};
  result.rgb.resize(std::size_t(bytes) * std::size_t(height));
  for (int y = 0; y < height; ++y) {
    const Taps taps = filter.taps[static_cast<std::size_t>(y)];
    const std::int16_t* weights = filter.weights.data() + std::ptrdiff_t{y} * filter.stride;
    const std::uint8_t* in = picture.rgb.data() + taps.first * bytes;
    std::uint8_t* out = result.rgb.data() + y * bytes;
    for (std::ptrdiff_t x = filter_rows(in, bytes, taps.count, weights, filter.precision, out); x < bytes; ++x) {
      int sum = 1 << (filter.precision - 1);
      for (int k = 0; k < taps.count; ++k) sum += in[k * bytes + x] * weights[k];
      out[x] = to_level(sum, filter.precision);
    }
  }
  return result;
}

}  // namespace

Picture resize(const Picture& picture, int width, int height) {
  if (picture.width < 1 || picture.height < 1 || width < 1 || height < 1) {
    fail_internal("resize: {}x{} to {}x{}", picture.width, picture.height, width, height);
  }
  if (picture.width == width) return picture.height == height ? picture : resize_height(picture, height);
  Picture columns = resize_width(picture, width);
  return picture.height == height ? columns : resize_height(columns, height);
}

}  // namespace m3::vision
