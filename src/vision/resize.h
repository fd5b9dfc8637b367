// Resizing: bicubic with antialiasing on 8 bits, equal bit for bit to torchvision's for uint8 tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/vision/patches.h"
#include "src/vision/resize_kernels.h"

namespace m3::vision {

namespace detail {

struct Filter {
  std::vector<Taps> taps;
  std::vector<std::int16_t> weights;
  int stride = 0;
  int precision = 0;

  FilterView view() const { return {taps.data(), weights.data(), stride, precision}; }
};

}  // namespace detail

// Columns first, then rows, rounded to 8 bits in between; an axis that keeps its size is left alone. Pillow's filter
// differs by up to 2 levels on under 1 % of values: its weights have 22 bits. Errors (internal): a side below 1.
Picture resize(const Picture& picture, int width, int height, Kernels kernels = Kernels::fastest);

// The same from the top, some rows at a time. Beside the picture, which must outlive it, this holds what a row is made
// of: as many rows of the new width as the filter is high.
class Resizer {
 public:
  Resizer(const Picture& picture, int width, int height, Kernels kernels = Kernels::fastest);
  // The next `rows` rows: [rows, width, 3]. No more than the height in all.
  void next(int rows, std::uint8_t* out);

 private:
  void narrow_four();
  const std::uint8_t* row(int y) const;  // of the new width
  std::size_t place(int y) const { return std::size_t(y % held_) * std::size_t(width_) * 3; }

  const Picture& picture_;
  int width_;
  bool avx2_;
  std::optional<detail::Filter> columns_, rows_;  // none: that side keeps its size
  LargeVector<std::uint8_t> narrowed_;            // held_ rows of the new width, each at place()
  int held_ = 0;
  std::vector<std::uint8_t> scratch_;
  std::vector<const std::uint8_t*> in_;  // of one output row
  int from_ = 0;                         // the first row that was not narrowed yet
  int next_ = 0;
};

}  // namespace m3::vision
