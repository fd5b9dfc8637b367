#include "src/base/number_formats.h"

#include <array>
#include <cmath>

#include "src/base/error.h"

namespace m3 {

std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16: return 2;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::u8:
    case DType::i8:
    case DType::boolean: return 1;
  }
  fail_internal("dtype_size: unknown dtype {}", static_cast<int>(dtype));
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "F64";
    case DType::f32: return "F32";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
    case DType::f8_e4m3: return "F8_E4M3";
    case DType::f8_e5m2: return "F8_E5M2";
    case DType::u8: return "U8";
    case DType::i8: return "I8";
    case DType::i16: return "I16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::boolean: return "BOOL";
  }
  fail_internal("dtype_name: unknown dtype {}", static_cast<int>(dtype));
}

float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13);
}

namespace {

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    float value = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    if ((code & 0x7f) == 0x7f) value = std::bit_cast<float>(0x7fc00000u);
    table[static_cast<std::size_t>(code)] = (code & 0x80) ? -value : value;
  }
  return table;
}

}  // namespace

float e4m3_to_float(std::uint8_t code) {
  static const std::array<float, 256> table = make_e4m3_table();
  return table[code];
}

std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (std::isnan(value)) return sign | 0x7fu;
  if (magnitude >= 448.0f) return sign | 0x7eu;
  if (magnitude < 0x1p-6f) {  // subnormal: a multiple of 2^-9
    return sign | static_cast<std::uint8_t>(std::nearbyint(magnitude * 0x1p9f));
  }
  const std::uint32_t m = bits & 0x7fffffffu;
  const std::uint32_t rounded = m + 0x7ffffu + ((m >> 20) & 1u);
  const std::uint32_t code = (rounded >> 20) - ((127 - 7) << 3);
  return sign | static_cast<std::uint8_t>(code > 0x7e ? 0x7e : code);
}

float e2m1_to_float(std::uint8_t code) {
  constexpr std::array<float, 8> magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = magnitudes[code & 7];
  return (code & 8) ? -magnitude : magnitude;
}

}  // namespace m3
