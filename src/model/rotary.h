// Rotary frequencies of a configuration: plain, or YaRN where the config has it (spec §3.5, addenda §13).
#pragma once

#include <vector>

#include "src/checkpoint/config.h"

namespace m3::model {

struct Rotary {
  std::vector<float> inv_freq;  // [rotary_dim / 2]
  float factor = 1;             // on cos and sin
};

Rotary make_rotary(const ModelConfig& config);

}  // namespace m3::model
