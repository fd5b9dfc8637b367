#include "src/vision/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/error.h"
#include "src/vision/resize_kernels.h"

namespace m3::vision {

namespace {

using detail::column_rows;
using detail::FilterView;
using detail::Taps;

struct Filter {
  std::vector<Taps> taps;
  std::vector<std::int16_t> weights;
  int stride = 0;
  int precision = 0;

  FilterView view() const { return {taps.data(), weights.data(), stride, precision}; }
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
  filter.stride = (most + 3) / 4 * 4;
  std::vector<double> exact(static_cast<std::size_t>(out) * static_cast<std::size_t>(filter.stride));
  double largest = 0;
  for (int i = 0; i < out; ++i) {
    const double centre = scale * (i + 0.5);
    const int first = std::max(static_cast<int>(std::trunc(centre - support + 0.5)), 0);
    const int end = std::min(static_cast<int>(std::trunc(centre + support + 0.5)), in);
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
  while (filter.precision < 22 &&
         static_cast<int>(std::trunc(0.5 + largest * (1 << (filter.precision + 1)))) < (1 << 15)) {
    ++filter.precision;
  }
  filter.weights.resize(exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double scaled = exact[i] * (1 << filter.precision);
    filter.weights[i] = static_cast<std::int16_t>(std::round(scaled));
  }
  return filter;
}

std::uint8_t to_level(int sum, int precision) {
  return static_cast<std::uint8_t>(std::clamp(sum >> precision, 0, 255));
}

using Kernels = ResizeKernels;

bool use_avx2(Kernels kernels) { return kernels == Kernels::fastest && __builtin_cpu_supports("avx2") != 0; }

void filter_columns(const std::uint8_t* in, const Filter& filter, int out_width, std::uint8_t* out) {
  for (int x = 0; x < out_width; ++x, out += 3) {
    const Taps taps = filter.taps[static_cast<std::size_t>(x)];
    const std::int16_t* weights = filter.weights.data() + std::ptrdiff_t{x} * filter.stride;
    const std::uint8_t* pixel = in + std::ptrdiff_t{taps.first} * 3;
    int red = 1 << (filter.precision - 1), green = red, blue = red;
    for (int k = 0; k < taps.count; ++k, pixel += 3) {
      red += pixel[0] * weights[k];
      green += pixel[1] * weights[k];
      blue += pixel[2] * weights[k];
    }
    out[0] = to_level(red, filter.precision);
    out[1] = to_level(green, filter.precision);
    out[2] = to_level(blue, filter.precision);
  }
}

// Four rows from `y` on, or what there is of them. Near the end of the picture they are copied to `scratch`, since the
// kernel reads behind the end of rows.
void filter_four(const Picture& picture, int y, const Filter& filter, std::vector<std::uint8_t>& scratch,
                 Picture& result) {
  const auto bytes = std::size_t(picture.width) * 3;
  const auto out_bytes = std::size_t(result.width) * 3;
  const int rows = std::min(column_rows, picture.height - y);
  const std::size_t first = std::size_t(y) * bytes;
  const bool near_end = rows < column_rows || first + bytes * column_rows + detail::column_slack > picture.rgb.size();
  const std::uint8_t* in[column_rows];
  std::uint8_t* out[column_rows];
  if (near_end) scratch.resize((bytes + detail::column_slack) * column_rows);
  for (int row = 0; row < column_rows; ++row) {
    const int real = std::min(row, rows - 1);  // the last one again, to the same place
    in[row] = picture.rgb.data() + first + std::size_t(real) * bytes;
    out[row] = result.rgb.data() + std::size_t(y + real) * out_bytes;
    if (!near_end) continue;
    std::uint8_t* copy = scratch.data() + std::size_t(row) * (bytes + detail::column_slack);
    std::memcpy(copy, in[row], bytes);
    in[row] = copy;
  }
  detail::filter_columns_avx2(in, filter.view(), result.width, out);
}

Picture resize_width(const Picture& picture, int width, Kernels kernels) {
  const Filter filter = make_filter(picture.width, width);
  Picture result = {width, picture.height, {}};
  result.rgb.resize(std::size_t(width) * std::size_t(picture.height) * 3);
  if (use_avx2(kernels)) {
    std::vector<std::uint8_t> scratch;
    for (int y = 0; y < picture.height; y += column_rows) filter_four(picture, y, filter, scratch, result);
    return result;
  }
  for (int y = 0; y < picture.height; ++y) {
    filter_columns(picture.rgb.data() + std::size_t(y) * std::size_t(picture.width) * 3, filter, width,
                   result.rgb.data() + std::size_t(y) * std::size_t(width) * 3);
  }
  return result;
}

Picture resize_height(const Picture& picture, int height, Kernels kernels) {
  const Filter filter = make_filter(picture.height, height);
  const std::ptrdiff_t bytes = std::ptrdiff_t{picture.width} * 3;
  const bool avx2 = use_avx2(kernels);
  Picture result = {picture.width, height, {}};
  result.rgb.resize(std::size_t(bytes) * std::size_t(height));
  for (int y = 0; y < height; ++y) {
    const Taps taps = filter.taps[static_cast<std::size_t>(y)];
    const std::int16_t* weights = filter.weights.data() + std::ptrdiff_t{y} * filter.stride;
    const std::uint8_t* in = picture.rgb.data() + taps.first * bytes;
    std::uint8_t* out = result.rgb.data() + y * bytes;
    std::ptrdiff_t x = avx2 ? detail::filter_rows_avx2(in, bytes, taps.count, weights, filter.precision, out) : 0;
    for (; x < bytes; ++x) {
      int sum = 1 << (filter.precision - 1);
      for (int k = 0; k < taps.count; ++k) sum += in[k * bytes + x] * weights[k];
      out[x] = to_level(sum, filter.precision);
    }
  }
  return result;
}

}  // namespace

Picture resize(const Picture& picture, int width, int height, ResizeKernels kernels) {
  if (picture.width < 1 || picture.height < 1 || width < 1 || height < 1) {
    fail_internal("resize: {}x{} to {}x{}", picture.width, picture.height, width, height);
  }
  if (picture.width == width) return picture.height == height ? picture : resize_height(picture, height, kernels);
  Picture columns = resize_width(picture, width, kernels);
  return picture.height == height ? columns : resize_height(columns, height, kernels);
}

}  // namespace m3::vision
