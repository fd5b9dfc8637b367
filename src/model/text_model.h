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
};

class TextModel {
 public:
  // Config and weights are borrowed and must outlive the model, as must the backend.
  TextModel(const ModelConfig& config, const TextWeights& weights, ops::Backend& backend);

  const ModelConfig& config() const { return *config_; }

  // Maxima for a forward pass of up to `tokens` rows over `sequences` sequences.
  ops::Limits limits(std::int64_t tokens, std::int64_t sequences, std::int64_t context, std::int64_t logits_rows) const;
  // Bytes for activations and the backend's own workspace.
  std::int64_t workspace_bytes(const ops::Limits& limits) const;
  // 64-byte aligned memory of at least workspace_bytes(limits); bound until the next call.
  void bind_workspace(std::span<std::byte> workspace, const ops::Limits& limits);

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
    const TextLayerWeights* weights = nullptr;
    std::vector<WeightMatrix> qkv;  // q, k, v and, where blocks are chosen here, index_q, index_k
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

  void attention(const Layer& layer, const ops::Batch& batch, const ops::LayerPages& pages,
                 const ForwardOptions& options);
  void feed_forward(const Layer& layer);
  void set_rows(std::int64_t tokens);

  const ModelConfig* config_;
  const TextWeights* weights_;
  ops::Backend* backend_;
  std::vector<Layer> layers_;
  std::vector<float> inv_freq_;
  float rotary_factor_ = 1;  // YaRN's factor on cos and sin
  ops::Limits limits_;
  Activations at_;
};

}  // namespace m3::model
