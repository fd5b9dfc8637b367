// `--quantization ptpc_fp8`: linears become e4m3 with one scale a row while the checkpoint is opened.
#pragma once

#include "src/checkpoint/anonymous_memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/text_weights.h"

namespace m3 {

// Replaces the linears of `weights` (attention, indexer, dense, shared and routed experts) that are stored as bf16,
// f16, f32 or mxfp8: scale = largest magnitude of the row / 448 in F32 (1 for a row of zeros), code = e4m3 of
// value / scale. fp8 weights with a scale a row keep their codes; 4-bit weights stay as they are. Codes and scales
// live in `memory`. Runs on all cores; `options.progress` is called on the calling thread.
// Errors: an unknown quantisation, an exclude pattern that names nothing, a weight that is not finite.
void quantize_online(const ModelConfig& config, const OpenOptions& options, TextWeights& weights,
                     AnonymousMemory& memory);

}  // namespace m3
