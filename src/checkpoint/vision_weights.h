// The vision tower's weights as views into the mapped checkpoint (spec §2.1 "Vision").
#pragma once

#include <vector>

#include "src/base/weight_matrix.h"

namespace m3 {

struct VisionLinear {
  WeightMatrix weight;      // [out, in]
  std::vector<float> bias;  // [out]
};

struct VisionNorm {
  std::vector<float> weight, bias;  // [hidden], as stored
};

struct VisionLayerWeights {
  VisionNorm layer_norm1, layer_norm2;
  VisionLinear q_proj, k_proj, v_proj, out_proj;
  VisionLinear fc1, fc2;
};

// Norms and biases are widened to fp32, matrices are views; the owner is the Checkpoint.
struct VisionWeights {
  WeightMatrix patch_embedding;  // [hidden, channels · frames · height · width], F32 as published
  VisionNorm pre_layrnorm;       // so spelt in the checkpoint
  std::vector<VisionLayerWeights> layers;
  VisionLinear projector_1, projector_2;  // [projector, hidden], [text hidden, projector]
  VisionLinear merge_1, merge_2;          // [projector, 4 · text hidden], [text hidden, projector]
};

}  // namespace m3
