// Exhaustive checks of the short formats against their definitions.
#include "src/base/number_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace m3 {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, EveryCodeSurvivesTheRoundTrip) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = to_float(bf16{static_cast<std::uint16_t>(code)});
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value), code << 16);
    const std::uint16_t back = to_bf16(value).bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(bf16{back}))) << code;
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  // Between two neighbours: below the middle, the middle, above it.
  for (std::uint32_t code = 0; code < 0x7f80; ++code) {
    const std::uint32_t bits = code << 16;
    ASSERT_EQ(to_bf16(from_bits(bits | 0x7fff)).bits, code);
    ASSERT_EQ(to_bf16(from_bits(bits | 0x8000)).bits, code + (code & 1));
    ASSERT_EQ(to_bf16(from_bits(bits | 0x8001)).bits, code + 1);
    ASSERT_EQ(to_bf16(-from_bits(bits | 0x8001)).bits, 0x8000 | (code + 1));
  }
  EXPECT_TRUE(std::isinf(round_to_bf16(std::numeric_limits<float>::max())));
  EXPECT_TRUE(std::isnan(round_to_bf16(from_bits(0x7f800001))));  // a NaN whose upper half says infinity
}

TEST(F16, EveryCodeSurvivesTheRoundTrip) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = f16_to_float(static_cast<std::uint16_t>(code));
    const int exponent = static_cast<int>(code >> 10 & 31);
    const auto mantissa = static_cast<float>(code & 1023);
    float expected = exponent == 0    ? std::ldexp(mantissa, -24)
                     : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                      : std::ldexp(1024 + mantissa, exponent - 25);
    if (code & 0x8000) expected = -expected;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << code;
      ASSERT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(expected)) << code;
    ASSERT_EQ(float_to_f16(value), code);
  }
}

// A float nearest to a code by definition: of the two codes around it, the nearer, ties to the even one.
template <typename Decode>
std::uint32_t nearest(float value, std::uint32_t finite_codes, const Decode& decode) {
  std::uint32_t best = 0;
  double best_distance = INFINITY;
  for (std::uint32_t code = 0; code < finite_codes; ++code) {
    const double distance = std::abs(double{std::abs(value)} - double{decode(code)});
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

TEST(F16, RoundsToNearestEven) {
  std::mt19937 random(1);
  for (std::uint32_t code = 0; code + 1 < 0x7c00; code += 7) {
    const float low = f16_to_float(static_cast<std::uint16_t>(code));
    const float high = f16_to_float(static_cast<std::uint16_t>(code + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(float_to_f16(middle), code + (code & 1));
    ASSERT_EQ(float_to_f16(std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(float_to_f16(std::nextafter(middle, INFINITY)), code + 1);
  }
  EXPECT_EQ(float_to_f16(65519.9f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(-1e9f), 0xfc00);
}

TEST(E4m3, EveryCode) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    const int exponent = static_cast<int>(code >> 3 & 15);
    const auto mantissa = static_cast<float>(code & 7);
    float expected = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if ((code & 127) == 127) expected = NAN;
    if (code & 128) expected = -expected;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(float_to_e4m3(value) & 127, 127);
      continue;
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(expected)) << code;
    EXPECT_EQ(float_to_e4m3(value), code);
  }
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  std::vector<float> values = {448, 449, 464, 465, 1e9f, INFINITY, 0x1p-10f, 0x1.8p-10f, 0x1p-11f, 1e-30f};
  for (std::uint8_t code = 0; code < 126; ++code) {
    const float low = e4m3_to_float(code);
    const float high = e4m3_to_float(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    values.insert(values.end(), {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)});
  }
  const auto decode = [](std::uint32_t code) { return e4m3_to_float(static_cast<std::uint8_t>(code)); };
  for (const float value : values) {
    const std::uint32_t expected = value > 448 ? 126 : nearest(value, 127, decode);
    EXPECT_EQ(float_to_e4m3(value), expected) << value;
    EXPECT_EQ(float_to_e4m3(-value), 128 | expected) << -value;
  }
}

TEST(E2m1, EveryCode) {
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_to_float(code), magnitudes[code]);
    EXPECT_EQ(e2m1_to_float(code | 8), -magnitudes[code]);
    EXPECT_TRUE(std::signbit(e2m1_to_float(code | 8)));
  }
}

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_float(static_cast<std::uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(DTypes, SizesAndNames) {
  EXPECT_EQ(dtype_size(DType::f64), 8u);
  EXPECT_EQ(dtype_size(DType::f32), 4u);
  EXPECT_EQ(dtype_size(DType::bf16), 2u);
  EXPECT_EQ(dtype_size(DType::f8_e4m3), 1u);
  EXPECT_EQ(dtype_name(DType::f8_e4m3), "F8_E4M3");
  EXPECT_EQ(dtype_name(DType::boolean), "BOOL");
}

}  // namespace
}  // namespace m3
