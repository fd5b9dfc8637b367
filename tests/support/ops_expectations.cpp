// Apart from the data, which programs without GoogleTest use too.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ops_data.h"

namespace m3::test {

void expect_bf16_close(const std::vector<float>& actual, const std::vector<float>& expected, float absolute,
                       const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float bound = std::abs(expected[i]) * 0x1p-7f + absolute;
    // Not "> bound": a NaN must fail.
    if (!(std::abs(actual[i] - expected[i]) <= bound)) {
      ADD_FAILURE() << what << ": element " << i << " is " << actual[i] << ", expected " << expected[i] << " within "
                    << bound;
      return;
    }
  }
}

void expect_norm_close(const std::vector<float>& actual, const std::vector<float>& expected, double bound,
                       const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += std::pow(double{actual[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  EXPECT_GT(norm, 0) << what;
  EXPECT_LE(std::sqrt(difference), bound * std::sqrt(norm)) << what;
}

}  // namespace m3::test
