// Values of short codes as the kernels look them up. Internal linkage: see simd_avx2.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::ops::cpu {
namespace {

constexpr float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// 2^exponent as fp32, exponent in [-149, 127].
constexpr float power_of_two(int exponent) {
  return __builtin_bit_cast(float, exponent >= -126 ? static_cast<std::uint32_t>(exponent + 127) << 23
                                                    : std::uint32_t{1} << (exponent + 149));
}

struct E4m3Values {
  float value[256] = {};
  constexpr E4m3Values() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code >> 3) & 15;
      const int mantissa = code & 7;
      float magnitude = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) / 512.0f;
      for (int i = 1; i < exponent; ++i) magnitude *= 2;
      if ((code & 0x7f) == 0x7f) magnitude = __builtin_nanf("");
      value[code] = (code & 0x80) != 0 ? -magnitude : magnitude;
    }
  }
  constexpr float operator[](std::byte code) const { return value[static_cast<std::uint8_t>(code)]; }
};

constexpr E4m3Values e4m3_values;

// 2^(code - 127); 255 is NaN.
struct E8m0Values {
  float value[256] = {};
  constexpr E8m0Values() {
    for (int code = 0; code < 255; ++code) value[code] = power_of_two(code - 127);
    value[255] = __builtin_nanf("");
  }
  constexpr float operator[](std::byte code) const { return value[static_cast<std::uint8_t>(code)]; }
};

constexpr E8m0Values e8m0_values;

// What widening e4m3 leaves out, so that no product with a block's scale overflows.
constexpr float e4m3_factor = 256.0f;

// Codes placed as bf16 bits stand for value * 2^-120: this makes value / e4m3_factor of them.
constexpr float placed_factor = power_of_two(120 - 8);

// The same times an e8m0 scale, for scales up to plain_scale; larger ones need two products.
constexpr std::uint8_t plain_scale = 127 + 15;
struct PlacedScales {
  float value[256] = {};
  constexpr PlacedScales() {
    for (int code = 0; code <= plain_scale; ++code) value[code] = power_of_two(code - 127 + 120 - 8);
  }
  constexpr float operator[](std::byte code) const { return value[static_cast<std::uint8_t>(code)]; }
};
constexpr PlacedScales placed_scales;

// a * b for exact products; infinite where it is beyond fp32 (which constant expressions may not compute).
constexpr float exact_product(float a, float b) {
  if (a != a || b != b) return __builtin_nanf("");
  const double product = static_cast<double>(a) * static_cast<double>(b);
  if (product > 3.5e38) return __builtin_inff();
  if (product < -3.5e38) return -__builtin_inff();
  return static_cast<float>(product);
}

}  // namespace
}  // namespace m3::ops::cpu
