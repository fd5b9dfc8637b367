// The text model's weights as views into the mapped checkpoint.
#pragma once

#include <vector>

#include "src/base/weight_matrix.h"

namespace m3 {

struct ExpertWeights {
  WeightMatrix gate;  // w1 [intermediate, hidden]
  WeightMatrix up;    // w3 [intermediate, hidden]
  WeightMatrix down;  // w2 [hidden, intermediate]
};

struct TextLayerWeights {
  std::vector<float> input_layernorm;           // [hidden], as stored (Gemma: the norm multiplies by 1 + w)
  std::vector<float> post_attention_layernorm;  // [hidden]
  WeightMatrix q_proj, k_proj, v_proj, o_proj;
  std::vector<float> q_norm, k_norm;  // [128]
  float k_scale = 1, v_scale = 1;     // of an fp8 cache, where the checkpoint stores them (addenda §13 "Names")

  // Sparse layers only.
  WeightMatrix index_q_proj, index_k_proj;
  std::vector<float> index_q_norm, index_k_norm;  // [128]

  // MoE layers only.
  WeightMatrix router;                         // [experts, hidden], F32 as published
  std::vector<float> e_score_correction_bias;  // [experts]
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;

  // Dense layers only.
  ExpertWeights dense;
};

// Small vectors (norms, biases) are widened to fp32, matrices are views; the owner is the Checkpoint.
struct TextWeights {
  WeightMatrix embed_tokens;  // [vocab, hidden]
  WeightMatrix lm_head;       // [vocab, hidden]; equals embed_tokens where tied
  std::vector<float> norm;    // [hidden]
  std::vector<TextLayerWeights> layers;
};

}  // namespace m3
