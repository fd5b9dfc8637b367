// One row of logits becomes one token: the definition of SamplingRow.
#pragma once

#include <cstdint>
#include <span>

#include "src/ops/host/arena.h"
#include "src/ops/ops.h"

namespace m3::ops {

struct Candidate {
  float value;  // logit, then weight
  std::int32_t id;
};

// Memory of one sampler, for rows of up to `vocab` logits. `counts` is all zero between rows.
struct SamplerScratch {
  SamplerScratch(Arena& arena, std::int64_t vocab)
      : counts(arena.take<std::uint32_t>(vocab)), candidates(arena.take<Candidate>(vocab)) {}
  std::uint32_t* counts;
  Candidate* candidates;
};

// Uniform in [0, 1) with 53 random bits: a function of its arguments alone (Philox 4x32-10).
double uniform_draw(std::uint64_t seed, std::uint32_t sample, std::int64_t position);

// The token, or -1 where no logit is finite. Non-finite logits cannot be drawn. Candidates are taken in
// ascending order of id when the uniform number is mapped to one, whatever filters ran. Overwrites `logits`.
std::int32_t sample_row(std::span<float> logits, const SamplingRow& row, const SamplerScratch& scratch);

}  // namespace m3::ops
