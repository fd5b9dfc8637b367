#include "src/checkpoint/checkpoint.h"

#include <utility>

#include "src/base/error.h"
#include "src/checkpoint/contents.h"
#include "src/checkpoint/loader.h"
#include "src/checkpoint/quantize_online.h"

namespace m3 {

Checkpoint::Checkpoint(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const std::filesystem::path& directory, const OpenOptions& options) {
  auto contents = std::make_unique<Contents>();
  contents->directory = directory;
  contents->loaded = load_checkpoint(directory);
  LoadedCheckpoint& loaded = contents->loaded;
  loaded.problems.check(directory.string());
  if (!options.quantization.empty()) {
    quantize_online(loaded.config, options, loaded.weights, contents->made);
  } else if (!options.quantization_exclude.empty()) {
    fail_usage("quantisation exclude patterns were given without a quantisation; accepted: ptpc_fp8");
  }
  return Checkpoint(std::move(contents));
}

const ModelConfig& Checkpoint::config() const { return contents_->loaded.config; }
const TextWeights& Checkpoint::weights() const { return contents_->loaded.weights; }
const VisionWeights& Checkpoint::vision() const { return contents_->loaded.vision; }
const std::filesystem::path& Checkpoint::directory() const { return contents_->directory; }

std::int64_t Checkpoint::text_weight_bytes() const {
  return text_bytes(contents_->loaded.config, contents_->loaded.weights);
}

std::int64_t Checkpoint::vision_weight_bytes() const { return contents_->loaded.vision_bytes; }

}  // namespace m3
