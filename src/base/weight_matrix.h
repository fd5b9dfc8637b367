// A view of one weight matrix exactly as a checkpoint stores it. Kernels widen it in registers; nothing here
// copies (spec §2.4-2.7, addenda §13 for telling the formats apart).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace m3 {

enum class WeightFormat : std::uint8_t {
  f32,
  f16,
  bf16,
  fp8,    // e4m3 codes; one F32 scale a row, or one for the tensor
  mxfp8,  // e4m3 codes; one e8m0 scale for 32 consecutive columns
  mxfp4,  // e2m1 codes, two a byte, low nibble = even column; one e8m0 scale for 32 columns
  nvfp4,  // e2m1 codes likewise; one e4m3 scale for 16 columns, and one F32 scale for the tensor
};

std::string_view weight_format_name(WeightFormat format);  // "bf16", "mxfp8", ...

// W [rows, columns], row-major, for y = x · Wᵀ.
// Value of an element: decode(values) · block scale · row scale · tensor_scale. The block scale and the code
// are exact in bf16 for mx formats and e2m1·e4m3; tensor_scale and row scales multiply the fp32 dot product
// (addenda §13 "Rounding").
struct WeightMatrix {
  WeightFormat format = WeightFormat::bf16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::byte* values = nullptr;   // [rows, columns], packed two a byte for the 4-bit formats
  const std::byte* scales = nullptr;   // mxfp8, mxfp4: U8 [rows, columns/32]; nvfp4: e4m3 [rows, columns/16]
  const float* row_scales = nullptr;   // fp8: F32 [rows], or null where tensor_scale alone applies
  float tensor_scale = 1.0f;           // nvfp4: weight_scale_2 (or 1/weight_global_scale); fp8: per-tensor scale
  bool quantized_activations = false;  // ptpc_fp8: x is cast to e4m3 with one scale a token before the product

  bool empty() const { return values == nullptr; }
  std::int64_t row_bytes() const;        // bytes of one row of `values`
  std::int64_t scale_row_bytes() const;  // bytes of one row of `scales`, 0 where there are none
  std::int64_t stored_bytes() const;     // values + scales + row scales
  WeightMatrix row_slice(std::int64_t first, std::int64_t count) const;
};

// One row widened to fp32, block scales included, row and tensor scales not: out[columns]. Exact for every
// format. The definition that kernels are tested against.
void widen_codes(const WeightMatrix& weight, std::int64_t row, float* out);

// What multiplies the fp32 dot product with a row's codes: row scale times tensor scale.
inline float row_factor(const WeightMatrix& weight, std::int64_t row) {
  return weight.row_scales != nullptr ? weight.tensor_scale * weight.row_scales[row] : weight.tensor_scale;
}

// One row widened to fp32, row and tensor scales included: out[columns].
void widen_row(const WeightMatrix& weight, std::int64_t row, float* out);

}  // namespace m3
