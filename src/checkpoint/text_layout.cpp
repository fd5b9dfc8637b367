#include "src/checkpoint/text_layout.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/error.h"

namespace m3 {

namespace {

class Walk {
 public:
  Walk(const ModelConfig& config, TextVisitor& visitor) : config_(config), visitor_(visitor) {}

  void at(std::string prefix, int layer) {
    prefix_ = std::move(prefix);
    layer_ = layer;
  }

  void linear(const std::string& module, ParameterGroup group, std::int64_t rows, std::int64_t columns,
              WeightMatrix& weight, FusedPlace fused = {}) {
    if (!fused.module.empty()) fused.module.insert(0, prefix_);
    visitor_.linear({prefix_ + module, "weight", group, layer_, rows, columns, std::move(fused)}, weight);
  }

  void matrix(const std::string& module, ParameterGroup group, std::int64_t rows, std::int64_t columns,
              WeightMatrix& weight) {
    visitor_.matrix({prefix_ + module, "weight", group, layer_, rows, columns, {}}, weight);
  }

  void vector(const std::string& module, ParameterGroup group, std::int64_t size, std::vector<float>& values,
              std::string_view part = "weight") {
    visitor_.vector({prefix_ + module, part, group, layer_, size, 0, {}}, values);
  }

  // gate, up and down; `fused` names the tensor that may hold gate's and up's rows together.
  void mlp(const std::string& module, ParameterGroup group, std::int64_t width, ExpertWeights& weights) {
    const std::int64_t hidden = config_.hidden_size;
    const auto fused = [&](std::int64_t first) { return FusedPlace{module + ".gate_up_proj", {2 * width}, first}; };
    linear(module + ".gate_proj", group, width, hidden, weights.gate, fused(0));
    linear(module + ".up_proj", group, width, hidden, weights.up, fused(width));
    linear(module + ".down_proj", group, hidden, width, weights.down);
  }

  void attention(const LayerKind& kind, TextLayerWeights& layer) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t query = std::int64_t{config_.num_attention_heads} * head_dim;
    const std::int64_t key = std::int64_t{config_.num_key_value_heads} * head_dim;
    constexpr auto group = ParameterGroup::attention;
    linear("self_attn.q_proj", group, query, hidden, layer.q_proj);
    linear("self_attn.k_proj", group, key, hidden, layer.k_proj);
    linear("self_attn.v_proj", group, key, hidden, layer.v_proj);
    linear("self_attn.o_proj", group, hidden, query, layer.o_proj);
    vector("self_attn.q_norm", ParameterGroup::norms, head_dim, layer.q_norm);
    vector("self_attn.k_norm", ParameterGroup::norms, head_dim, layer.k_norm);
    if (!kind.sparse_attention) return;
    linear("self_attn.index_q_proj", ParameterGroup::indexer, key, hidden, layer.index_q_proj);
    linear("self_attn.index_k_proj", ParameterGroup::indexer, head_dim, hidden, layer.index_k_proj);
    vector("self_attn.index_q_norm", ParameterGroup::norms, head_dim, layer.index_q_norm);
    vector("self_attn.index_k_norm", ParameterGroup::norms, head_dim, layer.index_k_norm);
  }

  void experts(TextLayerWeights& layer) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t count = config_.num_local_experts;
    const std::int64_t width = config_.intermediate_size;
    matrix("block_sparse_moe.gate", ParameterGroup::router, count, hidden, layer.router);
    vector("block_sparse_moe", ParameterGroup::router, count, layer.e_score_correction_bias, "e_score_correction_bias");
    constexpr auto group = ParameterGroup::routed_experts;
    layer.experts.resize(static_cast<std::size_t>(count));
    for (std::int64_t e = 0; e < count; ++e) {
      ExpertWeights& expert = layer.experts[static_cast<std::size_t>(e)];
      const std::string module = fmt::format("block_sparse_moe.experts.{}.", e);
      const auto gate_up = [&](std::int64_t first) {
        return FusedPlace{"block_sparse_moe.experts.gate_up_proj", {count, 2 * width}, e * 2 * width + first};
      };
      linear(module + "w1", group, width, hidden, expert.gate, gate_up(0));
      linear(module + "w2", group, hidden, width, expert.down,
             {"block_sparse_moe.experts.down_proj", {count, hidden}, e * hidden});
      linear(module + "w3", group, width, hidden, expert.up, gate_up(width));
    }
    mlp("block_sparse_moe.shared_experts", ParameterGroup::shared_experts, config_.shared_intermediate_size,
        layer.shared);
  }

 private:
  const ModelConfig& config_;
  TextVisitor& visitor_;
  std::string prefix_;
  int layer_ = -1;
};

}  // namespace

std::string_view parameter_group_name(ParameterGroup group) {
  constexpr std::array<std::string_view, parameter_groups> names = {
      "routed experts", "attention",           "shared experts", "lm_head", "embedding", "dense MLP",
      "vision tower",   "projector and merge", "indexer",        "router",  "norms"};
  return names.at(static_cast<std::size_t>(group));
}

void visit_text(const ModelConfig& config, TextWeights& weights, TextVisitor& visitor) {
  weights.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  Walk walk(config, visitor);
  walk.at("language_model.model.", -1);
  walk.matrix("embed_tokens", ParameterGroup::embedding, config.vocab_size, config.hidden_size, weights.embed_tokens);
  for (int n = 0; n < config.num_hidden_layers; ++n) {
    TextLayerWeights& layer = weights.layers[static_cast<std::size_t>(n)];
    const LayerKind& kind = config.layers[static_cast<std::size_t>(n)];
    walk.at(fmt::format("language_model.model.layers.{}.", n), n);
    walk.vector("input_layernorm", ParameterGroup::norms, config.hidden_size, layer.input_layernorm);
    walk.vector("post_attention_layernorm", ParameterGroup::norms, config.hidden_size, layer.post_attention_layernorm);
    walk.attention(kind, layer);
    if (kind.moe) {
      walk.experts(layer);
    } else {
      walk.mlp("mlp", ParameterGroup::dense_mlp, config.dense_intermediate_size, layer.dense);
    }
  }
  walk.at("language_model.model.", -1);
  walk.vector("norm", ParameterGroup::norms, config.hidden_size, weights.norm);
  if (config.tie_word_embeddings) return;
  walk.at("language_model.", -1);
  walk.matrix("lm_head", ParameterGroup::lm_head, config.vocab_size, config.hidden_size, weights.lm_head);
}

void read_text(const ModelConfig& config, const TextWeights& weights, TextReader& reader) {
  class Adapter : public TextVisitor {
   public:
    explicit Adapter(TextReader& target) : target_(target) {}
    void linear(const LayoutEntry& entry, WeightMatrix& weight) override { target_.matrix(entry, weight, true); }
    void matrix(const LayoutEntry& entry, WeightMatrix& weight) override { target_.matrix(entry, weight, false); }
    void vector(const LayoutEntry& entry, std::vector<float>& values) override { target_.vector(entry, values); }

   private:
    TextReader& target_;
  };
  Adapter adapter(reader);
  // Only sizes could change in the walk, and these are already the config's.
  visit_text(config, const_cast<TextWeights&>(weights), adapter);
}

}  // namespace m3
