// A checkpoint on a backend with its memory: what engine, trace and benchmarks run on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

struct LoadedModelOptions {
  std::string device = "auto";  // "auto", "cpu", "scalar"
  std::string isa;              // of "cpu": empty picks
  ops::Numerics numerics = ops::Numerics::bf16;
  int threads = 0;
  std::int64_t max_model_len = 0;  // 0: what fits
  std::int64_t cache_bytes = 0;    // all of it becomes pages; 0: what max_model_len needs
  std::int64_t max_batched_tokens = 512;
  std::int64_t max_sequences = 1;
  std::int64_t max_logits_rows = 1;
  std::int64_t full_contexts = 1;          // sequences that may reach max_model_len at the same time
  std::int64_t wanted_contexts = 0;        // likewise, as far as memory goes; 0: no more than full_contexts
  double memory_utilization = 0.9;         // of the memory available: for working memory and cache
  std::string kv_cache_dtype = "bf16";     // "bf16", "fp8", "f32" (scalar only)
  std::string index_cache_dtype = "bf16";  // likewise
  std::int64_t vision_patches = 0;         // that attend to each other at most; 0: no pictures, nothing is planned
  std::int64_t feature_cache_bytes = 0;    // of pictures' features, which others keep: left free in the plan
  Profile* profile = nullptr;              // told of every operation; must outlive the model
};

// "auto" as the name of a backend: cpu where this machine can run it, else scalar.
std::string resolve_device(const std::string& device);

class LoadedModel {
 public:
  LoadedModel(Checkpoint checkpoint, const LoadedModelOptions& options);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  Checkpoint release_checkpoint() && { return std::move(checkpoint_); }
  const ModelConfig& config() const { return checkpoint_.config(); }
  ops::Backend& backend() { return *backend_; }
  ThreadPool& threads() { return threads_; }
  model::TextModel& model() { return *model_; }
  const model::TextModel& model() const { return *model_; }
  kv::PagePool& pages() { return *pages_; }
  const kv::PagePool& pages() const { return *pages_; }
  std::int64_t max_model_len() const { return plan_.max_model_len; }
  std::int64_t max_batched_tokens() const { return options_.max_batched_tokens; }
  std::int64_t workspace_bytes() const { return static_cast<std::int64_t>(workspace_->size()); }

  // One forward pass; returns fp32 logits [rows.size(), vocab], valid until the next call.
  ops::Tensor forward(model::RaggedBatch& batch, std::span<const std::int32_t> logits_rows,
                      const model::ForwardTaps& taps = {}, const model::ForwardOptions& options = {});

  // The vision tower; null where this model takes no pictures, and then no_pictures() is one line that says why.
  const model::VisionTower* tower() const { return tower_.get(); }
  const std::string& no_pictures() const { return no_pictures_; }
  std::int64_t vision_patches() const { return options_.vision_patches; }
  // Features [feature_rows, hidden] of one picture or clip, in the backend's activation type.
  std::vector<std::byte> picture_features(const model::PatchGrid& grid, std::span<const float> pixels);

  // Whole pages, all parts of all layers.
  void copy_pages(std::span<const kv::SequencePages::Copy> copies);

 private:
  // Anonymous memory, zero pages until written.
  class Memory {
   public:
    explicit Memory(std::int64_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::size_t size() const { return size_; }
    std::span<std::byte> bytes() const { return {data_, size_}; }

   private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
  };

  LoadedModelOptions options_;
  Checkpoint checkpoint_;
  ThreadPool threads_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<model::TextModel> model_;
  MemoryPlan plan_;
  ops::Limits limits_;
  std::unique_ptr<Memory> workspace_;
  std::unique_ptr<kv::PagePool> pages_;
  ops::Tensor logits_;

  void make_tower();
  std::unique_ptr<ops::Backend> vision_backend_;  // a workspace of its own
  std::unique_ptr<model::VisionTower> tower_;
  std::unique_ptr<Memory> vision_workspace_;
  std::string no_pictures_;
};

}  // namespace m3::engine
