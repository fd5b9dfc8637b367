// What the model did, for researchers and for the tests against the reference: chosen tensors at chosen positions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "m3/request.h"
#include "src/base/number_formats.h"
#include "src/engine/loaded_model.h"

namespace m3::engine {

struct TraceOptions {
  std::vector<std::int32_t> token_ids;  // may be empty where there are media: their features alone
  // Give `features` [Σ rows, hidden] f32, and stand for the placeholders among the ids. The model must be planned for
  // them (LoadedModelOptions::vision_patches).
  std::vector<Media> media;
  std::vector<std::int64_t> positions;  // in the order wanted; empty: the last
  // Names or families: logits, hidden (all boundaries), hidden.I, final_norm, block_ids(.L), expert_ids(.L),
  // expert_weights(.L).
  std::vector<std::string> tensors = {"logits", "block_ids", "expert_ids", "expert_weights"};
  std::int64_t chunk = 0;  // tokens of one forward pass; 0: the model's maximum
  bool shuffle_pages = false;
  std::uint64_t shuffle_seed = 0;
  std::int64_t greedy = 0;  // tokens appended greedily, stored as greedy_ids, greedy_logits
  std::vector<std::int32_t> dropped_blocks;
};

struct TraceTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

using Trace = std::map<std::string, TraceTensor>;

// Throws for empty or out-of-range ids, media that do not fit, positions past the end, unknown tensor names (lists the known), a prompt that
// does not fit, and non-finite logits at an asked position.
Trace trace(LoadedModel& model, const TraceOptions& options);

// Tensor names a model can give, for messages and checks.
std::vector<std::string> trace_tensor_names(const ModelConfig& config);

}  // namespace m3::engine
