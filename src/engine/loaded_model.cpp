#include "src/engine/loaded_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/engine/profile.h"

namespace m3::engine {

namespace {

DType cache_dtype(const std::string& name, const char* flag, const std::string& backend) {
  if (name == "bf16" || name == "auto") return DType::bf16;
  if (name == "fp8" || name == "fp8_e4m3") return DType::f8_e4m3;
  if (name == "f32" && backend == "scalar") return DType::f32;
  fail_usage("{} {}: the cache holds bf16 or fp8{}", flag, name, backend == "scalar" ? " or f32" : "");
}

}  // namespace

std::string resolve_device(const std::string& device) {
  if (device == "auto") return ops::cpu_backend_available() ? "cpu" : "scalar";
  if (device == "cpu" || device == "scalar") return device;
  fail_usage("--device {}: this program runs on cpu, scalar (the slow, exact judge), or auto", device);
}

LoadedModel::Memory::Memory(std::int64_t bytes) : size_(static_cast<std::size_t>(bytes)) {
  void* memory = ::mmap(nullptr, std::max<std::size_t>(size_, 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail_resource("cannot get {} of working memory: {}", human_bytes(bytes), std::strerror(errno));
  data_ = static_cast<std::byte*>(memory);
}

LoadedModel::Memory::~Memory() { ::munmap(data_, std::max<std::size_t>(size_, 1)); }

LoadedModel::LoadedModel(Checkpoint checkpoint, const LoadedModelOptions& options)
    : options_(options), checkpoint_(std::move(checkpoint)), threads_(options.threads) {
  const std::string device = resolve_device(options.device);
  backend_ = ops::make_backend({.name = device, .numerics = options.numerics, .isa = options.isa}, threads_);
  if (options.profile != nullptr) backend_ = make_profiled(std::move(backend_), *options.profile);
  model_ = std::make_unique<model::TextModel>(checkpoint_.config(), checkpoint_.weights(), *backend_);

  make_tower();
  const kv::PageLayout layout = kv::make_page_layout(
      model_->cache_layers(), cache_dtype(options.kv_cache_dtype, "--kv-cache-dtype", device),
      cache_dtype(options.index_cache_dtype, "--index-cache-dtype", device), model_->cache_fingerprint());
  const auto limits_for = [&](std::int64_t context) {
    return model_->limits(options.max_batched_tokens, options.max_sequences, context, options.max_logits_rows);
  };
  const std::int64_t logits_bytes = (options.max_logits_rows * config().vocab_size * 4 + 63) / 64 * 64;
  const auto workspace_for = [&](std::int64_t context) {
    return model_->workspace_bytes(limits_for(context)) + logits_bytes;
  };
  const std::int64_t position_limit = config().max_context();
  const MemoryNeeds needs{
      .page_bytes = layout.page_bytes,
      .workspace_bytes =
          workspace_for(options.max_model_len > 0 ? options.max_model_len : position_limit) +
          (tower_ ? static_cast<std::int64_t>(vision_workspace_->size()) + options.feature_cache_bytes : 0),
      .weight_bytes = 0};
  plan_ = plan_memory(needs, {.requested_len = options.max_model_len,
                              .position_limit = position_limit,
                              .cache_limit = options.cache_bytes,
                              .available_bytes = available_memory_bytes(),
                              .utilization = options.memory_utilization,
                              .full_contexts = options.full_contexts,
                              .wanted_contexts = std::max(options.wanted_contexts, options.full_contexts)});
  pages_ = std::make_unique<kv::PagePool>(layout, plan_.pages);

  limits_ = limits_for(plan_.max_model_len);
  workspace_ = std::make_unique<Memory>(workspace_for(plan_.max_model_len));
  const std::span<std::byte> memory = workspace_->bytes();
  logits_ = {DType::f32, options.max_logits_rows, config().vocab_size, config().vocab_size, memory.data()};
  model_->bind_workspace(memory.subspan(static_cast<std::size_t>(logits_bytes)), limits_);
}

// Its memory is planned for the largest picture, and taken from the system as pictures need it.
void LoadedModel::make_tower() {
  const ModelConfig& config = checkpoint_.config();
  if (!config.vision) {
    no_pictures_ = "this model takes no pictures: its config.json has no vision_config";
  } else if (options_.vision_patches <= 0 || checkpoint_.vision().layers.empty()) {
    no_pictures_ = "the vision tower was not loaded";
  } else if (config.vision->image_token_id < 0 && config.vision->video_token_id < 0) {
    no_pictures_ = "this model takes no pictures: image_token_index and video_token_index lie outside its vocabulary";
  } else {
    vision_backend_ = ops::make_backend(
        {.name = std::string(backend_->name()), .numerics = options_.numerics, .isa = options_.isa}, threads_);
    if (options_.profile != nullptr) vision_backend_ = make_profiled(std::move(vision_backend_), *options_.profile);
    try {
      tower_ = std::make_unique<model::VisionTower>(config, checkpoint_.vision(), *vision_backend_);
    } catch (const Error& error) {
      no_pictures_ = error.what();
      return;
    }
    vision_workspace_ = std::make_unique<Memory>(tower_->workspace_bytes(options_.vision_patches));
    tower_->bind_workspace(vision_workspace_->bytes(), options_.vision_patches);
  }
}

std::vector<std::byte> LoadedModel::picture_features(const model::PatchGrid& grid, std::span<const float> pixels) {
  const std::int64_t rows = tower_->feature_rows(grid);
  const std::int64_t columns = tower_->feature_columns();
  std::vector<std::byte> features(static_cast<std::size_t>(rows * columns) * dtype_size(tower_->feature_dtype()));
  tower_->forward({&grid, 1}, pixels, {tower_->feature_dtype(), rows, columns, columns, features.data()});
  return features;
}

ops::Tensor LoadedModel::forward(model::RaggedBatch& batch, std::span<const std::int32_t> logits_rows,
                                 const model::ForwardTaps& taps, const model::ForwardOptions& options) {
  if (static_cast<std::int64_t>(logits_rows.size()) > options_.max_logits_rows) {
    fail_internal("{} rows of logits, planned for {}", logits_rows.size(), options_.max_logits_rows);
  }
  ops::Tensor logits = logits_;
  logits.rows = static_cast<std::int64_t>(logits_rows.size());
  model_->forward(batch.view(), *pages_, logits_rows, logits, nullptr, taps, options);
  return logits;
}

void LoadedModel::copy_pages(std::span<const kv::SequencePages::Copy> copies) {
  std::vector<std::int32_t> from, to;
  for (const kv::SequencePages::Copy& copy : copies) {
    from.push_back(copy.from);
    to.push_back(copy.to);
  }
  for (int i = 0; i < config().num_hidden_layers; ++i) {
    const ops::LayerPages layer = pages_->layer(i);
    for (const ops::PagePart& part : {layer.k, layer.v, layer.index_k}) {
      if (part.data != nullptr) backend_->copy_pages(part, from, to);
    }
  }
}

}  // namespace m3::engine
