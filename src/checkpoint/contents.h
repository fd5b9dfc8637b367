// What a Checkpoint owns.
#pragma once

#include <filesystem>
#include <vector>

#include "src/checkpoint/anonymous_memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/loader.h"

namespace m3 {

struct Checkpoint::Contents {
  std::filesystem::path directory;
  LoadedCheckpoint loaded;
  AnonymousMemory made;  // codes and scales of online quantisation, or random weights
  std::vector<RandomPiece> unmade;
};

}  // namespace m3
