#include "tests/support/test_configs.h"

#include <vector>

namespace m3::test {

namespace {

using Json = nlohmann::json;

Json text_config(const std::vector<int>& sparse, const std::vector<int>& moe) {
  return {
      {"architectures", {"MiniMaxM3SparseForCausalLM"}},
      {"head_dim", 128},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 5000000},
      {"rotary_dim", 64},
      {"partial_rotary_factor", 0.5},
      {"hidden_act", "swigluoai"},
      {"swiglu_alpha", 1.702},
      {"swiglu_limit", 7.0},
      {"use_gemma_norm", true},
      {"use_qk_norm", true},
      {"qk_norm_type", "per_head"},
      {"attention_output_gate", false},
      {"tie_word_embeddings", false},
      {"n_shared_experts", 1},
      {"scoring_func", "sigmoid"},
      {"use_routing_bias", true},
      {"routed_scaling_factor", 2.0},
      {"num_mtp_modules", 7},
      {"num_nextn_predict_layers", 1},
      {"moe_layer_freq", moe},
      {"sparse_attention_config",
       {{"use_sparse_attention", true},
        {"sparse_attention_freq", sparse},
        {"sparse_disable_index_value", sparse},
        {"sparse_index_dim", 128},
        {"sparse_block_size", 128},
        {"sparse_score_type", "max"},
        {"sparse_init_block", 0},
        {"sparse_local_block", 1}}},
  };
}

Json whole_config(Json text) {
  return {{"architectures", {"MiniMaxM3SparseForConditionalGeneration"}},
          {"model_type", "minimax_m3_vl"},
          {"torch_dtype", "bfloat16"},
          {"text_config", std::move(text)}};
}

}  // namespace

Json published_config() {
  std::vector<int> later(60, 1);
  later[0] = later[1] = later[2] = 0;
  Json text = text_config(later, later);
  text["hidden_size"] = 6144;
  text["num_hidden_layers"] = 60;
  text["num_attention_heads"] = 64;
  text["num_key_value_heads"] = 4;
  text["intermediate_size"] = 3072;
  text["shared_intermediate_size"] = 3072;
  text["dense_intermediate_size"] = 12288;
  text["vocab_size"] = 200064;
  text["max_position_embeddings"] = 1048576;
  text["num_local_experts"] = 128;
  text["num_experts_per_tok"] = 4;
  text["sparse_attention_config"]["sparse_num_index_heads"] = 4;
  text["sparse_attention_config"]["sparse_topk_blocks"] = 16;
  const Json compression = {
      {"image_token_compression_method", "patch_merge"}, {"spatial_merge_size", 2}, {"temporal_patch_size", 2}};
  Json config = whole_config(std::move(text));
  config["image_token_index"] = 200025;
  config["video_token_index"] = 200026;
  config["image_seq_length"] = 576;
  config["img_token_compression_config"] = compression;
  config["multimodal_projector_bias"] = true;
  config["projector_hidden_act"] = "gelu";
  config["projector_hidden_size"] = 6144;
  config["vision_feature_layer"] = -1;
  config["vision_feature_select_strategy"] = "full";
  config["process_image_mode"] = "dynamic_res";
  config["num_reward_heads"] = 0;
  config["image_grid_pinpoints"] = "[(336, 336), (336, 672)]";  // a string in the published file too
  config["vision_config"] = {{"model_type", "clip_vision_model"},
                             {"hidden_size", 1280},
                             {"num_hidden_layers", 32},
                             {"num_attention_heads", 16},
                             {"intermediate_size", 5120},
                             {"hidden_act", "gelu"},
                             {"layer_norm_eps", 1e-5},
                             {"attention_dropout", 0.0},
                             {"patch_size", 14},
                             {"num_channels", 3},
                             {"image_size", 2016},
                             {"projection_dim", 6144},
                             {"position_embedding_type", "rope"},
                             {"rope_mode", "3d"},
                             {"rope_theta", 10000.0},
                             {"vision_segment_max_frames", 4},
                             {"img_token_compression_config", compression},
                             {"initializer_factor", 1.0},
                             {"initializer_range", 0.02},
                             {"vocab_size", 32000}};
  return config;
}

Json small_config() {
  Json text = text_config({0, 1, 1}, {0, 1, 1});
  text["hidden_size"] = 64;
  text["num_hidden_layers"] = 3;
  text["num_attention_heads"] = 4;
  text["num_key_value_heads"] = 2;
  text["intermediate_size"] = 32;
  text["shared_intermediate_size"] = 64;
  text["dense_intermediate_size"] = 96;
  text["vocab_size"] = 80;
  text["max_position_embeddings"] = 4096;
  text["num_local_experts"] = 4;
  text["num_experts_per_tok"] = 2;
  text["sparse_attention_config"]["sparse_num_index_heads"] = 2;
  text["sparse_attention_config"]["sparse_topk_blocks"] = 3;
  return whole_config(std::move(text));
}

Json resaved_config() {
  const Json text = {
      {"model_type", "minimax_m3_vl_text"},
      {"dtype", "bfloat16"},
      {"hidden_size", 64},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 128},
      {"intermediate_size", 32},
      {"shared_intermediate_size", 64},
      {"dense_intermediate_size", 96},
      {"vocab_size", 80},
      {"max_position_embeddings", 4096},
      {"rms_norm_eps", 1e-6},
      {"hidden_act", "silu"},
      {"swiglu_alpha", 1.702},
      {"swiglu_limit", 7.0},
      {"num_local_experts", 4},
      {"num_experts_per_tok", 2},
      {"routed_scaling_factor", 2.0},
      {"rotary_dim", 64},
      {"rope_parameters", {{"rope_theta", 5000000}, {"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
      {"index_n_heads", 2},
      {"index_head_dim", 128},
      {"index_block_size", 128},
      {"index_topk_blocks", 3},
      {"index_local_blocks", 1},
      {"layer_types", {"full_attention", "minimax_m3_sparse", "minimax_m3_sparse"}},
      {"mlp_layer_types", {"dense", "sparse", "sparse"}},
      {"tie_word_embeddings", false},
      {"pad_token_id", nullptr}};
  Json config = whole_config(text);
  config.erase("torch_dtype");
  config["dtype"] = "bfloat16";
  config["tie_word_embeddings"] = false;
  return config;
}

}  // namespace m3::test
