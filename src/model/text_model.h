// The text decoder, written once against ops.h (spec §3).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/checkpoint/config.h"
#include "src/checkpoint/text_weights.h"
#include "src/kv/page_layout.h"
#include "src/kv/page_pool.h"
#include "src/model/batch_upload.h"
#include "src/model/weight_placement.h"
#include "src/ops/ops.h"

namespace m3::model {

// What a forward pass lets others see. Empty functions cost nothing.
struct ForwardTaps {
  // Residual after `boundary` layers, [T, hidden]: 0 = embedding, layers = after the last, reduced over ranks.
  std::vector<int> boundaries;
  std::function<void(int boundary, const ops::Tensor& residual)> on_residual;
  std::function<void(const ops::Tensor& normed)> on_final_norm;
  // [T, kv heads, topk] of a sparse layer (a reusing layer shows what it reused).
  std::function<void(int layer, const std::int32_t* block_ids)> on_block_ids;
  std::function<void(int layer, const ops::Routing& routing)> on_routing;
};

// Where a caller intervenes (m3 trace).
struct ForwardOptions {
  std::span<const std::int32_t> dropped_blocks;  // may not be chosen by the indexer
  // Pages, logits and `previous` are the same memory in every pass that says so while the workspace stays bound.
  bool repeatable = false;
};

class TextModel {
 public:
  // What the model's own sizes are, of the maxima that a backend plans for.
  static ops::Limits sizes(const ModelConfig& config, const TextWeights& weights);

  // Config and weights are borrowed and must outlive the model, as must the backend. Errors: the backend refuses the sizes.
  TextModel(const ModelConfig& config, const TextWeights& weights, ops::Backend& backend);
  TextModel(const TextModel&) = delete;  // the placement knows where its parts stand
  TextModel& operator=(const TextModel&) = delete;

  // Memory of the backend that the weights take: 0 where it uses them as they are mapped.
  std::int64_t placed_bytes() const { return placement_.bytes(); }
  // Brings the weights there; before the first forward pass, if placed_bytes() is not 0. See WeightPlacement::place.
  void place_weights(std::span<const RandomPiece> made, const std::function<void(std::int64_t)>& progress) {
    placement_.place(made, progress);
  }

  const ModelConfig& config() const { return *config_; }

  // Maxima for a forward pass of up to `tokens` rows over `sequences` sequences.
  ops::Limits limits(std::int64_t tokens, std::int64_t sequences, std::int64_t context, std::int64_t logits_rows) const;
  // Bytes for activations and the backend's own workspace.
  std::int64_t workspace_bytes(const ops::Limits& limits) const;
  // 64-byte aligned memory of at least workspace_bytes(limits); bound until the next call.
  void bind_workspace(std::span<std::byte> workspace, const ops::Limits& limits);

  // `batch` and `logits_rows` lie in the host's memory, all else in the backend's, `previous` too.
  // Runs the batch, writes its K, V and index-K into `pages`, and puts the fp32 logits of `logits_rows` (rows of the
  // batch) into `logits` [rows, vocab]. `previous`: the step before's sampled ids, for token ids < 0.
  void forward(const ops::Batch& batch, const kv::PagePool& pages, std::span<const std::int32_t> logits_rows,
               const ops::Tensor& logits, const std::int32_t* previous = nullptr, const ForwardTaps& taps = {},
               const ForwardOptions& options = {});

  // What pages hold for this model; `index_k` only on layers that compute a choice of blocks.
  std::vector<kv::LayerCache> cache_layers() const;
  // Names everything that decides what a page contains, dtypes apart.
  std::string cache_fingerprint() const;

  // Bytes of weights read for one decoded token at batch 1.
  std::int64_t active_weight_bytes() const;

 private:
  struct Layer {
    LayerKind kind;
    std::span<const float> input_layernorm, post_attention_layernorm;
    std::vector<WeightMatrix> qkv;  // q, k, v and, where blocks are chosen here, index_q, index_k
    std::span<const float> q_norm, k_norm, index_q_norm, index_k_norm;
    WeightMatrix o_proj;
    float k_scale = 1, v_scale = 1;
    WeightMatrix router;
    std::span<const float> router_bias;
    std::vector<ops::MlpWeights> experts;
    ops::MlpWeights shared, dense;
    bool chooses_blocks() const { return kind.sparse_attention && !kind.reuses_blocks; }
  };
  // Activations of one forward pass, views into the workspace.
  struct Activations {
    ops::Tensor residual, normed, packed, q, index_q, attended, delta, rotary;
    std::int32_t* block_ids = nullptr;
    ops::Routing routing;
  };

  void add_layer(const LayerKind& kind, const TextLayerWeights& stored);
  void run(const ops::Batch& batch, const kv::PagePool& pages, std::span<const std::int32_t> logits_rows,
           const ops::Tensor& logits, const std::int32_t* previous, const ForwardTaps& taps,
           const ForwardOptions& options);
  void attention(const Layer& layer, const ops::Batch& batch, const ops::LayerPages& pages,
                 const ForwardOptions& options);
  void feed_forward(const Layer& layer);
  void set_rows(std::int64_t tokens);

  const ModelConfig* config_;
  ops::Backend* backend_;
  ops::Limits sizes_;
  WeightMatrix embed_tokens_, lm_head_;
  std::span<const float> norm_;
  std::vector<Layer> layers_;
  std::vector<float> inv_freq_;
  std::span<const float> inv_freq_placed_;
  float rotary_factor_ = 1;  // YaRN's factor on cos and sin
  WeightPlacement placement_;
  ops::Limits limits_;
  Activations at_;
  BatchUpload upload_;  // where memory is a device's
};

}  // namespace m3::model
