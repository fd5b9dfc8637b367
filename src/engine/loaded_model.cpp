#include "src/engine/loaded_model.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/base/progress.h"
#include "src/engine/profile.h"
#include "src/engine/stopwatch.h"

namespace m3::engine {

namespace {

DType cache_dtype(const std::string& name, const char* flag, const std::string& backend) {
  if (name == "bf16" || name == "auto") return DType::bf16;
  if (name == "fp8" || name == "fp8_e4m3") return DType::f8_e4m3;
  if (name == "f32" && backend == "scalar") return DType::f32;
  fail_usage("{} {}: the cache holds bf16 or fp8{}", flag, name, backend == "scalar" ? " or f32" : "");
}

// Room beside the weights, without which "auto" leaves a device alone: working memory and a short context.
constexpr std::int64_t least_room = std::int64_t{1} << 30;

bool is_small_gpu(const ops::Backend& backend) {
  return !backend.has_host_memory() && backend.memory_state().total_bytes < std::int64_t{64} << 30;
}

}  // namespace

LoadedModelOptions loaded_model_options(const EngineOptions& options) {
  LoadedModelOptions loaded;
  loaded.device = options.device;
  loaded.threads = options.threads;
  loaded.deterministic = options.deterministic;
  loaded.record_passes = options.record_passes;
  loaded.memory_utilization = options.memory_utilization;
  loaded.max_model_len = options.max_model_len;
  loaded.kv_cache_dtype = options.kv_cache_dtype;
  loaded.index_cache_dtype = options.index_cache_dtype;
  return loaded;
}

LoadedModel::LoadedModel(Checkpoint checkpoint, const LoadedModelOptions& options)
    : options_(options), checkpoint_(std::move(checkpoint)), threads_(options.threads) {
  make_backend();
  if (options_.max_batched_tokens == 0)
    options_.max_batched_tokens = std::max(default_batched_tokens(*backend_), options_.max_sequences);
  if (options_.vision_patches == vision_patches_by_backend) options_.vision_patches = default_vision_patches(*backend_);
  if (options.wrap) backend_ = options.wrap(std::move(backend_));
  if (options.profile != nullptr) backend_ = make_profiled(std::move(backend_), *options.profile);
  model_ = std::make_unique<model::TextModel>(checkpoint_.config(), checkpoint_.weights(), *backend_);
  make_tower();
  make_memory();
}

std::int64_t default_batched_tokens(const ops::Backend& backend) {
  if (backend.has_host_memory()) return host_batched_tokens;
  return is_small_gpu(backend) ? 2048 : 8192;
}

std::int64_t default_vision_patches(const ops::Backend& backend) {
  return is_small_gpu(backend) ? small_gpu_picture_patches : largest_picture_patches;
}

// Why "auto" leaves a device alone; empty: it takes it.
std::string LoadedModel::why_not(const ops::Backend& device) const {
  if (std::string reason = device.refusal(model::TextModel::sizes(checkpoint_.config(), checkpoint_.weights()));
      !reason.empty()) {
    return reason;
  }
  const ops::MemoryState memory = device.memory_state();
  const std::int64_t usable = usable_bytes({.available_bytes = memory.free_bytes,
                                            .utilization = options_.memory_utilization,
                                            .total_bytes = memory.total_bytes});
  const std::int64_t vision = options_.vision_patches != 0 ? checkpoint_.vision_weight_bytes() : 0;
  const std::int64_t needed = checkpoint_.text_weight_bytes() + vision + least_room;
  if (needed <= usable) return {};
  return fmt::format("the weights and the least room beside them take {}, of which it has {}", human_bytes(needed),
                     human_bytes(usable));
}

// "auto": a CUDA device that takes the sizes and has room for the weights, else the processor.
void LoadedModel::make_backend() {
  std::string device = options_.device;
  if (device == "auto") {
    const bool plain = options_.numerics == ops::Numerics::bf16 && options_.kv_cache_dtype != "f32";
    if (plain && ops::no_cuda_reason().empty()) {
      backend_ = ops::make_backend({.name = "cuda", .deterministic = options_.deterministic}, threads_);
      not_cuda_ = why_not(*backend_);
      if (not_cuda_.empty()) return;
      backend_ = nullptr;
    }
    device = ops::cpu_backend_available() ? "cpu" : "scalar";
  }
  if (device != "cuda" && device != "cpu" && device != "scalar") {
    fail_usage("--device {}: this program runs on cuda, cpu, scalar (the slow, exact judge), or auto", device);
  }
  backend_ = ops::make_backend(
      {.name = device, .numerics = options_.numerics, .isa = options_.isa, .deterministic = options_.deterministic},
      threads_);
}

std::string LoadedModel::description() const {
  return backend_->description() + (not_cuda_.empty() ? "" : fmt::format(", not on the GPU ({})", not_cuda_));
}

void LoadedModel::make_memory() {
  const std::string device(backend_->name());
  const kv::PageLayout layout = kv::make_page_layout(
      model_->cache_layers(), cache_dtype(options_.kv_cache_dtype, "--kv-cache-dtype", device),
      cache_dtype(options_.index_cache_dtype, "--index-cache-dtype", device), model_->cache_fingerprint());
  const auto limits_for = [&](std::int64_t context) {
    ops::Limits limits =
        model_->limits(options_.max_batched_tokens, options_.max_sequences, context, options_.max_logits_rows);
    if (tower_) limits.feature_rows = options_.max_batched_tokens;
    return limits;
  };
  const std::int64_t logits_bytes = (options_.max_logits_rows * config().vocab_size * 4 + 255) / 256 * 256;
  const auto workspace_for = [&](std::int64_t context) {
    return model_->workspace_bytes(limits_for(context)) + logits_bytes;
  };
  const std::int64_t position_limit = config().max_context();
  const std::int64_t vision_bytes = tower_ ? tower_->workspace_bytes(options_.vision_patches) : 0;
  const std::int64_t picture_bytes =
      tower_ && backend_->has_host_memory() ? options_.feature_cache_bytes + options_.other_picture_bytes : 0;
  const MemoryNeeds needs{
      .page_bytes = layout.page_bytes,
      .workspace_bytes = workspace_for(options_.max_model_len > 0 ? options_.max_model_len : position_limit) +
                         vision_bytes + picture_bytes,
      .weight_bytes = model_->placed_bytes() + (tower_ ? tower_->placed_bytes() : 0)};
  const ops::MemoryState memory = backend_->memory_state();
  plan_ = plan_memory(needs, {.requested_len = options_.max_model_len,
                              .position_limit = position_limit,
                              .cache_limit = options_.cache_bytes,
                              .available_bytes = memory.free_bytes,
                              .utilization = options_.memory_utilization,
                              .total_bytes = backend_->has_host_memory() ? 0 : memory.total_bytes,
                              .full_contexts = options_.full_contexts,
                              .wanted_contexts = std::max(options_.wanted_contexts, options_.full_contexts)});
  limits_ = limits_for(plan_.max_model_len);
  ops::check_limits(*backend_, limits_);
  if (needs.weight_bytes > 0) place_weights();
  pages_ = std::make_unique<kv::PagePool>(layout, plan_.pages, backend_.get());

  workspace_ = backend_->allocate(workspace_for(plan_.max_model_len));
  const std::span<std::byte> all = workspace_.bytes();
  logits_ = {DType::f32, options_.max_logits_rows, config().vocab_size, config().vocab_size, all.data()};
  model_->bind_workspace(all.subspan(static_cast<std::size_t>(logits_bytes)), limits_);
  if (!tower_) return;
  // Planned for the largest picture; on the host it is taken from the system as pictures need it.
  vision_workspace_ = vision_backend_->allocate(vision_bytes);
  tower_->bind_workspace(vision_workspace_.bytes(), options_.vision_patches);
}

void LoadedModel::place_weights() {
  const Stopwatch watch(placing_seconds_);
  const std::int64_t text = model_->placed_bytes();
  const std::int64_t all = text + (tower_ ? tower_->placed_bytes() : 0);
  Progress progress("loading weights", all, "bytes");
  model_->place_weights(checkpoint_.made(), [&](std::int64_t done) { progress.update(done); });
  if (tower_) tower_->place_weights(checkpoint_.made(), [&](std::int64_t done) { progress.update(text + done); });
}

void LoadedModel::make_tower() {
  const ModelConfig& config = checkpoint_.config();
  if (!config.vision) {
    no_pictures_ = "this model takes no pictures: its config.json has no vision_config";
  } else if (options_.vision_patches <= 0 || checkpoint_.vision().layers.empty()) {
    no_pictures_ = "the vision tower was not loaded";
  } else if (config.vision->image_token_id < 0 && config.vision->video_token_id < 0) {
    no_pictures_ = "this model takes no pictures: image_token_index and video_token_index lie outside its vocabulary";
  } else {
    vision_backend_ = ops::make_backend({.name = std::string(backend_->name()),
                                         .numerics = options_.numerics,
                                         .isa = options_.isa,
                                         .deterministic = options_.deterministic,
                                         .background = true},
                                        threads_);
    if (options_.wrap) vision_backend_ = options_.wrap(std::move(vision_backend_));
    if (options_.profile != nullptr) vision_backend_ = make_profiled(std::move(vision_backend_), *options_.profile);
    try {
      tower_ = std::make_unique<model::VisionTower>(
          config, checkpoint_.vision(), *vision_backend_,
          options_.vision_blocks.value_or(model::VisionBlocks::of(*vision_backend_)));
    } catch (const Error& error) {
      no_pictures_ = error.what();
    }
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
                                 const model::ForwardTaps& taps, const model::ForwardOptions& given,
                                 const Place& place) {
  ops::Tensor logits = logits_;
  logits.rows = std::ssize(logits_rows);
  if (place.logits_row + logits.rows > options_.max_logits_rows) {
    fail_internal("{} rows of logits from {} on, planned for {}", logits.rows, place.logits_row,
                  options_.max_logits_rows);
  }
  logits.data = logits_.row(place.logits_row);
  model::ForwardOptions options = given;
  // One cache, one tensor of logits, one array of drawn ids. A profile looks at each operation of each pass.
  const bool looked_at = options_.profile != nullptr && options_.profile->enabled;
  options.repeatable = options_.record_passes && place.logits_row == 0 && !looked_at;
  model_->forward(batch.view(), *pages_, logits_rows, logits, place.previous, taps, options);
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
