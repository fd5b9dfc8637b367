#include "src/base/weight_matrix.h"

#include <cstring>

#include "src/base/error.h"
#include "src/base/number_formats.h"

namespace m3 {

std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return "f32";
    case WeightFormat::f16: return "f16";
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::fp8: return "fp8";
    case WeightFormat::mxfp8: return "mxfp8";
    case WeightFormat::mxfp4: return "mxfp4";
    case WeightFormat::nvfp4: return "nvfp4";
  }
  fail_internal("weight_format_name: unknown format {}", static_cast<int>(format));
}

std::int64_t WeightMatrix::row_bytes() const {
  switch (format) {
    case WeightFormat::f32: return columns * 4;
    case WeightFormat::f16:
    case WeightFormat::bf16: return columns * 2;
    case WeightFormat::fp8:
    case WeightFormat::mxfp8: return columns;
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4: return columns / 2;
  }
  fail_internal("row_bytes: unknown format {}", static_cast<int>(format));
}

std::int64_t WeightMatrix::scale_row_bytes() const {
  switch (format) {
    case WeightFormat::mxfp8:
    case WeightFormat::mxfp4: return columns / 32;
    case WeightFormat::nvfp4: return columns / 16;
    default: return 0;
  }
}

std::int64_t WeightMatrix::stored_bytes() const {
  const std::int64_t row_scale_bytes = row_scales != nullptr ? rows * 4 : 0;
  return rows * (row_bytes() + scale_row_bytes()) + row_scale_bytes;
}

WeightMatrix WeightMatrix::row_slice(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first + count > rows) {
    fail_internal("row_slice: rows {}..{} of {}", first, first + count, rows);
  }
  WeightMatrix slice = *this;
  slice.rows = count;
  slice.values = values + first * row_bytes();
  if (scales != nullptr) slice.scales = scales + first * scale_row_bytes();
  if (row_scales != nullptr) slice.row_scales = row_scales + first;
  return slice;
}

void widen_row(const WeightMatrix& weight, std::int64_t row, float* out) {
  const std::byte* values = weight.values + row * weight.row_bytes();
  const std::byte* scales = weight.scales != nullptr ? weight.scales + row * weight.scale_row_bytes() : nullptr;
  const auto code = [&](std::int64_t column) { return static_cast<std::uint8_t>(values[column]); };
  const auto scale = [&](std::int64_t block) { return static_cast<std::uint8_t>(scales[block]); };
  const auto nibble = [&](std::int64_t column) {
    const std::uint8_t byte = code(column / 2);
    return static_cast<std::uint8_t>(column % 2 == 0 ? byte & 15 : byte >> 4);
  };
  float factor = weight.tensor_scale;
  if (weight.row_scales != nullptr) factor *= weight.row_scales[row];
  for (std::int64_t column = 0; column < weight.columns; ++column) {
    float value = 0;
    switch (weight.format) {
      case WeightFormat::f32: std::memcpy(&value, values + column * 4, 4); break;
      case WeightFormat::f16: {
        std::uint16_t bits = 0;
        std::memcpy(&bits, values + column * 2, 2);
        value = f16_to_float(bits);
        break;
      }
      case WeightFormat::bf16: {
        bf16 half;
        std::memcpy(&half, values + column * 2, 2);
        value = to_float(half);
        break;
      }
      case WeightFormat::fp8: value = e4m3_to_float(code(column)); break;
      case WeightFormat::mxfp8: value = e4m3_to_float(code(column)) * e8m0_to_float(scale(column / 32)); break;
      case WeightFormat::mxfp4: value = e2m1_to_float(nibble(column)) * e8m0_to_float(scale(column / 32)); break;
      case WeightFormat::nvfp4: value = e2m1_to_float(nibble(column)) * e4m3_to_float(scale(column / 16)); break;
    }
    out[column] = value * factor;
  }
}

}  // namespace m3
