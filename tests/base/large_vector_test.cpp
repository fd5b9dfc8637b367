#include "src/base/large_vector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace m3 {
namespace {

TEST(LargeVector, HoldsWhatWasWritten) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{9} << 20}) {
    LargeVector<std::uint8_t> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<std::uint8_t>(i * 7);
    LargeVector<std::uint8_t> copy = values;
    copy.resize(2 * size);
    values.resize(size / 2);
    EXPECT_TRUE(std::equal(values.begin(), values.end(), copy.begin())) << size;
    copy.assign(size, 3);
    EXPECT_EQ(std::accumulate(copy.begin(), copy.end(), std::size_t{0}), 3 * size);
  }
}

TEST(LargeVector, HugePagesKeepWhatIsThere) {
  std::vector<std::uint8_t> values(std::size_t{9} << 20, 5);
  prefer_huge_pages(values.data() + 3, values.size() - 7);
  prefer_huge_pages(values.data(), 0);
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), std::size_t{0}), 5 * values.size());
}

}  // namespace
}  // namespace m3
