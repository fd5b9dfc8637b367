// From a directory to text weights and a list of what is wrong with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "src/checkpoint/aligned_store.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/problems.h"
#include "src/checkpoint/quantization.h"
#include "src/checkpoint/safetensors.h"
#include "src/checkpoint/text_weights.h"
#include "src/checkpoint/vision_weights.h"

namespace m3 {

struct LoadedCheckpoint {
  ModelConfig config;
  QuantizationPlan quantization;
  TensorFiles files;    // owns the mappings that `weights` point into
  AlignedStore copies;  // and the few tensors that had to be moved
  TextWeights weights;
  ProblemList problems;  // weights are usable only where this is empty
  std::int64_t text_tensors = 0;
  std::int64_t text_bytes = 0;                      // of those, in the files
  VisionWeights vision;                             // empty without a vision_config
  std::vector<const StoredTensor*> vision_tensors;  // those, as stored
  std::int64_t vision_bytes = 0;
  std::int64_t skipped_tensors = 0;  // mtp.*
};

// Reads headers and small vectors; matrices stay where they are mapped. Tensors that are missing, misshapen, of an
// unexpected type, unexplained, or at odds with quantization_config are listed in `problems`, as are scale bytes of
// 255 where all scales together are small enough to be read at once (256 MiB; `m3 inspect --deep` reads any size).
// Errors: an unreadable config or safetensors file, a draft model's checkpoint.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& directory);

// Bytes that the text model keeps in memory or mapped: matrices as stored, vectors as fp32; a tied head counts once.
std::int64_t text_bytes(const ModelConfig& config, const TextWeights& weights);

}  // namespace m3
