// A checkpoint on a backend with its memory: what engine, trace and benchmarks run on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "m3/engine.h"
#include "src/base/thread_pool.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/memory_plan.h"
#include "src/kv/page_pool.h"
#include "src/model/ragged_batch.h"
#include "src/model/text_model.h"
#include "src/model/vision_tower.h"
#include "src/ops/backends.h"

namespace m3::engine {

class Profile;

// Tokens of one pass where nobody says: a GPU's experts pay off with thousands.
inline constexpr std::int64_t host_batched_tokens = 512;
std::int64_t default_batched_tokens(const ops::Backend& backend);

// The largest picture in patches: 3584 x 3584 pixels, on a GPU of less than 64 GiB 2016 x 2016. On a GPU its memory is
// taken at the start (0.7 GB at M3's width), on the host as pictures need it.
inline constexpr std::int64_t largest_picture_patches = 65536, small_gpu_picture_patches = 20736;
std::int64_t default_vision_patches(const ops::Backend& backend);
inline constexpr std::int64_t vision_patches_by_backend = -1;

struct LoadedModelOptions {
  std::string device = "auto";  // "auto", "cuda", "cpu", "scalar"
  std::string isa;              // of "cpu": empty picks
  bool deterministic = false;   // of "cuda"; the others always are
  bool record_passes = true;    // on a device
  ops::Numerics numerics = ops::Numerics::bf16;
  int threads = 0;
  std::int64_t max_model_len = 0;                         // 0: what fits
  std::int64_t cache_bytes = 0;                           // all of it becomes pages; 0: what max_model_len needs
  std::int64_t max_batched_tokens = host_batched_tokens;  // 0: by the backend, see default_batched_tokens
  std::int64_t max_sequences = 1;
  std::int64_t max_logits_rows = 1;
  std::int64_t full_contexts = 1;          // sequences that may reach max_model_len at the same time
  std::int64_t wanted_contexts = 0;        // likewise, as far as memory goes; 0: no more than full_contexts
  double memory_utilization = 0.9;         // of the memory available: for working memory and cache
  std::string kv_cache_dtype = "bf16";     // "bf16", "fp8", "f32" (scalar only)
  std::string index_cache_dtype = "bf16";  // likewise
  std::int64_t vision_patches = 0;         // that attend to each other at most; 0: no pictures, nothing is planned
                                           // (also vision_patches_by_backend)
  std::int64_t feature_cache_bytes = 0;    // of pictures' features, which others keep in the host's memory
  std::int64_t other_picture_bytes = 0;    // likewise, of pictures on their way here
  std::optional<model::VisionBlocks> vision_blocks;  // how the tower's work is cut; tests
  Profile* profile = nullptr;                        // told of every operation; must outlive the model
  // Around the backend that `device` names; empty: nothing (tests).
  std::function<std::unique_ptr<ops::Backend>(std::unique_ptr<ops::Backend>)> wrap;
};

// What `options` say of device, memory and cache types; the sizes are left to the caller.
LoadedModelOptions loaded_model_options(const EngineOptions& options);

class LoadedModel {
 public:
  LoadedModel(Checkpoint checkpoint, const LoadedModelOptions& options);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  Checkpoint release_checkpoint() && { return std::move(checkpoint_); }
  const ModelConfig& config() const { return checkpoint_.config(); }
  ops::Backend& backend() { return *backend_; }
  // The backend's, and why `auto` left a GPU alone where it did.
  std::string description() const;
  ThreadPool& threads() { return threads_; }
  model::TextModel& model() { return *model_; }
  const model::TextModel& model() const { return *model_; }
  kv::PagePool& pages() { return *pages_; }
  const kv::PagePool& pages() const { return *pages_; }
  std::int64_t max_model_len() const { return plan_.max_model_len; }
  std::int64_t max_batched_tokens() const { return options_.max_batched_tokens; }
  // Seconds that the weights took to a device; 0 where they are used as they are mapped.
  double placing_seconds() const { return placing_seconds_; }
  std::int64_t workspace_bytes() const { return static_cast<std::int64_t>(workspace_.size()); }

  struct Place {
    std::int64_t logits_row = 0;             // of the planned ones, where this pass's begin
    const std::int32_t* previous = nullptr;  // ids that token ids below 0 refer to, in the backend's memory
  };
  // One forward pass; returns fp32 logits [rows.size(), vocab] in the backend's memory, valid until the next call.
  ops::Tensor forward(model::RaggedBatch& batch, std::span<const std::int32_t> logits_rows,
                      const model::ForwardTaps& taps, const model::ForwardOptions& options, const Place& place);
  ops::Tensor forward(model::RaggedBatch& batch, std::span<const std::int32_t> logits_rows,
                      const model::ForwardTaps& taps = {}, const model::ForwardOptions& options = {}) {
    return forward(batch, logits_rows, taps, options, Place{});
  }
  // The first `rows` rows of logits that passes since have left.
  ops::Tensor logits(std::int64_t rows) const {
    ops::Tensor logits = logits_;
    logits.rows = rows;
    return logits;
  }
  std::int64_t max_logits_rows() const { return options_.max_logits_rows; }

  // The vision tower; null where this model takes no pictures, and then no_pictures() is one line that says why.
  const model::VisionTower* tower() const { return tower_.get(); }
  const std::string& no_pictures() const { return no_pictures_; }
  std::int64_t vision_patches() const { return options_.vision_patches; }
  // Features [feature_rows, hidden] of one picture or clip, in the backend's activation type and the host's memory.
  std::vector<std::byte> picture_features(const model::PatchGrid& grid, std::span<const float> pixels);
  // For who computes features in pieces. The backend is the tower's own.
  model::VisionTower& vision_tower() { return *tower_; }
  ops::Backend& vision_backend() { return *vision_backend_; }

  // Whole pages, all parts of all layers.
  void copy_pages(std::span<const kv::SequencePages::Copy> copies);

 private:
  LoadedModelOptions options_;
  Checkpoint checkpoint_;
  ThreadPool threads_;
  std::string why_not(const ops::Backend& device) const;
  void make_backend();
  void make_memory();
  std::unique_ptr<ops::Backend> backend_;
  std::string not_cuda_;  // why `auto` left a GPU alone
  std::unique_ptr<model::TextModel> model_;
  double placing_seconds_ = 0;
  MemoryPlan plan_;
  ops::Limits limits_;
  ops::Memory workspace_;
  std::unique_ptr<kv::PagePool> pages_;
  ops::Tensor logits_;

  void make_tower();
  void place_weights();
  std::unique_ptr<ops::Backend> vision_backend_;  // a workspace of its own
  std::unique_ptr<model::VisionTower> tower_;
  ops::Memory vision_workspace_;
  std::string no_pictures_;
};

}  // namespace m3::engine
