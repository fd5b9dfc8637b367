#include "src/vision/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/error.h"

namespace m3::vision {

namespace {

using detail::column_rows;
using detail::Filter;
using detail::Taps;

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

void filter_rows(const std::uint8_t* const in[], std::ptrdiff_t bytes, const Taps& taps, const std::int16_t* weights,
                 int precision, std::uint8_t* out) {
  for (std::ptrdiff_t x = 0; x < bytes; ++x) {
    int sum = 1 << (precision - 1);
    for (int k = 0; k < taps.count; ++k) sum += in[k][x] * weights[k];
    out[x] = to_level(sum, precision);
  }
}

}  // namespace

Resizer::Resizer(const Picture& picture, int width, int height, Kernels kernels)
    : picture_(picture), width_(width), avx2_(kernels == Kernels::fastest && __builtin_cpu_supports("avx2") != 0) {
  if (picture.width < 1 || picture.height < 1 || width < 1 || height < 1) {
    fail_internal("resize: {}x{} to {}x{}", picture.width, picture.height, width, height);
  }
  if (picture.width != width) columns_ = make_filter(picture.width, width);
  if (picture.height != height) rows_ = make_filter(picture.height, height);
  int most = 1;
  if (rows_) {
    for (const Taps& taps : rows_->taps) most = std::max(most, taps.count);
  }
  in_.resize(static_cast<std::size_t>(most));
  if (columns_) {
    held_ = std::min(most + column_rows - 1, picture.height);
    narrowed_.resize(std::size_t(held_) * std::size_t(width) * 3);
  }
}

const std::uint8_t* Resizer::row(int y) const {
  if (columns_) return narrowed_.data() + place(y);
  return picture_.rgb.data() + std::size_t(y) * std::size_t(width_) * 3;
}

// The next four rows get the new width, or what there is of them. Near the end of the picture they are copied first,
// since the kernel reads behind the end of rows.
void Resizer::narrow_four() {
  const auto bytes = std::size_t(picture_.width) * 3;
  const int rows = std::min(column_rows, picture_.height - from_);
  const std::uint8_t* first = picture_.rgb.data() + std::size_t(from_) * bytes;
  const std::uint8_t* in[column_rows];
  std::uint8_t* out[column_rows];
  for (int i = 0; i < column_rows; ++i) {
    const int real = std::min(i, rows - 1);  // the last one again, to the same place
    in[i] = first + std::size_t(real) * bytes;
    out[i] = narrowed_.data() + place(from_ + real);
  }
  if (!avx2_) {
    for (int i = 0; i < rows; ++i) filter_columns(in[i], *columns_, width_, out[i]);
  } else {
    const std::size_t left = std::size_t(picture_.height - from_) * bytes;
    if (left < bytes * column_rows + detail::column_slack) {
      scratch_.resize((bytes + detail::column_slack) * column_rows);
      for (int i = 0; i < column_rows; ++i) {
        std::uint8_t* copy = scratch_.data() + std::size_t(i) * (bytes + detail::column_slack);
        std::memcpy(copy, in[i], bytes);
        in[i] = copy;
      }
    }
    detail::filter_columns_avx2(in, columns_->view(), width_, out);
  }
  from_ += rows;
}

void Resizer::next(int rows, std::uint8_t* out) {
  const std::ptrdiff_t bytes = std::ptrdiff_t{width_} * 3;
  for (const int end = next_ + rows; next_ < end; ++next_, out += bytes) {
    const Taps taps = rows_ ? rows_->taps[static_cast<std::size_t>(next_)] : Taps{next_, 1};
    while (columns_ && from_ < taps.first + taps.count) narrow_four();
    if (!rows_) {
      std::memcpy(out, row(next_), static_cast<std::size_t>(bytes));
      continue;
    }
    for (int k = 0; k < taps.count; ++k) in_[static_cast<std::size_t>(k)] = row(taps.first + k);
    const std::int16_t* weights = rows_->weights.data() + std::ptrdiff_t{next_} * rows_->stride;
    if (avx2_ && bytes >= detail::row_step) {
      detail::filter_rows_avx2(in_.data(), bytes, taps.count, weights, rows_->precision, out);
    } else {
      filter_rows(in_.data(), bytes, taps, weights, rows_->precision, out);
    }
  }
}

Picture resize(const Picture& picture, int width, int height, Kernels kernels) {
  Resizer resizer(picture, width, height, kernels);
  Picture result = {width, height, {}};
  result.rgb.resize(std::size_t(width) * std::size_t(height) * 3);
  resizer.next(height, result.rgb.data());
  return result;
}

}  // namespace m3::vision
