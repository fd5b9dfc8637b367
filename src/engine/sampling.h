// A request's sampling parameters, checked and completed with the checkpoint's defaults.
#pragma once

#include <vector>

#include "m3/request.h"
#include "src/checkpoint/generation_config.h"
#include "src/ops/ops.h"

namespace m3::engine {

// Errors (usage): a value outside the range that m3/request.h gives, or an id outside the vocabulary; the line names
// the parameter.
void check_sampling(const SamplingParameters& parameters, std::int64_t vocab_size);

// The row that the sampling operation takes, but for history, position, sample and mask. `bias` must outlive the row.
ops::SamplingRow make_sampling_row(const SamplingParameters& parameters, const GenerationConfig& defaults,
                                   std::uint64_t seed, const std::vector<ops::SamplingRow::Bias>& bias);

}  // namespace m3::engine
