// Routed experts of few tokens on Hopper in one launch, for weights of four and eight bits with scales of 16 or 32 columns.
#pragma once

#include "src/ops/cuda/matmul_decode_sm90.h"

namespace m3::ops::cuda {

inline constexpr int experts_shared = 214 << 10;  // of a block
inline constexpr int experts_phases = 64;          // of a block and a product: some items of one group
inline constexpr int experts_rows = 32;           // of x at a time

struct ExpertsArgs {
  const WeightPart* gate_up = nullptr;  // tables by group, as ExpertClass has them
  const WeightPart* down = nullptr;
  int hidden = 0, width = 0;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::uint16_t* inner = nullptr;  // [items, width]
  float* sums = nullptr;           // [items, hidden], weighted
  // Items as MatmulArgs has them.
  std::int32_t items = 0;
  int groups = 0;
  int list_divisor = 1;
  const std::int32_t* expert_ids = nullptr;
  const std::int32_t* group_of_expert = nullptr;
  int first_expert = 0;
  int expert_count = 0;
  const float* pair_weights = nullptr;
  float scaling = 1;
  float alpha = 0, limit = 0, beta = 0;
  bool old_routing = false;     // and x
  unsigned* counter = nullptr;  // two, zero before the first launch
};

}  // namespace m3::ops::cuda
