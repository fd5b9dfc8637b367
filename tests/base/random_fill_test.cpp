#include "src/base/random_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace m3 {
namespace {

constexpr std::int64_t count = 1000;

std::vector<RandomFill> fills() {
  using Kind = RandomFill::Kind;
  return {{.kind = Kind::f32, .key = 5, .parameter = 2},
          {.kind = Kind::bf16, .key = 5, .parameter = 2},
          {.kind = Kind::f8_e4m3, .key = 5, .parameter = 2},
          {.kind = Kind::bytes, .key = 5, .mask = 0x0f0f0f0f0f0f0f0f, .set = 0x3030303030303030},
          {.kind = Kind::e8m0, .key = 5, .parameter = 0.25, .base = 120},
          {.kind = Kind::row_scales, .key = 5, .parameter = 0.5}};
}

std::vector<std::byte> whole(const RandomFill& fill) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * fill.element_bytes()));
  fill_random(fill, 0, bytes);
  return bytes;
}

template <typename T>
T element(const std::vector<std::byte>& bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

TEST(RandomFill, PartsAreTheWhole) {
  for (const RandomFill& fill : fills()) {
    const std::vector<std::byte> expected = whole(fill);
    std::vector<std::byte> parts(expected.size());
    for (std::int64_t first = 0; first < count;) {
      const std::int64_t size = std::min<std::int64_t>(count - first, 8 * (1 + first % 5));
      fill_random(fill, first,
                  std::span(parts).subspan(static_cast<std::size_t>(first * fill.element_bytes()),
                                           static_cast<std::size_t>(size * fill.element_bytes())));
      first += size;
    }
    EXPECT_EQ(parts, expected) << static_cast<int>(fill.kind);
  }
}

TEST(RandomFill, ElementsAreWhatTheKindSays) {
  const std::vector<RandomFill> all = fills();
  const auto wide = whole(all[0]), half = whole(all[1]), narrow = whole(all[2]);
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = element<float>(wide, i);
    EXPECT_LE(std::abs(value), 2);
    squares += static_cast<double>(value) * value;
    EXPECT_EQ(element<bf16>(half, i).bits, to_bf16(value).bits);
    EXPECT_EQ(element<std::uint8_t>(narrow, i), float_to_e4m3(value));
  }
  EXPECT_NEAR(squares / count, 4.0 / 3, 0.15);

  const auto bytes = whole(all[3]);
  for (const std::byte byte : bytes) EXPECT_EQ(byte & std::byte{0xf0}, std::byte{0x30});
  const auto scales = whole(all[4]);
  const auto high = std::count(scales.begin(), scales.end(), std::byte{121});
  EXPECT_EQ(std::count(scales.begin(), scales.end(), std::byte{120}) + high, count);
  EXPECT_NEAR(static_cast<double>(high) / count, 0.25, 0.06);
  const auto rows = whole(all[5]);
  for (std::int64_t i = 0; i < count; ++i) {
    EXPECT_GE(element<float>(rows, i), 0.25f);
    EXPECT_LT(element<float>(rows, i), 0.75f);
  }
}

}  // namespace
}  // namespace m3
