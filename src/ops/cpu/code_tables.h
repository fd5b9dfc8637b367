// Values of short codes as the kernels look them up. Internal linkage: see simd_avx2.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::ops::cpu {
namespace {

// The two bytes of the bf16 of each e2m1 code.
alignas(16) constexpr std::uint8_t e2m1_upper_bytes[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                           0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
alignas(16) constexpr std::uint8_t e2m1_lower_bytes[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                                           0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};

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
struct E8m0Values {
  float value[256] = {};
  constexpr E8m0Values() {
    for (std::uint32_t code = 0; code < 256; ++code) {
      value[code] = __builtin_bit_cast(float, code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
    }
  }
  constexpr float operator[](std::byte code) const { return value[static_cast<std::uint8_t>(code)]; }
};

constexpr E8m0Values e8m0_values;

// What widen_e4m3 leaves out.
constexpr float e4m3_factor = 256.0f;

}  // namespace
}  // namespace m3::ops::cpu
