// The checkpoints that tools/goldens wrote with transformers or from the formats' public definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/quantization.h"

namespace m3 {
namespace {

std::vector<std::filesystem::path> golden_folders() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(M3_TEST_DATA) / "goldens")) {
    if (std::filesystem::exists(entry.path() / "config.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

TEST(Goldens, EveryConfigReads) {
  const auto folders = golden_folders();
  ASSERT_FALSE(folders.empty());
  for (const auto& folder : folders) {
    SCOPED_TRACE(folder.filename().string());
    const ModelConfig config = read_config(folder);
    EXPECT_EQ(config.layers.size(), static_cast<std::size_t>(config.num_hidden_layers));
  }
}

TEST(Goldens, EveryCheckpointOpens) {
  int opened = 0;
  for (const auto& folder : golden_folders()) {
    if (!std::filesystem::exists(folder / "model.safetensors") &&
        !std::filesystem::exists(folder / "model.safetensors.index.json")) {
      continue;  // weights come from the seeded generator
    }
    SCOPED_TRACE(folder.filename().string());
    const Checkpoint checkpoint = Checkpoint::open(folder);
    EXPECT_GT(checkpoint.text_weight_bytes(), 0);
    ++opened;
  }
  EXPECT_GT(opened, 0);
}

// Which formats the layers' matrices of a golden checkpoint are in.
std::set<WeightFormat> formats(const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(std::filesystem::path(M3_TEST_DATA) / "goldens" / name);
  std::set<WeightFormat> found;
  for (const TextLayerWeights& layer : checkpoint.weights().layers) {
    found.insert(layer.q_proj.format);
    if (!layer.dense.gate.empty()) found.insert(layer.dense.gate.format);
    if (!layer.shared.gate.empty()) found.insert(layer.shared.gate.format);
    for (const ExpertWeights& expert : layer.experts) found.insert(expert.down.format);
  }
  return found;
}

TEST(Goldens, FormatsAreTold) {
  using enum WeightFormat;
  EXPECT_EQ(formats("mxfp8"), (std::set{mxfp8}));
  EXPECT_EQ(formats("nvfp4"), (std::set{mxfp8, nvfp4}));
  EXPECT_TRUE(formats("mxfp4").contains(mxfp4));
  EXPECT_TRUE(formats("mxfp4_attnfp8").contains(mxfp4));
  EXPECT_TRUE(formats("mxfp4_attnfp8").contains(fp8));
}

}  // namespace
}  // namespace m3
