// Routed experts of few tokens on Hopper in one launch: gate and up, activation and down, at the rate that weights can be
// read.
#pragma once

#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

inline constexpr int experts_hidden = 6144;  // at most; half of it between the products
inline constexpr int experts_items = 1024;   // at most, chosen by experts
// Up to how many tokens it is the fastest. On an H200, 4 of 128 experts of 6144 x 3072 a token, microseconds:
//   tokens        1     8    32    64    96   128   others at 96   at 128
//   mxfp4      45.0   250   692   992  1411  1673            1810     1606
//   nvfp4      45.7   247   739   984  1387     -            1736     1568
//   mxfp8      67.0   447  1246  1727     -  2884            2260     2104
inline constexpr int experts_tokens = 256;
inline constexpr int experts_tokens_mxfp8 = 64;

struct ExpertsArgs {
  WeightFormat format = WeightFormat::mxfp4;  // of all weights
  const WeightPart* gate_up = nullptr;        // tables by group, as ExpertClass has them
  const WeightPart* down = nullptr;
  int hidden = 0, width = 0;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::uint16_t* inner = nullptr;  // [items, width]
  float* sums = nullptr;           // [items, hidden], weighted
  // As MatmulArgs has them.
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
  bool old_routing = false;      // expert_ids and x
  unsigned* counters = nullptr;  // two, zero between launches
};

// Whether the device is Hopper and the shapes fit; of any of the experts.
bool experts_take_sm90(const ExpertsArgs& args, const WeightPart& gate, const WeightPart& up, const WeightPart& down);
cudaError_t launch_experts_sm90(const ExpertsArgs& args, cudaStream_t stream);

}  // namespace m3::ops::cuda
