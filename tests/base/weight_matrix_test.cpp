#include "src/base/weight_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "m3/error.h"
#include "src/base/number_formats.h"

namespace m3 {
namespace {

std::vector<std::byte> bytes_from(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::vector<float> widened(const WeightMatrix& weight, std::int64_t row) {
  std::vector<float> out(static_cast<std::size_t>(weight.columns));
  widen_row(weight, row, out.data());
  return out;
}

TEST(WeightMatrix, Mxfp4LowNibbleIsTheEvenColumn) {
  // Two rows of 32: codes 1 2 | 8+7 ..., scales 2^1 and 2^-1.
  std::vector<std::byte> values(32, std::byte{0});
  values[0] = std::byte{0x21};   // 0.5, 1
  values[16] = std::byte{0x7f};  // -6, 6
  const std::vector<std::byte> scales = bytes_from({128, 126});
  WeightMatrix weight{WeightFormat::mxfp4, 2, 32, values.data(), scales.data()};
  EXPECT_EQ(weight.row_bytes(), 16);
  EXPECT_EQ(weight.scale_row_bytes(), 1);
  EXPECT_EQ(weight.stored_bytes(), 34);
  EXPECT_EQ(widened(weight, 0)[0], 1.0f);
  EXPECT_EQ(widened(weight, 0)[1], 2.0f);
  EXPECT_EQ(widened(weight, 0)[2], 0.0f);
  EXPECT_EQ(widened(weight, 1)[0], -3.0f);
  EXPECT_EQ(widened(weight, 1)[1], 3.0f);
}

TEST(WeightMatrix, Nvfp4HasTwoScales) {
  std::vector<std::byte> values(16, std::byte{0x22});  // all 1
  const std::vector<std::byte> scales = bytes_from({float_to_e4m3(1.5f), float_to_e4m3(3.0f)});
  WeightMatrix weight{WeightFormat::nvfp4, 1, 32, values.data(), scales.data()};
  weight.tensor_scale = 0.5f;
  const std::vector<float> row = widened(weight, 0);
  EXPECT_EQ(row[15], 0.75f);
  EXPECT_EQ(row[16], 1.5f);
  std::vector<float> codes(32);
  widen_codes(weight, 0, codes.data());
  EXPECT_EQ(codes[16], 3.0f);
  EXPECT_EQ(row_factor(weight, 0), 0.5f);
}

TEST(WeightMatrix, Fp8ScalesByRowOrTensor) {
  const std::vector<std::byte> values = bytes_from({0x38, 0xb8, 0x40, 0x00});  // 1 -1 | 2 0
  const float row_scales[] = {2, 3};
  WeightMatrix weight{WeightFormat::fp8, 2, 2, values.data()};
  weight.tensor_scale = 10;
  EXPECT_EQ(widened(weight, 1), std::vector<float>({20, 0}));
  weight.row_scales = row_scales;
  EXPECT_EQ(widened(weight, 0), std::vector<float>({20, -20}));
  EXPECT_EQ(widened(weight, 1), std::vector<float>({60, 0}));
  EXPECT_EQ(weight.stored_bytes(), 4 + 8);
}

TEST(WeightMatrix, PlainFormats) {
  const float f32[] = {1.5f, -2};
  EXPECT_EQ(widened({WeightFormat::f32, 1, 2, reinterpret_cast<const std::byte*>(f32)}, 0),
            std::vector<float>({1.5f, -2}));
  const std::uint16_t f16[] = {float_to_f16(1.5f), float_to_f16(0x1p-20f)};
  EXPECT_EQ(widened({WeightFormat::f16, 1, 2, reinterpret_cast<const std::byte*>(f16)}, 0),
            std::vector<float>({1.5f, 0x1p-20f}));
  const bf16 half[] = {to_bf16(1.5f), to_bf16(-3)};
  EXPECT_EQ(widened({WeightFormat::bf16, 1, 2, reinterpret_cast<const std::byte*>(half)}, 0),
            std::vector<float>({1.5f, -3}));
}

TEST(WeightMatrix, RowSliceMovesEveryPart) {
  std::vector<std::byte> values(4 * 32, std::byte{0x38});
  for (std::size_t i = 0; i < 32; ++i) values[2 * 32 + i] = std::byte{0x40};
  const std::vector<std::byte> scales = bytes_from({127, 127, 129, 127});
  const float row_scales[] = {1, 1, 5, 1};
  WeightMatrix weight{WeightFormat::mxfp8, 4, 32, values.data(), scales.data(), row_scales};
  const WeightMatrix slice = weight.row_slice(2, 2);
  EXPECT_EQ(slice.rows, 2);
  EXPECT_EQ(widened(slice, 0)[31], 2.0f * 4 * 5);
  EXPECT_EQ(widened(slice, 1)[0], 1.0f);
  EXPECT_THROW(weight.row_slice(3, 2), Error);
  EXPECT_THROW(weight.row_slice(-1, 1), Error);
  EXPECT_EQ(weight.row_slice(4, 0).rows, 0);
}

TEST(WeightMatrix, Names) {
  EXPECT_EQ(weight_format_name(WeightFormat::mxfp8), "mxfp8");
  EXPECT_EQ(weight_format_name(WeightFormat::nvfp4), "nvfp4");
  EXPECT_TRUE(WeightMatrix{}.empty());
}

}  // namespace
}  // namespace m3
