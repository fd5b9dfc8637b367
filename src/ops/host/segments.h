// What the backends' vision operations share: segments of rows, and checks of sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/base/error.h"
#include "src/ops/ops.h"

namespace m3::ops {

// Rows [begin, end).
struct RowRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};

// The segment that holds `row`. Errors (internal): none does.
inline RowRun segment_of(std::span<const std::int32_t> segment_begin, std::int64_t row) {
  const auto after = std::ranges::upper_bound(segment_begin, row);
  if (after == segment_begin.begin() || after == segment_begin.end()) {
    fail_internal("attend_segments: row {} lies in no segment", row);
  }
  return {*(after - 1), *after};
}

// Errors (internal): the two matrices and their biases do not fit one another.
inline void check_gelu_mlp(const GeluMlpWeights& weights) {
  if (weights.fc2.columns != weights.fc1.rows || std::ssize(weights.fc1_bias) != weights.fc1.rows ||
      std::ssize(weights.fc2_bias) != weights.fc2.rows) {
    fail_internal("gelu_mlp: fc1 [{}, {}] with {} biases, fc2 [{}, {}] with {}", weights.fc1.rows, weights.fc1.columns,
                  weights.fc1_bias.size(), weights.fc2.rows, weights.fc2.columns, weights.fc2_bias.size());
  }
}

}  // namespace m3::ops
