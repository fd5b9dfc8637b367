// m3 bench --engine
#pragma once

#include <cstdint>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/cli/common.h"

namespace m3::cli {

struct EngineBenchOptions {
  ModelOptions model;
  std::string isa;
  std::vector<std::int64_t> concurrent;
  int repeats = 5;
  bool json = false;
};

// Prints the engine's decoding rate for each number of concurrent requests, as a share of the model's alone at the same
// batch, measured before and after it in the same run.
void bench_engine(Checkpoint checkpoint, const EngineBenchOptions& options);

}  // namespace m3::cli
