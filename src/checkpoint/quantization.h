// What `quantization_config` promises about the text model's linears (spec §2.4-2.7, addenda §6, §13). Formats are
// told from the tensors; this is what they are checked against.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/weight_matrix.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/json_fields.h"

namespace m3 {

// Modules as a config lists them: whole names, prefixes of names, single components, fused names, '*' patterns.
class ModuleList {
 public:
  void add(const std::string& entry, const std::vector<LayerKind>& layers);
  // Whether `module` (published spelling) or a module that holds it is listed.
  bool holds(std::string_view module) const;
  bool empty() const { return names_.empty() && patterns_.empty(); }

 private:
  std::unordered_map<std::string, bool> names_;  // from "layers." on where there is such a part
  std::vector<std::string> patterns_;
};

class QuantizationPlan {
 public:
  enum class Method : std::uint8_t {
    none,      // no quantization_config: everything plain
    mxfp8,     // MXFP8 linears; with moe_quant_algo NVFP4 (M3.1) the routed experts are NVFP4
    modelopt,  // NVIDIA: a format for each listed layer, or one for all
    quark,     // AMD: MXFP4 and fp8, by patterns
  };

  Method method() const { return method_; }
  // "none", "mxfp8", "mxfp8 with NVFP4 experts (M3.1)", "modelopt MIXED_PRECISION", ...
  const std::string& description() const { return description_; }

  // The format that `module` is promised in; nullopt = unquantised.
  std::optional<WeightFormat> promised(std::string_view module) const;
  // "" where `stored` agrees with the config, else what it promises.
  std::string contradiction(std::string_view module, WeightFormat stored) const;

 private:
  friend class QuantizationReader;
  Method method_ = Method::none;
  std::string description_ = "none";
  ModuleList excluded_;
  std::optional<WeightFormat> everywhere_;
  std::optional<WeightFormat> experts_;                      // M3.1
  std::unordered_map<std::string, WeightFormat> by_module_;  // modelopt's quantized_layers
  struct Pattern {
    ModuleList modules;
    std::optional<WeightFormat> format;
  };
  std::vector<Pattern> by_pattern_;  // quark's layer_quant_config
};

// From a config's `quantization_config`, or, where there is none and `directory` is given, from the
// hf_quant_config.json beside it. Errors: a method or scheme that is not listed above, by name.
QuantizationPlan parse_quantization(const JsonFields& top, const std::vector<LayerKind>& layers);
QuantizationPlan read_quantization(const std::filesystem::path& path, const std::vector<LayerKind>& layers);

}  // namespace m3
