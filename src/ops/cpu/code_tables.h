// Values of short codes as the kernels look them up. Internal linkage: see simd_avx2.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::ops::cpu {
namespace {

// The upper byte of the binary16 of each e2m1 code; the lower byte is 0.
alignas(16) constexpr std::uint8_t e2m1_upper_bytes[16] = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                                                           0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};

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
  constexpr float operator[](std::uint8_t code) const { return value[code]; }
};

constexpr E4m3Values e4m3_values;

// 2^(code - 127); 255 is NaN.
inline float e8m0_value(std::byte code) {
  const auto exponent = static_cast<std::uint32_t>(code);
  const std::uint32_t bits = exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : exponent << 23;
  return __builtin_bit_cast(float, bits);
}

// What widen_e4m3 leaves out.
constexpr float e4m3_factor = 256.0f;

}  // namespace
}  // namespace m3::ops::cpu
