// Bytes as a pure function of (key, index): weights and cache contents of benchmarks and tests, made where they are
// needed. A device makes the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/number_formats.h"

namespace m3 {

// splitmix64's finaliser over a counter.
inline std::uint64_t seeded_word(std::uint64_t key, std::uint64_t index) {
  std::uint64_t x = key + (index + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Elements first … first + count: float(int64(word(i) >> 40) − 2^23) · float(bound / 2^23).
void seeded_values(std::uint64_t key, double bound, std::int64_t first, std::int64_t count, float* out);
void seeded_values(std::uint64_t key, double bound, std::int64_t first, std::int64_t count, bf16* out);  // rounded

// Element i of a fill is a function of (key, i).
struct RandomFill {
  enum class Kind : std::uint8_t {
    f32,         // seeded_values with bound `parameter`
    bf16,        // likewise, rounded
    f8_e4m3,     // likewise, by float_to_e4m3
    bytes,       // byte i: byte i % 8 of little-endian (word(i / 8) & mask) | set
    e8m0,        // code = base + (unit(i) < parameter), where unit(i) = (word(i) >> 11) · 2^-53
    row_scales,  // f32: float(parameter · (0.5 + unit(i))), formed in double
  };
  Kind kind = Kind::bf16;
  std::uint64_t key = 0;
  double parameter = 0;
  std::uint64_t mask = ~std::uint64_t{0}, set = 0;
  std::uint8_t base = 127;

  std::int64_t element_bytes() const {
    return kind == Kind::f32 || kind == Kind::row_scales ? 4 : kind == Kind::bf16 ? 2 : 1;
  }
};

// What a piece of memory would hold, where nobody has filled it.
struct RandomPiece {
  const std::byte* data = nullptr;  // names the piece; not to be read
  std::int64_t bytes = 0;
  RandomFill fill;
};

// Elements from `first` on, as many as `out` has room for; `first` a multiple of 8.
void fill_random(const RandomFill& fill, std::int64_t first, std::span<std::byte> out);

}  // namespace m3
