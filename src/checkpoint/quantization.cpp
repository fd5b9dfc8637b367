#include "src/checkpoint/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/checkpoint/names.h"
#include "src/checkpoint/schemes.h"

namespace m3 {

namespace {

constexpr std::size_t file_limit = 64u << 20;

bool index_projection(std::string_view module) {
  const auto parts = split_name(module);
  return !parts.empty() && (parts.back() == "index_q_proj" || parts.back() == "index_k_proj");
}

bool routed_expert(std::string_view module) {
  const auto parts = split_name(module);
  return std::find(parts.begin(), parts.end(), "experts") != parts.end();
}

// The modules that a fused name covers, as last components.
std::vector<std::string> unfused(std::string_view last) {
  if (last == "qkv_proj") return {"q_proj", "k_proj", "v_proj"};
  if (last == "index_qkv_proj" || last == "index_qk_proj") return {"index_q_proj", "index_k_proj"};
  if (last == "gate_up_proj") return {"gate_proj", "up_proj"};
  return {};
}

std::string scheme_text(std::optional<WeightFormat> format) {
  return format ? std::string(weight_format_name(*format)) : "an unquantised weight";
}

}  // namespace

void ModuleList::add(const std::string& entry, const std::vector<LayerKind>& layers) {
  if (entry.find('*') != std::string::npos) {
    patterns_.emplace_back(from_layers(entry));
    return;
  }
  const std::string module = canonical_module(entry, layers);
  names_[std::string(from_layers(module))] = true;
  const auto dot = module.rfind('.');
  const std::string stem = dot == std::string::npos ? "" : module.substr(0, dot + 1);
  for (const std::string& name : unfused(std::string_view(module).substr(dot == std::string::npos ? 0 : dot + 1))) {
    names_[std::string(from_layers(stem + name))] = true;
  }
}

bool ModuleList::holds(std::string_view module) const {
  if (empty()) return false;
  const auto listed = [&](std::string_view name) {
    return names_.contains(std::string(name)) ||
           std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& p) { return matches_pattern(p, name); });
  };
  const std::string_view tail = from_layers(module);
  if (tail.size() != module.size() && listed(module)) return true;
  for (std::string_view prefix = tail;;) {
    if (listed(prefix)) return true;
    const auto dot = prefix.rfind('.');
    if (dot == std::string_view::npos) break;
    prefix = prefix.substr(0, dot);
  }
  // A bare component ("index_q_proj", "lm_head") stands for every module that has it.
  for (const std::string_view part : split_name(module)) {
    if (names_.contains(std::string(part))) return true;
  }
  return false;
}

std::optional<WeightFormat> QuantizationPlan::promised(std::string_view module) const {
  if (method_ == Method::none || excluded_.holds(module)) return std::nullopt;
  if (!by_module_.empty()) {
    for (std::string_view prefix = from_layers(module);;) {
      const auto found = by_module_.find(std::string(prefix));
      if (found != by_module_.end()) return found->second;
      const auto dot = prefix.rfind('.');
      if (dot == std::string_view::npos) break;
      prefix = prefix.substr(0, dot);
    }
  }
  for (const Pattern& pattern : by_pattern_) {
    if (pattern.modules.holds(module)) return pattern.format;
  }
  if (experts_ && routed_expert(module)) return experts_;
  return everywhere_;
}

std::string QuantizationPlan::contradiction(std::string_view module, WeightFormat stored) const {
  const auto format = promised(module);
  if (format ? *format == stored : is_plain(stored)) return "";
  // Indexer projections are seen in another scheme than q (addenda §8), and Quark's lists are incomplete (spec §2.6):
  // there a weight may also be left unquantised.
  const bool lists_are_loose = method_ == Method::quark || (method_ != Method::none && index_projection(module));
  if (lists_are_loose && is_plain(stored)) return "";
  if (method_ != Method::none && index_projection(module) && stored == WeightFormat::mxfp8) return "";
  const char* source = method_ == Method::none ? "as there is no quantization_config" : "as quantization_config says";
  return fmt::format("{}, {}", scheme_text(format), source);
}

// Fills a plan from the three published dialects.
class QuantizationReader {
 public:
  QuantizationReader(const JsonFields& config, const std::vector<LayerKind>& layers)
      : config_(config), layers_(layers) {}

  QuantizationPlan run() {
    const std::string method = config_.text("quant_method").value_or("");
    if (method == "mxfp8") {
      read_mxfp8();
    } else if (method == "modelopt") {
      read_modelopt();
    } else if (method == "quark") {
      read_quark();
    } else {
      config_.refuse("quant_method", "\"mxfp8\", \"modelopt\" or \"quark\" (MXFP8, NVFP4, MXFP4 and their mixtures)");
    }
    return std::move(plan_);
  }

 private:
  static bool same_letters(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return (x | 32) == (y | 32); });
  }

  void exclude(const std::string& key) {
    if (const auto entries = config_.texts(key)) {
      for (const std::string& entry : *entries) plan_.excluded_.add(entry, layers_);
    }
  }

  void read_mxfp8() {
    plan_.method_ = QuantizationPlan::Method::mxfp8;
    plan_.description_ = "mxfp8";
    plan_.everywhere_ = WeightFormat::mxfp8;
    config_.only_one_of("activation_scheme", {"dynamic"});
    const Json* block = config_.find("weight_block_size");
    if (block != nullptr && *block != Json::array({1, 32})) {
      fail("{}: {} is {}; accepted: [1, 32]", config_.origin(), config_.full_key("weight_block_size"),
           block->is_array() && block->size() <= 4 ? block->dump(-1, ' ', true, Json::error_handler_t::replace)
                                                   : describe(*block));
    }
    config_.only("group_size", std::int64_t{16});
    config_.only_one_of("kv_cache_quant_algo", {"FP8"});
    config_.only_one_of("attention_quant_algo", {"FP8"});
    config_.only_one_of("index_k_quant_type", {"nvfp4"});
    const auto experts = config_.text("moe_quant_algo");
    config_.only_one_of("moe_quant_format", {"nvfp4-pack-quantized"});
    if (experts) {
      if (!same_letters(*experts, "nvfp4")) config_.refuse("moe_quant_algo", "\"NVFP4\"");
      plan_.experts_ = WeightFormat::nvfp4;
      plan_.description_ = "mxfp8 with NVFP4 experts (M3.1)";
    }
    exclude("ignored_layers");
    exclude("modules_to_not_convert");
  }

  WeightFormat modelopt_format(const JsonFields& object) {
    const std::string algorithm = object.text("quant_algo").value_or("");
    if (algorithm == "NVFP4") {
      object.only("group_size", std::int64_t{16});
      return WeightFormat::nvfp4;
    }
    if (algorithm == "MXFP8") {
      object.only("group_size", std::int64_t{32});
      return WeightFormat::mxfp8;
    }
    object.refuse("quant_algo", "\"NVFP4\" or \"MXFP8\"");
  }

  void read_modelopt() {
    plan_.method_ = QuantizationPlan::Method::modelopt;
    const std::string algorithm = config_.text("quant_algo").value_or("");
    plan_.description_ = "modelopt " + algorithm;
    config_.only_one_of("kv_cache_quant_algo", {"FP8"});
    exclude("exclude_modules");
    exclude("ignore");
    if (algorithm == "NVFP4" || algorithm == "MXFP8") {
      plan_.everywhere_ = modelopt_format(config_);
      return;
    }
    if (algorithm != "MIXED_PRECISION") config_.refuse("quant_algo", "\"MIXED_PRECISION\", \"NVFP4\" or \"MXFP8\"");
    const auto listed = config_.object("quantized_layers");
    if (!listed) config_.missing("quantized_layers", "MIXED_PRECISION needs it");
    for (const auto& [name, entry] : listed->json().items()) {
      const WeightFormat format = modelopt_format(*listed->object(name));
      plan_.by_module_[std::string(from_layers(canonical_module(name, layers_)))] = format;
    }
  }

  // One weight description of Quark's; nullopt where the weight is left alone.
  std::optional<WeightFormat> quark_format(const JsonFields& object) {
    const auto weight = object.object("weight");
    if (!weight) return std::nullopt;
    const std::string dtype = weight->text("dtype").value_or("");
    const std::string scheme = weight->text("qscheme").value_or("");
    if (dtype == "fp4") {
      weight->only_one_of("qscheme", {"per_group"});
      weight->only("group_size", std::int64_t{32});
      weight->only_one_of("scale_format", {"e8m0"});
      return WeightFormat::mxfp4;
    }
    if (dtype != "fp8_e4m3") weight->refuse("dtype", "\"fp4\" or \"fp8_e4m3\"");
    if (scheme != "per_group") {
      weight->only_one_of("qscheme", {"per_channel", "per_tensor"});
      return WeightFormat::fp8;
    }
    weight->only("group_size", std::int64_t{32});
    weight->only_one_of("scale_format", {"e8m0"});
    return WeightFormat::mxfp8;
  }

  void read_quark() {
    plan_.method_ = QuantizationPlan::Method::quark;
    exclude("exclude");
    const auto global = config_.object("global_quant_config");
    if (global) plan_.everywhere_ = quark_format(*global);
    const auto types = config_.object("layer_type_quant_config");
    if (types && !types->json().empty()) config_.refuse("layer_type_quant_config", "none, or an empty object");
    if (const auto listed = config_.object("layer_quant_config")) {
      for (const auto& [pattern, entry] : listed->json().items()) {
        QuantizationPlan::Pattern rule;
        rule.modules.add(pattern, layers_);
        const auto object = listed->object(pattern);
        if (object) rule.format = quark_format(*object);
        plan_.by_pattern_.push_back(std::move(rule));
      }
    }
    plan_.description_ = "quark";
    if (plan_.everywhere_) plan_.description_ += fmt::format(" {}", weight_format_name(*plan_.everywhere_));
  }

  const JsonFields& config_;
  const std::vector<LayerKind>& layers_;
  QuantizationPlan plan_;
};

QuantizationPlan parse_quantization(const JsonFields& top, const std::vector<LayerKind>& layers) {
  auto config = top.object("quantization_config");
  if (!config && top.has("text_config")) config = top.object("text_config")->object("quantization_config");
  if (!config) return {};
  return QuantizationReader(*config, layers).run();
}

QuantizationPlan read_quantization(const std::filesystem::path& path, const std::vector<LayerKind>& layers) {
  const auto file = config_file(path);
  const Json parsed = parse_json_object(read_text_file(file, file_limit), file.string());
  QuantizationPlan plan = parse_quantization(JsonFields(parsed, file.string()), layers);
  const auto beside = file.parent_path() / "hf_quant_config.json";
  if (plan.method() != QuantizationPlan::Method::none || !std::filesystem::exists(beside)) return plan;
  Json other = parse_json_object(read_text_file(beside, file_limit), beside.string());
  const auto inner = JsonFields(other, beside.string()).object("quantization");
  if (!inner) return plan;
  Json as_config = inner->json();  // the file says the same without naming the method: it is modelopt's own
  as_config["quant_method"] = "modelopt";
  return QuantizationReader(JsonFields(as_config, beside.string(), "quantization."), layers).run();
}

}  // namespace m3
