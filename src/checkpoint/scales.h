// Scales that stand for no number: e8m0 255 and e4m3 NaN.
#pragma once

#include <cstdint>
#include <string>

#include "src/checkpoint/config.h"
#include "src/checkpoint/problems.h"
#include "src/checkpoint/text_weights.h"

namespace m3 {

struct ScaleFaults {
  std::int64_t not_a_number = 0;  // block scales, or row scales that are not finite
  std::int64_t first_row = -1;    // where the first of them is
};

ScaleFaults scale_faults(const WeightMatrix& weight);

// Reports matrices whose scales hold a NaN, unless all scales together are more than `limit` bytes.
void check_small_scales(const ModelConfig& config, const TextWeights& weights, std::int64_t limit,
                        ProblemList& problems);

}  // namespace m3
