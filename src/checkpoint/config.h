// The text model's configuration, read from config.json in either published spelling (spec §1, addenda §10, §13).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace m3 {

// Fixed for the target model; a checkpoint that says otherwise is refused by name.
inline constexpr int head_dim = 128;
inline constexpr int block_size = 128;  // tokens of a sparse block, and of a page
inline constexpr int rotary_dim = 64;

// YaRN, from `rope_scaling` or `rope_parameters` (addenda §13 "YaRN").
struct YarnScaling {
  double factor = 1;
  std::int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  std::optional<double> attention_factor;  // else 0.1 ln(factor) + 1
  bool truncate = true;
};

// Top-k reuse across sparse layers (spec §3.15).
struct IndexReuse {
  bool enabled = false;
  int frequency = 1;    // index_topk_freq
  std::string pattern;  // index_topk_pattern, 'S' = reuse; overrides the frequency
  int offset = 0;       // index_skip_topk_offset
};

struct LayerKind {
  bool sparse_attention = false;  // has an indexer
  bool moe = false;               // routed + shared experts; else the dense MLP
  bool reuses_blocks = false;     // takes the last computed block choice (spec §3.15)
};

// The vision tower and the projector behind it (spec §1.4).
struct VisionConfig {
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int intermediate_size = 0;
  int patch_size = 14;
  int temporal_patch_size = 2;
  int spatial_merge_size = 2;
  int num_channels = 3;
  int projection_dim = 0;
  int projector_hidden_size = 0;
  float layer_norm_eps = 1e-5f;
  double rope_theta = 10000;
  int segment_max_frames = 4;  // temporal groups that attend to each other
  int image_token_id = -1;     // placeholders, one for each feature row; -1: the vocabulary has none
  int video_token_id = -1;

  int head_dim() const { return hidden_size / num_attention_heads; }
  std::int64_t patch_elements() const {
    return std::int64_t{num_channels} * temporal_patch_size * patch_size * patch_size;
  }
};

struct ModelConfig {
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int intermediate_size = 0;         // one routed expert
  int shared_intermediate_size = 0;  // the shared expert
  int dense_intermediate_size = 0;   // dense layers
  int vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 0;
  float swiglu_alpha = 1.702f;
  float swiglu_limit = 7.0f;
  float swiglu_beta = 1.0f;
  bool tie_word_embeddings = false;
  int num_local_experts = 0;
  int num_experts_per_tok = 0;
  float routed_scaling_factor = 1.0f;
  int topk_blocks = 16;  // forced blocks included
  int init_blocks = 0;
  int local_blocks = 1;
  std::optional<YarnScaling> yarn;
  IndexReuse reuse;
  std::vector<LayerKind> layers;
  std::optional<VisionConfig> vision;  // absent: a text-only checkpoint

  // The longest context that positions allow: max(max_position_embeddings, original · factor).
  std::int64_t max_context() const;
  int sparse_layers() const;
  int moe_layers() const;
};

// `path` itself where it is a file, else its config.json. Errors: neither is there.
std::filesystem::path config_file(const std::filesystem::path& path);

// Reads and checks DIRECTORY/config.json or a config file itself. Every problem is an m3::Error whose one line names
// the key, what was found and what is accepted.
ModelConfig read_config(const std::filesystem::path& path);
// The same from JSON text; `origin` names it in errors.
ModelConfig parse_config(const std::string& json, const std::string& origin);

}  // namespace m3
