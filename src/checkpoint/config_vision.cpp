#include <fmt/format.h>

#include "src/base/error.h"
#include "src/checkpoint/config_parts.h"

namespace m3 {

namespace {

// One of the two merge sizes: flat in re-saved configs, inside img_token_compression_config in published ones, where
// the same object stands in vision_config and at the top.
int merge_size(const JsonFields& top, const JsonFields& vision, const std::string& key) {
  std::optional<std::int64_t> value = vision.integer(key, 1, 64);
  for (const JsonFields* where : {&vision, &top}) {
    const auto object = where->object("img_token_compression_config");
    if (!object) continue;
    object->only_one_of("image_token_compression_method", {"patch_merge"});
    const auto nested = object->integer(key, 1, 64);
    if (value && nested && *value != *nested) object->refuse(key, fmt::format("{}, as elsewhere in the file", *value));
    if (nested) value = nested;
  }
  return static_cast<int>(value.value_or(2));
}

// An id under its published or its re-saved key, M3's own where neither is given; -1 where the vocabulary has no such
// id, and so no place for a picture.
int placeholder(const JsonFields& top, const char* published, const char* resaved, int otherwise, int vocab) {
  const auto first = top.integer(published, 0, std::int64_t{1} << 24);
  const auto second = top.integer(resaved, 0, std::int64_t{1} << 24);
  if (first && second && *first != *second) top.refuse(resaved, fmt::format("{}, as {} says", *first, published));
  const auto id = static_cast<int>(first.value_or(second.value_or(otherwise)));
  return id < vocab ? id : -1;
}

double rope_theta(const JsonFields& vision) {
  const auto rope = vision.object("rope_parameters");
  if (rope) rope->only_one_of("rope_type", {"axial", "default"});
  const JsonFields& where = rope && rope->has("rope_theta") ? *rope : vision;
  const double theta = where.number("rope_theta").value_or(10000);
  if (!(theta > 1) || theta > 1e12) where.refuse("rope_theta", "a number between 1 and 1e12");
  return theta;
}

}  // namespace

VisionConfig parse_vision(const JsonFields& top, const JsonFields& vision, const ModelConfig& config) {
  const auto size = [&](const char* key, std::int64_t otherwise, std::int64_t high = dimension_limit) {
    return static_cast<int>(vision.integer(key, 1, high).value_or(otherwise));
  };
  vision.only_one_of("model_type", {"clip_vision_model", "minimax_m3_vl_vision"});
  vision.only_one_of("hidden_act", {"gelu"});
  vision.only_one_of("position_embedding_type", {"rope"});
  vision.only_one_of("rope_mode", {"3d"});
  top.only_one_of("projector_hidden_act", {"gelu"});
  top.only("multimodal_projector_bias", true);
  top.only("vision_feature_layer", std::int64_t{-1});
  top.only_one_of("vision_feature_select_strategy", {"full"});

  VisionConfig result;
  result.hidden_size = size("hidden_size", 1280);
  result.num_hidden_layers = size("num_hidden_layers", 32, 4096);
  result.num_attention_heads = size("num_attention_heads", 16, 8192);
  result.intermediate_size = size("intermediate_size", 5120);
  result.patch_size = size("patch_size", 14, 4096);
  result.num_channels = size("num_channels", 3, 64);
  result.temporal_patch_size = merge_size(top, vision, "temporal_patch_size");
  result.spatial_merge_size = merge_size(top, vision, "spatial_merge_size");
  if (result.hidden_size % result.num_attention_heads != 0) {
    vision.refuse("hidden_size", fmt::format("a multiple of num_attention_heads, {}", result.num_attention_heads));
  }
  result.projection_dim = size("projection_dim", config.hidden_size);
  if (result.projection_dim != config.hidden_size) {
    vision.refuse("projection_dim", fmt::format("the text model's hidden_size, {}", config.hidden_size));
  }
  result.projector_hidden_size =
      static_cast<int>(top.integer("projector_hidden_size", 1, dimension_limit).value_or(config.hidden_size));
  const double eps = vision.number("layer_norm_eps").value_or(1e-5);
  if (!(eps > 0) || eps > 0.1) vision.refuse("layer_norm_eps", "a positive number up to 0.1");
  result.layer_norm_eps = static_cast<float>(eps);
  result.rope_theta = rope_theta(vision);
  result.segment_max_frames = size("vision_segment_max_frames", 4, 1 << 20);
  result.image_token_id = placeholder(top, "image_token_index", "image_token_id", 200025, config.vocab_size);
  result.video_token_id = placeholder(top, "video_token_index", "video_token_id", 200026, config.vocab_size);
  if (result.image_token_id >= 0 && result.image_token_id == result.video_token_id) {
    top.refuse("video_token_index", fmt::format("another id than image_token_index, {}", result.image_token_id));
  }
  return result;
}

}  // namespace m3
