#include "src/checkpoint/vision_layout.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <utility>

namespace m3 {

namespace {

class Walk {
 public:
  explicit Walk(VisionVisitor& visitor) : visitor_(visitor) {}

  void at(std::string prefix, ParameterGroup group) {
    prefix_ = std::move(prefix);
    group_ = group;
  }
  void matrix(const std::string& module, std::vector<std::int64_t> shape, WeightMatrix& weight) {
    visitor_.matrix({prefix_ + module + ".weight", std::move(shape), group_}, weight);
  }
  void norm(const std::string& module, std::int64_t size, VisionNorm& norm) {
    visitor_.vector({prefix_ + module + ".bias", {size}, group_}, norm.bias);
    visitor_.vector({prefix_ + module + ".weight", {size}, group_}, norm.weight);
  }
  void linear(const std::string& module, std::int64_t rows, std::int64_t columns, VisionLinear& linear) {
    visitor_.vector({prefix_ + module + ".bias", {rows}, group_}, linear.bias);
    matrix(module, {rows, columns}, linear.weight);
  }

 private:
  VisionVisitor& visitor_;
  std::string prefix_;
  ParameterGroup group_ = ParameterGroup::vision_tower;
};

}  // namespace

std::int64_t VisionEntry::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void visit_vision(const ModelConfig& config, VisionWeights& weights, VisionVisitor& visitor) {
  if (!config.vision) return;
  const VisionConfig& vision = *config.vision;
  const std::int64_t width = vision.hidden_size;
  const std::int64_t inner = vision.intermediate_size;
  Walk walk(visitor);
  const std::string tower = "vision_tower.vision_model.";
  walk.at(tower, ParameterGroup::vision_tower);
  walk.matrix("embeddings.patch_embedding",
              {width, vision.num_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size},
              weights.patch_embedding);
  walk.norm("pre_layrnorm", width, weights.pre_layrnorm);
  weights.layers.resize(static_cast<std::size_t>(vision.num_hidden_layers));
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    VisionLayerWeights& layer = weights.layers[i];
    walk.at(fmt::format("{}encoder.layers.{}.", tower, i), ParameterGroup::vision_tower);
    walk.norm("layer_norm1", width, layer.layer_norm1);
    walk.norm("layer_norm2", width, layer.layer_norm2);
    walk.linear("self_attn.q_proj", width, width, layer.q_proj);
    walk.linear("self_attn.k_proj", width, width, layer.k_proj);
    walk.linear("self_attn.v_proj", width, width, layer.v_proj);
    walk.linear("self_attn.out_proj", width, width, layer.out_proj);
    walk.linear("mlp.fc1", inner, width, layer.fc1);
    walk.linear("mlp.fc2", width, inner, layer.fc2);
  }
  const std::int64_t projected = vision.projector_hidden_size;
  const std::int64_t out = vision.projection_dim;
  const std::int64_t merged = out * vision.spatial_merge_size * vision.spatial_merge_size;
  walk.at("", ParameterGroup::projector);
  walk.linear("multi_modal_projector.linear_1", projected, width, weights.projector_1);
  walk.linear("multi_modal_projector.linear_2", out, projected, weights.projector_2);
  walk.linear("patch_merge_mlp.linear_1", projected, merged, weights.merge_1);
  walk.linear("patch_merge_mlp.linear_2", out, projected, weights.merge_2);
}

std::vector<VisionEntry> vision_layout(const ModelConfig& config) {
  class Lister : public VisionVisitor {
   public:
    std::vector<VisionEntry> entries;
    void matrix(const VisionEntry& entry, WeightMatrix&) override { entries.push_back(entry); }
    void vector(const VisionEntry& entry, std::vector<float>&) override { entries.push_back(entry); }
  };
  Lister lister;
  VisionWeights unused;
  visit_vision(config, unused, lister);
  return std::move(lister.entries);
}

}  // namespace m3
