// Reading every weight of a checkpoint once, to see that it holds numbers.
#pragma once

#include <vector>

#include "src/checkpoint/inspection.h"
#include "src/checkpoint/loader.h"

namespace m3 {

// Ranges by scheme, in the order of the file; every tensor with a value or scale that is no finite number becomes a
// problem. Runs on all cores.
std::vector<ValueRange> deep_scan(const LoadedCheckpoint& loaded, ProblemList& problems, const ReadProgress& progress);

// "language_model.model.layers.3.block_sparse_moe.experts.7.w1" -> "layers.*.block_sparse_moe.experts.*.w1"
std::string scheme_name(const std::string& module);

}  // namespace m3
