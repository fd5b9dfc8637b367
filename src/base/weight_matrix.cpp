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

namespace {

// out[column] = value(column), the format's loop written once.
template <typename Value>
void fill_row(std::int64_t columns, float* out, const Value& value) {
  for (std::int64_t column = 0; column < columns; ++column) out[column] = value(column);
}

template <typename T>
T load(const std::byte* values, std::int64_t column) {
  T value;
  std::memcpy(&value, values + column * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::uint8_t nibble(const std::byte* values, std::int64_t column) {
  const auto byte = load<std::uint8_t>(values, column / 2);
  return column % 2 == 0 ? byte & 15 : byte >> 4;
}

}  // namespace

void widen_codes(const WeightMatrix& weight, std::int64_t row, float* out) {
  const std::byte* values = weight.values + row * weight.row_bytes();
  const std::byte* scales = weight.scales != nullptr ? weight.scales + row * weight.scale_row_bytes() : nullptr;
  const std::int64_t columns = weight.columns;
  const auto e8m0 = [&](std::int64_t block) { return e8m0_to_float(load<std::uint8_t>(scales, block)); };
  switch (weight.format) {
    case WeightFormat::f32:
      if (columns > 0) std::memcpy(out, values, static_cast<std::size_t>(columns) * 4);
      return;
    case WeightFormat::f16:
      return fill_row(columns, out, [&](std::int64_t k) { return f16_to_float(load<std::uint16_t>(values, k)); });
    case WeightFormat::bf16:
      return fill_row(columns, out, [&](std::int64_t k) { return to_float(load<bf16>(values, k)); });
    case WeightFormat::fp8:
      return fill_row(columns, out, [&](std::int64_t k) { return e4m3_to_float(load<std::uint8_t>(values, k)); });
    case WeightFormat::mxfp8:
      return fill_row(columns, out,
                      [&](std::int64_t k) { return e4m3_to_float(load<std::uint8_t>(values, k)) * e8m0(k / 32); });
    case WeightFormat::mxfp4:
      return fill_row(columns, out, [&](std::int64_t k) { return e2m1_to_float(nibble(values, k)) * e8m0(k / 32); });
    case WeightFormat::nvfp4:
      return fill_row(columns, out, [&](std::int64_t k) {
        return e2m1_to_float(nibble(values, k)) * e4m3_to_float(load<std::uint8_t>(scales, k / 16));
      });
  }
  fail_internal("widen_codes: unknown format {}", static_cast<int>(weight.format));
}

void widen_row(const WeightMatrix& weight, std::int64_t row, float* out) {
  widen_codes(weight, row, out);
  const float factor = row_factor(weight, row);
  if (factor == 1) return;
  for (std::int64_t column = 0; column < weight.columns; ++column) out[column] *= factor;
}

}  // namespace m3
