// Checkpoints in the published layout, made in a test and written to a directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/base/number_formats.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/seeded_weights.h"

namespace m3::test {

struct FileTensor {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

// The tensors of text model and vision tower by the seeded generator, published names: BF16; router, its bias and the
// patch embedding F32.
std::vector<FileTensor> seeded_tensors(const ModelConfig& config, std::uint64_t seed, const SeededGains& gains = {});

void write_safetensors(const std::filesystem::path& file, const std::vector<FileTensor>& tensors);

// config.json and model.safetensors, or `shards` files with an index.
void write_checkpoint(const std::filesystem::path& directory, const std::string& config_json,
                      const std::vector<FileTensor>& tensors, int shards = 1);

// Both at once.
void write_seeded_checkpoint(const std::filesystem::path& directory, const std::string& config_json, std::uint64_t seed,
                             const SeededGains& gains = {}, int shards = 1);

}  // namespace m3::test
