#include "src/model/text_model.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/model/carver.h"
#include "src/model/rotary.h"
#include "src/ops/backends.h"

namespace m3::model {

namespace {

ops::MlpWeights mlp_weights(const ExpertWeights& weights) { return {weights.gate, weights.up, weights.down}; }

}  // namespace

TextModel::TextModel(const ModelConfig& config, const TextWeights& weights, ops::Backend& backend)
    : config_(&config),
      backend_(&backend),
      sizes_(sizes(config, weights)),
      embed_tokens_(weights.embed_tokens),
      lm_head_(weights.lm_head),
      norm_(weights.norm),
      placement_(backend) {
  ops::check_limits(backend, sizes_);
  for (std::size_t i = 0; i < config.layers.size(); ++i) add_layer(config.layers[i], weights.layers[i]);
  Rotary rotary = make_rotary(config);
  inv_freq_ = std::move(rotary.inv_freq);
  inv_freq_placed_ = inv_freq_;
  rotary_factor_ = rotary.factor;

  placement_.add(embed_tokens_);
  placement_.add(inv_freq_placed_);
  for (Layer& layer : layers_) {
    for (WeightMatrix& weight : layer.qkv) placement_.add(weight);
    placement_.add(layer.o_proj);
    placement_.add(layer.router);
    for (ops::MlpWeights& expert : layer.experts) placement_.add(expert);
    for (ops::MlpWeights* mlp : {&layer.shared, &layer.dense}) placement_.add(*mlp);
    for (std::span<const float>* vector :
         {&layer.input_layernorm, &layer.post_attention_layernorm, &layer.q_norm, &layer.k_norm, &layer.index_q_norm,
          &layer.index_k_norm, &layer.router_bias}) {
      placement_.add(*vector);
    }
  }
  placement_.add(norm_);
  placement_.add(lm_head_);
}

void TextModel::add_layer(const LayerKind& kind, const TextLayerWeights& stored) {
  Layer& layer = layers_.emplace_back();
  layer.kind = kind;
  layer.input_layernorm = stored.input_layernorm;
  layer.post_attention_layernorm = stored.post_attention_layernorm;
  layer.qkv = {stored.q_proj, stored.k_proj, stored.v_proj};
  layer.q_norm = stored.q_norm;
  layer.k_norm = stored.k_norm;
  layer.o_proj = stored.o_proj;
  layer.k_scale = stored.k_scale;
  layer.v_scale = stored.v_scale;
  if (layer.chooses_blocks()) {
    layer.qkv.push_back(stored.index_q_proj);
    layer.qkv.push_back(stored.index_k_proj);
    layer.index_q_norm = stored.index_q_norm;
    layer.index_k_norm = stored.index_k_norm;
  }
  if (kind.moe) {
    layer.router = stored.router;
    layer.router_bias = stored.e_score_correction_bias;
    for (const ExpertWeights& expert : stored.experts) layer.experts.push_back(mlp_weights(expert));
    layer.shared = mlp_weights(stored.shared);
  } else {
    layer.dense = mlp_weights(stored.dense);
  }
}

ops::Limits TextModel::sizes(const ModelConfig& config, const TextWeights& weights) {
  ops::Limits sizes;
  sizes.hidden = config.hidden_size;
  sizes.query_heads = config.num_attention_heads;
  sizes.kv_heads = config.num_key_value_heads;
  sizes.widest_linear = (sizes.query_heads + 3 * sizes.kv_heads + 1) * head_dim;
  sizes.intermediate =
      std::max({config.intermediate_size, config.shared_intermediate_size, config.dense_intermediate_size});
  sizes.experts = config.num_local_experts;
  sizes.experts_per_token = config.num_experts_per_tok;
  sizes.topk_blocks = config.sparse_layers() > 0 ? config.topk_blocks : 0;
  sizes.vocab = config.vocab_size;
  const auto add = [&](const WeightMatrix& weight) {
    if (weight.scale_row_bytes() > 0) sizes.scaled_columns = std::max(sizes.scaled_columns, weight.columns);
  };
  const auto add_mlp = [&](const ExpertWeights& mlp) {
    for (const WeightMatrix* weight : {&mlp.gate, &mlp.up, &mlp.down}) add(*weight);
  };
  add(weights.lm_head);
  for (const TextLayerWeights& layer : weights.layers) {
    for (const WeightMatrix* weight : {&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj, &layer.index_q_proj,
                                       &layer.index_k_proj, &layer.router}) {
      add(*weight);
    }
    for (const ExpertWeights& expert : layer.experts) add_mlp(expert);
    add_mlp(layer.shared);
    add_mlp(layer.dense);
  }
  return sizes;
}

ops::Limits TextModel::limits(std::int64_t tokens, std::int64_t sequences, std::int64_t context,
                              std::int64_t logits_rows) const {
  ops::Limits limits = sizes_;
  limits.tokens = tokens;
  limits.sequences = sequences;
  // A sparse row may name top-k blocks even where the context is shorter.
  limits.context = std::max<std::int64_t>(context, limits.topk_blocks * block_size);
  limits.logits_rows = logits_rows;
  return limits;
}

void TextModel::bind_workspace(std::span<std::byte> workspace, const ops::Limits& limits) {
  limits_ = limits;
  Carver carver(workspace.data());
  const DType dtype = backend_->activation_dtype();
  const std::int64_t tokens = limits.tokens;
  at_.residual = carver.tensor(dtype, tokens, limits.hidden);
  at_.normed = carver.tensor(dtype, tokens, limits.hidden);
  at_.delta = carver.tensor(dtype, tokens, limits.hidden);
  at_.packed = carver.tensor(dtype, tokens, limits.widest_linear);
  at_.q = carver.tensor(dtype, tokens, limits.query_heads * head_dim);
  at_.attended = carver.tensor(dtype, tokens, limits.query_heads * head_dim);
  at_.index_q = carver.tensor(dtype, tokens, limits.kv_heads * head_dim);
  at_.rotary = carver.tensor(DType::f32, tokens, rotary_dim);
  const auto ints = [&](std::int64_t count) { return reinterpret_cast<std::int32_t*>(carver.take(count * 4)); };
  at_.block_ids = ints(tokens * limits.kv_heads * limits.topk_blocks);
  at_.routing.experts_per_token = config_->num_experts_per_tok;
  at_.routing.expert_ids = ints(tokens * limits.experts_per_token);
  at_.routing.expert_weights = reinterpret_cast<float*>(
      carver.take(tokens * limits.experts_per_token * static_cast<std::int64_t>(sizeof(float))));
  if (!backend_->has_host_memory()) upload_.bind(carver.take(BatchUpload::bytes(limits, dtype)), limits);
  const std::int64_t backend_bytes = backend_->workspace_bytes(limits);
  std::byte* rest = carver.take(backend_bytes);
  if (carver.used() > static_cast<std::int64_t>(workspace.size())) {
    fail_internal("a workspace of {} bytes where {} are needed", workspace.size(), carver.used());
  }
  backend_->bind_workspace({rest, static_cast<std::size_t>(backend_bytes)}, limits);
}

std::int64_t TextModel::workspace_bytes(const ops::Limits& limits) const {
  const auto word = static_cast<std::int64_t>(dtype_size(backend_->activation_dtype()));
  const std::int64_t row =
      word * (3 * limits.hidden + limits.widest_linear + (2 * limits.query_heads + limits.kv_heads) * head_dim) +
      4 * (rotary_dim + limits.kv_heads * limits.topk_blocks + 2 * limits.experts_per_token);
  const std::int64_t batch = backend_->has_host_memory() ? 0 : BatchUpload::bytes(limits, backend_->activation_dtype());
  return limits.tokens * row + batch + backend_->workspace_bytes(limits) + 16 * 64;  // 13 pieces, each rounded up to 64
}

void TextModel::set_rows(std::int64_t tokens) {
  for (ops::Tensor* tensor :
       {&at_.residual, &at_.normed, &at_.delta, &at_.packed, &at_.q, &at_.attended, &at_.index_q, &at_.rotary}) {
    tensor->rows = tokens;
  }
}

// One layer's attention: h -> q, k, v (and the indexer's pair) -> pages -> blocks -> output projection.
void TextModel::attention(const Layer& layer, const ops::Batch& batch, const ops::LayerPages& pages,
                          const ForwardOptions& options) {
  const int query_heads = config_->num_attention_heads;
  const int kv_heads = config_->num_key_value_heads;
  const int index_heads = layer.chooses_blocks() ? kv_heads : 0;

  ops::Tensor packed = at_.packed;
  packed.columns = (query_heads + 2 * kv_heads + (index_heads > 0 ? index_heads + 1 : 0)) * head_dim;
  packed.row_stride = packed.columns;
  backend_->linear(at_.normed, layer.qkv, packed);

  const ops::QkvFinish finish{.query_heads = query_heads,
                              .kv_heads = kv_heads,
                              .index_heads = index_heads,
                              .rotary_dim = rotary_dim,
                              .eps = config_->rms_norm_eps,
                              .gemma = true,
                              .q_norm = layer.q_norm,
                              .k_norm = layer.k_norm,
                              .index_q_norm = layer.index_q_norm,
                              .index_k_norm = layer.index_k_norm};
  backend_->qkv_finish(batch, finish, packed, at_.rotary, pages, at_.q, index_heads > 0 ? at_.index_q : ops::Tensor{});

  ops::Attention attention{.query_heads = query_heads, .kv_heads = kv_heads, .scale = 1.0f / std::sqrt(128.0f)};
  if (!layer.kind.sparse_attention) {
    backend_->attend_dense(batch, attention, at_.q, pages, at_.attended);
  } else {
    if (layer.chooses_blocks()) {
      const ops::SelectBlocks select{.index_heads = kv_heads,
                                     .topk = config_->topk_blocks,
                                     .init_blocks = config_->init_blocks,
                                     .local_blocks = config_->local_blocks,
                                     .dropped = options.dropped_blocks};
      backend_->select_blocks(batch, select, at_.index_q, pages, at_.block_ids);
    }
    attention.topk = config_->topk_blocks;
    backend_->attend_sparse(batch, attention, at_.q, pages, at_.block_ids, at_.attended);
  }
  backend_->linear(at_.attended, {&layer.o_proj, 1}, at_.delta);
}

void TextModel::feed_forward(const Layer& layer) {
  const ops::Activation activation{config_->swiglu_alpha, config_->swiglu_limit, config_->swiglu_beta};
  if (!layer.kind.moe) return backend_->mlp(at_.normed, layer.dense, activation, at_.delta);
  backend_->route(at_.normed, layer.router, layer.router_bias, at_.routing);
  backend_->experts(at_.normed, at_.routing, 0, layer.experts, &layer.shared, config_->routed_scaling_factor,
                    activation, at_.delta);
}

void TextModel::forward(const ops::Batch& batch, const kv::PagePool& pages, std::span<const std::int32_t> logits_rows,
                        const ops::Tensor& logits, const std::int32_t* previous, const ForwardTaps& taps,
                        const ForwardOptions& options) {
  if (batch.tokens > limits_.tokens || batch.sequences > limits_.sequences) {
    fail_internal("a batch of {} tokens in {} sequences, planned for {} in {}", batch.tokens, batch.sequences,
                  limits_.tokens, limits_.sequences);
  }
  if (backend_->has_host_memory()) return run(batch, pages, logits_rows, logits, previous, taps, options);
  const bool seen = !taps.boundaries.empty() || taps.on_final_norm || taps.on_block_ids || taps.on_routing;
  const BatchUpload::Uploaded up =
      upload_.upload(*backend_, batch, logits_rows, options.repeatable && !seen && options.dropped_blocks.empty());
  // Token ids below 0 refer to `previous`: with and without are two passes.
  const std::uint64_t key = up.key == 0 || previous == nullptr ? up.key : up.key | std::uint64_t{1} << 62;
  try {
    if (!backend_->begin_pass(key)) run(up.batch, pages, up.logits_rows, logits, previous, taps, options);
  } catch (...) {
    backend_->drop_pass();
    throw;
  }
  backend_->end_pass();
}

// The operations of a pass; all arrays in the backend's memory.
void TextModel::run(const ops::Batch& batch, const kv::PagePool& pages, std::span<const std::int32_t> logits_rows,
                    const ops::Tensor& logits, const std::int32_t* previous, const ForwardTaps& taps,
                    const ForwardOptions& options) {
  set_rows(batch.tokens);
  const auto show_residual = [&](int boundary) {
    if (taps.on_residual && std::ranges::count(taps.boundaries, boundary) > 0) taps.on_residual(boundary, at_.residual);
  };
  const auto norm = [&](std::span<const float> weight) {
    return ops::NormWeight{.weight = weight, .eps = config_->rms_norm_eps, .gemma = true};
  };

  backend_->embed(batch, embed_tokens_, previous, at_.residual);
  backend_->rotary_table(batch, inv_freq_placed_, rotary_factor_, at_.rotary);
  ops::Tensor delta;  // what the last layer adds; nothing before the first
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const Layer& layer = layers_[static_cast<std::size_t>(i)];
    ops::LayerPages layer_pages = pages.layer(i);
    layer_pages.k_scale = layer.k_scale;
    layer_pages.v_scale = layer.v_scale;

    backend_->add_norm(at_.residual, delta, norm(layer.input_layernorm), at_.normed, nullptr);
    show_residual(i);
    attention(layer, batch, layer_pages, options);
    if (taps.on_block_ids && layer.kind.sparse_attention) taps.on_block_ids(i, at_.block_ids);
    backend_->add_norm(at_.residual, at_.delta, norm(layer.post_attention_layernorm), at_.normed, nullptr);
    feed_forward(layer);
    if (taps.on_routing && layer.kind.moe) taps.on_routing(i, at_.routing);
    delta = at_.delta;
  }
  backend_->add_norm(at_.residual, delta, norm(norm_), at_.normed, nullptr);
  show_residual(static_cast<int>(layers_.size()));
  if (taps.on_final_norm) taps.on_final_norm(at_.normed);
  if (!logits_rows.empty()) backend_->logits(at_.normed, logits_rows, lm_head_, logits);
}

std::vector<kv::LayerCache> TextModel::cache_layers() const {
  std::vector<kv::LayerCache> caches;
  for (const Layer& layer : layers_) {
    caches.push_back({.kv_heads = config_->num_key_value_heads, .index_k = layer.chooses_blocks()});
  }
  return caches;
}

std::string TextModel::cache_fingerprint() const {
  std::string schedule;
  for (const Layer& layer : layers_) schedule += layer.chooses_blocks() ? 'C' : layer.kind.sparse_attention ? 'S' : 'D';
  return fmt::format("hidden={};kv={};theta={};layers={}", config_->hidden_size, config_->num_key_value_heads,
                     config_->rope_theta, schedule);
}

std::int64_t TextModel::active_weight_bytes() const {
  const auto bytes = [](const ops::MlpWeights& weights) {
    return weights.gate.stored_bytes() + weights.up.stored_bytes() + weights.down.stored_bytes();
  };
  std::int64_t total = lm_head_.stored_bytes();
  for (const Layer& layer : layers_) {
    for (const WeightMatrix& weight : layer.qkv) total += weight.stored_bytes();
    total += layer.o_proj.stored_bytes();
    if (layer.kind.moe) {
      total += layer.router.stored_bytes() + bytes(layer.shared);
      total += bytes(layer.experts.front()) * config_->num_experts_per_tok;
    } else {
      total += bytes(layer.dense);
    }
  }
  return total;
}

}  // namespace m3::model
