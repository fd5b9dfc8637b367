#include "src/checkpoint/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/checkpoint/config_parts.h"
#include "src/checkpoint/drafts.h"
#include "src/checkpoint/json_fields.h"
#include "src/checkpoint/problems.h"

namespace m3 {

namespace {

constexpr std::size_t config_limit = 64u << 20;  // the NVFP4 variant lists 22,422 layers in its file
constexpr std::int64_t default_max_positions = 524288;
constexpr std::int64_t expert_limit = std::int64_t{1} << 20;  // M3 has 7,296

struct Dispatch {
  bool flat = false;  // the text model's keys stand at the top
};

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Which model this is, and where its text keys are.
Dispatch dispatch(const JsonFields& top) {
  const auto architectures = top.texts("architectures").value_or(std::vector<std::string>{});
  const std::string model_type = top.text("model_type").value_or("");
  const std::string draft = draft_description(architectures, model_type);
  if (!draft.empty()) {
    fail("{}: this is {}; m3 opens the target model's checkpoint, not a draft model's", top.origin(), draft);
  }
  const bool whole = contains(architectures, "MiniMaxM3SparseForConditionalGeneration");
  const bool text_only =
      contains(architectures, "MiniMaxM3SparseForCausalLM") || contains(architectures, "MiniMaxM3VLForCausalLM");
  if (!model_type.empty() && model_type != "minimax_m3_vl" && model_type != "minimax_m3_vl_text") {
    top.refuse("model_type", "\"minimax_m3_vl\" or \"minimax_m3_vl_text\" (MiniMax-M3)");
  }
  if (!architectures.empty() && !whole && !text_only) {
    fail(
        "{}: architectures is [{}]; accepted: MiniMaxM3SparseForConditionalGeneration, or "
        "MiniMaxM3SparseForCausalLM and MiniMaxM3VLForCausalLM for text alone",
        top.origin(), printable(fmt::format("{}", fmt::join(architectures, ", "))));
  }
  if (architectures.empty() && model_type.empty()) {
    top.missing("model_type", "this is no MiniMax-M3 config (accepted: \"minimax_m3_vl\" or \"minimax_m3_vl_text\")");
  }
  if (top.has("text_config")) return {.flat = false};
  if (model_type == "minimax_m3_vl_text" || (model_type.empty() && text_only)) return {.flat = true};
  top.missing("text_config", "only a text-only save (model_type \"minimax_m3_vl_text\") has the keys at the top");
}

int size_of(const JsonFields& text, const std::string& key, std::int64_t high = dimension_limit) {
  return static_cast<int>(text.required_integer(key, 1, high));
}

// Keys that change the arithmetic and have one value in M3 (addenda §13 "Config").
void refuse_other_models(const JsonFields& text) {
  text.only_one_of("model_type", {"minimax_m3_vl_text", "minimax_m3_vl"});
  text.only_one_of("hidden_act", {"swigluoai", "silu"});  // transformers writes "silu" for the same activation
  text.only("use_gemma_norm", true);
  text.only("use_qk_norm", true);
  text.only_one_of("qk_norm_type", {"per_head"});
  text.only("attention_output_gate", false);
  text.only_one_of("scoring_func", {"sigmoid"});
  text.only("use_routing_bias", true);
  text.only("n_shared_experts", std::int64_t{1});
  text.only("head_dim", std::int64_t{head_dim});
  text.only("attention_bias", false);
  text.only("mlp_bias", false);
  if (text.has("sliding_window") && text.find("sliding_window")->is_number()) text.refuse("sliding_window", "null");
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (text.has(key)) text.refuse(key, "null");
  }
}

float positive(const JsonFields& text, const std::string& key, double otherwise) {
  const double value = text.number(key).value_or(otherwise);
  if (!(value > 0) || value > 1e30) text.refuse(key, "a positive number");
  return static_cast<float>(value);
}

void parse_experts(const JsonFields& text, ModelConfig& config) {
  if (config.moe_layers() == 0) return;
  config.num_local_experts = size_of(text, "num_local_experts", 1 << 16);
  config.num_experts_per_tok = size_of(text, "num_experts_per_tok", 1 << 10);
  if (config.num_experts_per_tok > config.num_local_experts) {
    text.refuse("num_experts_per_tok", fmt::format("at most num_local_experts, {}", config.num_local_experts));
  }
  if (std::int64_t{config.num_local_experts} * config.moe_layers() > expert_limit) {
    text.refuse("num_local_experts", fmt::format("at most {} experts in all layers together", expert_limit));
  }
  config.intermediate_size = size_of(text, "intermediate_size");
  config.shared_intermediate_size =
      static_cast<int>(text.integer("shared_intermediate_size", 1, dimension_limit).value_or(config.intermediate_size));
  if (!text.has("routed_scaling_factor")) {
    text.missing("routed_scaling_factor", "MiniMax-M3 has 2.0; it is not guessed");
  }
  config.routed_scaling_factor = positive(text, "routed_scaling_factor", 0);
}

bool tied_embeddings(const JsonFields& top, const JsonFields& text) {
  const auto inner = text.boolean("tie_word_embeddings");
  const auto outer = top.boolean("tie_word_embeddings");
  if (inner && outer && *inner != *outer) {
    text.refuse("tie_word_embeddings", fmt::format("the value at the top of the file, {}", *outer));
  }
  return inner.value_or(outer.value_or(false));
}

void parse_text(const JsonFields& top, const JsonFields& text, ModelConfig& config) {
  refuse_other_models(text);
  config.hidden_size = size_of(text, "hidden_size");
  config.num_hidden_layers = size_of(text, "num_hidden_layers", 4096);
  config.num_attention_heads = size_of(text, "num_attention_heads", 8192);
  config.num_key_value_heads = size_of(text, "num_key_value_heads", 8192);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    text.refuse("num_attention_heads",
                fmt::format("a multiple of num_key_value_heads, {}", config.num_key_value_heads));
  }
  config.vocab_size = size_of(text, "vocab_size", std::int64_t{1} << 24);
  config.max_position_embeddings =
      text.integer("max_position_embeddings", 1, std::int64_t{1} << 31).value_or(default_max_positions);
  config.rms_norm_eps = positive(text, "rms_norm_eps", 1e-6);
  if (config.rms_norm_eps > 0.1f) text.refuse("rms_norm_eps", "a number up to 0.1");
  config.swiglu_alpha = positive(text, "swiglu_alpha", 1.702);
  config.swiglu_limit = positive(text, "swiglu_limit", 7.0);
  config.swiglu_beta = static_cast<float>(text.number("swiglu_beta").value_or(1.0));
  if (!std::isfinite(config.swiglu_beta)) text.refuse("swiglu_beta", "a number that fits a float");
  config.tie_word_embeddings = tied_embeddings(top, text);
  parse_rope(text, config);
  parse_layers(text, config);
  if (config.moe_layers() < config.num_hidden_layers) {
    config.dense_intermediate_size = size_of(text, "dense_intermediate_size");
  }
  parse_experts(text, config);
}

}  // namespace

std::int64_t ModelConfig::max_context() const {
  if (!yarn) return max_position_embeddings;
  const auto scaled =
      static_cast<std::int64_t>(std::floor(static_cast<double>(yarn->original_max_position_embeddings) * yarn->factor));
  return std::max(max_position_embeddings, scaled);
}

int ModelConfig::sparse_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](LayerKind l) { return l.sparse_attention; }));
}

int ModelConfig::moe_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](LayerKind l) { return l.moe; }));
}

ModelConfig parse_config(const std::string& json, const std::string& origin) {
  const Json parsed = parse_json_object(json, origin);
  const JsonFields top(parsed, origin);
  const JsonFields text = dispatch(top).flat ? top : *top.object("text_config");
  ModelConfig config;
  parse_text(top, text, config);
  if (const auto vision = top.object("vision_config")) config.vision = parse_vision(top, *vision, config);
  return config;
}

std::filesystem::path config_file(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) fail("{}: no such file or directory", path.string());
  if (!std::filesystem::is_directory(path)) return path;
  auto file = path / "config.json";
  if (!std::filesystem::exists(file)) fail("{}: no config.json there; a checkpoint directory has one", path.string());
  return file;
}

ModelConfig read_config(const std::filesystem::path& path) {
  const auto file = config_file(path);
  return parse_config(read_text_file(file, config_limit), file.string());
}

}  // namespace m3
