// The two passes of resize(), for one group of rows at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::vision::detail {

// One output position reads `count` inputs from `first` on; its weights start at weights[position * stride].
struct Taps {
  int first, count;
};

struct FilterView {
  const Taps* taps;
  const std::int16_t* weights;  // zero from `count` to `stride`
  int stride;                   // a multiple of 4
  int precision;                // weights are multiples of 2^-precision
};

// Rows that filter_columns_avx2() takes at once, and bytes that it may read behind the end of each.
inline constexpr int column_rows = 4;
inline constexpr int column_slack = 32;

// Width: `out_width` RGB pixels of each of four rows.
void filter_columns_avx2(const std::uint8_t* const in[column_rows], const FilterView& filter, int out_width,
                         std::uint8_t* const out[column_rows]);

// Height: one output row from `count` rows. `bytes`: of a row; at least row_step, which it takes at once.
inline constexpr int row_step = 32;
void filter_rows_avx2(const std::uint8_t* const in[], std::ptrdiff_t bytes, int count, const std::int16_t* weights,
                      int precision, std::uint8_t* out);

}  // namespace m3::vision::detail
