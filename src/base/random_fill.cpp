#include "src/base/random_fill.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace m3 {

namespace {

float value_of(std::uint64_t word, float scale) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 40) - (1 << 23)) * scale;
}

double unit(std::uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

}  // namespace

void seeded_values(std::uint64_t key, double bound, std::int64_t first, std::int64_t count, float* out) {
  const auto scale = static_cast<float>(bound / 8388608.0);
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = value_of(seeded_word(key, static_cast<std::uint64_t>(first + i)), scale);
}

void seeded_values(std::uint64_t key, double bound, std::int64_t first, std::int64_t count, bf16* out) {
  const auto scale = static_cast<float>(bound / 8388608.0);
  for (std::int64_t i = 0; i < count; ++i) {
    // As to_bf16, without its NaN case: no NaN arises here.
    const auto bits =
        std::bit_cast<std::uint32_t>(value_of(seeded_word(key, static_cast<std::uint64_t>(first + i)), scale));
    out[i] = {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  }
}

void fill_random(const RandomFill& fill, std::int64_t first, std::span<std::byte> out) {
  const std::int64_t count = std::ssize(out) / fill.element_bytes();
  const auto word = [&](std::int64_t i) { return seeded_word(fill.key, static_cast<std::uint64_t>(first + i)); };
  std::byte* data = out.data();
  switch (fill.kind) {
    case RandomFill::Kind::f32:
      return seeded_values(fill.key, fill.parameter, first, count, reinterpret_cast<float*>(data));
    case RandomFill::Kind::bf16:
      return seeded_values(fill.key, fill.parameter, first, count, reinterpret_cast<bf16*>(data));
    case RandomFill::Kind::f8_e4m3: {
      const auto scale = static_cast<float>(fill.parameter / 8388608.0);
      for (std::int64_t i = 0; i < count; ++i) data[i] = std::byte{float_to_e4m3(value_of(word(i), scale))};
      return;
    }
    case RandomFill::Kind::bytes:
      for (std::int64_t i = 0; i < count; i += 8) {
        const std::uint64_t eight =
            (seeded_word(fill.key, static_cast<std::uint64_t>((first + i) / 8)) & fill.mask) | fill.set;
        std::memcpy(data + i, &eight, static_cast<std::size_t>(std::min<std::int64_t>(8, count - i)));
      }
      return;
    case RandomFill::Kind::e8m0:
      for (std::int64_t i = 0; i < count; ++i) {
        data[i] = static_cast<std::byte>(fill.base + (unit(word(i)) < fill.parameter ? 1 : 0));
      }
      return;
    case RandomFill::Kind::row_scales: {
      auto* scales = reinterpret_cast<float*>(data);
      for (std::int64_t i = 0; i < count; ++i) scales[i] = static_cast<float>(fill.parameter * (0.5 + unit(word(i))));
      return;
    }
  }
}

}  // namespace m3
