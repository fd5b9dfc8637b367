// The number formats that M3 checkpoints and caches use, and their exact conversions (spec §2.4-2.6).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace m3 {

// How one element of a tensor is stored. `e8m0` and packed e2m1 codes appear in files as U8.
enum class DType : std::uint8_t { f32, f16, bf16, f8_e4m3, u8, i8, i32, i64, boolean, f64, i16, f8_e5m2 };

// Bytes of one element.
std::size_t dtype_size(DType dtype);
// The spelling of safetensors headers: "F32", "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);

// bfloat16: the upper half of a float.
struct bf16 {
  std::uint16_t bits = 0;
};

inline float to_float(bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN (quiet), values past the largest finite become infinite.
inline bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float round_to_bf16(float value) { return to_float(to_bf16(value)); }

// IEEE binary16, as bits.
float f16_to_float(std::uint16_t bits);
std::uint16_t float_to_f16(float value);

// e4m3 (the "fn" variant: no infinities, 0x7f and 0xff are NaN, largest finite 448).
float e4m3_to_float(std::uint8_t code);
// Round to nearest even, saturating at ±448 (addenda: the fp8 cache cast); NaN gives NaN.
std::uint8_t float_to_e4m3(float value);

// e2m1 magnitudes by the 3 low bits: 0 0.5 1 1.5 2 3 4 6; bit 3 is the sign.
float e2m1_to_float(std::uint8_t code);

// e8m0: 2^(code - 127); 255 is NaN by the OCP definition and refused when loaded.
inline float e8m0_to_float(std::uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127, a subnormal float
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

}  // namespace m3
