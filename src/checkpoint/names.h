// One name for each tensor, whatever spelling a checkpoint uses (spec §2.1, §2.2, addenda §10, §13 "Names").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/config.h"

namespace m3 {

enum class NameKind {
  text,     // the language model
  vision,   // tower, projector, merger
  ignored,  // MTP modules: skipped, as published checkpoints' configs name modules that they do not hold
  draft,    // a tensor that only draft models have
  unknown,
};

// A tensor's name taken apart: `module` in the published spelling of spec §2.1, and what the tensor is to it:
// "weight", "weight_scale", "e_score_correction_bias", "k_scale", ... "weight_scale_inv" and "scale" become
// "weight_scale". Fused tensors of re-saved checkpoints have no published spelling; theirs are
// "….mlp.gate_up_proj", "….block_sparse_moe.experts.gate_up_proj" (and "down_proj"),
// "….block_sparse_moe.shared_experts.gate_up_proj".
struct TensorName {
  NameKind kind = NameKind::unknown;
  std::string module;
  std::string part;
};

// Matches whole components, never substrings. `layers` decides what `mlp` and `block_sparse_moe` mean: some tools
// write one for the other.
TensorName canonical_name(std::string_view stored, const std::vector<LayerKind>& layers);

// The same for a module's name, as quantisation configs list them ("lm_head", "model.layers.3.self_attn.q_proj",
// "vision_tower"). A prefix of a module is brought to the prefix of its published spelling; an unknown name comes
// back unchanged.
std::string canonical_module(std::string_view name, const std::vector<LayerKind>& layers);

std::vector<std::string_view> split_name(std::string_view name);  // at dots

// `pattern` with '*' for any run of characters, against the whole of `text`.
bool matches_pattern(std::string_view pattern, std::string_view text);

// The name from "layers." on, or all of it: lists of modules differ in what stands before.
std::string_view from_layers(std::string_view name);

}  // namespace m3
