// The two discrete choices of the model: blocks and experts. One definition for every backend on the host.
#pragma once

#include <cstdint>
#include <span>

#include "src/ops/ops.h"

namespace m3::ops {

struct ScoredBlock {
  float score;
  std::int32_t block;
};

// ids[topk] <- the blocks of one token and index head, ascending, -1 padded. `scores` [blocks]: the highest
// visible score of each block; `candidates` [topk]: scratch. Forced blocks take slots first, whatever their
// score; the rest go to the highest scores, ties to the lower id, NaN as the lowest (spec §3.8).
void choose_blocks(std::span<const float> scores, const SelectBlocks& args, ScoredBlock* candidates, std::int32_t* ids);

// ids[k] ascending and weights[k] <- the experts of one token from its router logits [experts], in fp32: p =
// sigmoid(logit), the k highest of p + bias (ties to the lower id, NaN as the lowest), weights p / Σp of the
// chosen. `logits` is overwritten with p. (spec §3.11)
void choose_experts(std::span<float> logits, std::span<const float> bias, int k, std::int32_t* ids, float* weights);

}  // namespace m3::ops
