// The machine's instructions on the processor.
#pragma once

#include <cstdint>

#include "src/base/number_formats.h"

namespace m3::ops::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

inline std::byte* dynamic_shared() { return emulation::dynamic_shared(); }
inline std::uint16_t narrow_bf16(float value) { return to_bf16(value).bits; }
inline std::uint32_t pack_bf16(float low, float high) {
  return static_cast<std::uint32_t>(to_bf16(high).bits) << 16 | to_bf16(low).bits;
}
inline float emulated_low(std::uint32_t pair) { return to_float(bf16{static_cast<std::uint16_t>(pair)}); }
inline float emulated_high(std::uint32_t pair) { return to_float(bf16{static_cast<std::uint16_t>(pair >> 16)}); }
inline std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  return pack_bf16(emulated_low(a) * emulated_low(b), emulated_high(a) * emulated_high(b));
}
inline float widen_f16(std::uint16_t bits) { return f16_to_float(bits); }

template <typename T>
T load_fresh(const T* address) {
  return *address;
}

inline void mma_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                     std::uint32_t b0, std::uint32_t b1) {
  const unsigned g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
  std::uint64_t all[3][32];
  std::memcpy(all[0], emulation::exchange(std::uint64_t{a1} << 32 | a0), sizeof all[0]);
  std::memcpy(all[1], emulation::exchange(std::uint64_t{a3} << 32 | a2), sizeof all[1]);
  std::memcpy(all[2], emulation::exchange(std::uint64_t{b1} << 32 | b0), sizeof all[2]);
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned n = 2 * j + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned lane = k % 8 / 2;
      const std::uint64_t a_pairs = all[k / 8][g * 4 + lane];
      const auto a = static_cast<std::uint32_t>(i < 2 ? a_pairs : a_pairs >> 32);
      const auto b = static_cast<std::uint32_t>(k < 8 ? all[2][n * 4 + lane] : all[2][n * 4 + lane] >> 32);
      sum += k % 2 == 0 ? emulated_low(a) * emulated_low(b) : emulated_high(a) * emulated_high(b);
    }
    d[i] += sum;
  }
}

inline void copy_async_16(void* shared, const void* global) {
  if (reinterpret_cast<std::uintptr_t>(shared) % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0) {
    std::abort();
  }
  emulation::copy_later(shared, global);
}
inline void commit_copies() { emulation::commit(); }
template <int Pending>
void wait_copies() {
  emulation::wait(Pending);
}

}  // namespace m3::ops::cuda
