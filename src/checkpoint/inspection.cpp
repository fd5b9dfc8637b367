#include "src/checkpoint/inspection.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/checkpoint/deep_scan.h"
#include "src/checkpoint/loader.h"
#include "src/checkpoint/quantization.h"
#include "src/checkpoint/seeded_weights.h"
#include "src/checkpoint/vision_layout.h"

namespace m3 {

namespace {

// Bytes of a matrix in a format: codes, then block scales, then scales a row.
std::int64_t matrix_bytes(std::int64_t rows, std::int64_t columns, WeightFormat format) {
  WeightMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.columns = columns;
  const std::int64_t row_scales = format == WeightFormat::fp8 ? rows * 4 : 0;
  return matrix.stored_bytes() + row_scales;
}

// How a variant stores a routed expert's matrices and all other linears.
struct VariantRule {
  const char* name;
  WeightFormat routed;
  WeightFormat others;
};

constexpr std::array<VariantRule, 5> variant_rules = {{
    {"bf16", WeightFormat::bf16, WeightFormat::bf16},
    {"mxfp8", WeightFormat::mxfp8, WeightFormat::mxfp8},
    {"nvfp4 experts, rest mxfp8", WeightFormat::nvfp4, WeightFormat::mxfp8},
    {"mxfp4 experts, rest bf16", WeightFormat::mxfp4, WeightFormat::bf16},
    {"fp8, one scale a row", WeightFormat::fp8, WeightFormat::fp8},
}};

// One walk over the layout counts everything that the config decides.
class Counter : public TextReader {
 public:
  Counter(Inspection& result, const QuantizationPlan& plan, bool stored)
      : result_(result), plan_(plan), stored_(stored) {
    for (const VariantRule& rule : variant_rules) result_.variants.push_back({rule.name, 0});
  }

  void matrix(const LayoutEntry& entry, const WeightMatrix& weight, bool may_be_quantized) override {
    count(entry);
    const bool wide = seeded_stays_float(entry.name());
    const WeightFormat plain = wide ? WeightFormat::f32 : WeightFormat::bf16;
    const bool routed = entry.group == ParameterGroup::routed_experts;
    for (std::size_t i = 0; i < variant_rules.size(); ++i) {
      const WeightFormat chosen = routed ? variant_rules[i].routed : variant_rules[i].others;
      result_.variants[i].bytes += matrix_bytes(entry.rows, entry.columns, may_be_quantized ? chosen : plain);
    }
    active(entry);
    if (stored_ && weight.empty()) return;  // reported as a problem already
    const WeightFormat promised = may_be_quantized ? plan_.promised(entry.module).value_or(plain) : plain;
    const WeightFormat format = stored_ ? weight.format : promised;
    FormatCount& formats = result_.formats[std::string(weight_format_name(format))];
    ++formats.matrices;
    formats.parameters += entry.elements();
    formats.bytes += stored_ ? weight.stored_bytes() : matrix_bytes(entry.rows, entry.columns, format);
    add_scheme(entry, format);
  }

  void vector(const LayoutEntry& entry, const std::vector<float>&) override {
    count(entry);
    const std::int64_t size = seeded_stays_float(entry.name()) ? 4 : 2;
    for (Variant& variant : result_.variants) variant.bytes += size * entry.rows;
  }

 private:
  void count(const LayoutEntry& entry) {
    GroupCount& group = result_.groups[static_cast<std::size_t>(entry.group)];
    ++group.tensors;
    group.parameters += entry.elements();
    ++result_.text_tensors;
  }

  void active(const LayoutEntry& entry) {
    const ModelConfig& config = result_.config;
    std::int64_t share = entry.elements();
    if (entry.group == ParameterGroup::routed_experts) {
      // All experts of a layer have one shape: the chosen ones' part is taken from the first of them.
      if (entry.module.find(".experts.0.") == std::string::npos) return;
      share *= config.num_experts_per_tok;
    }
    const bool embedding = entry.group == ParameterGroup::embedding;
    result_.active.with_embedding += share;
    // A tied table is also the head, and multiplies as such.
    if (!embedding || config.tie_word_embeddings) result_.active.total += share;
  }

  void add_scheme(const LayoutEntry& entry, WeightFormat format) {
    const std::string modules = scheme_name(entry.module);
    const std::string name(weight_format_name(format));
    for (Scheme& scheme : result_.schemes) {
      if (scheme.modules != modules || scheme.format != name || scheme.rows != entry.rows) continue;
      ++scheme.count;
      return;
    }
    result_.schemes.push_back({modules, name, entry.rows, entry.columns, 1});
  }

  Inspection& result_;
  const QuantizationPlan& plan_;
  bool stored_;
};

void count_vision(Inspection& result) {
  for (const VisionEntry& entry : vision_layout(result.config)) {
    GroupCount& group = result.groups[static_cast<std::size_t>(entry.group)];
    std::int64_t elements = 1;
    for (const std::int64_t size : entry.shape) elements *= size;
    ++group.tensors;
    group.parameters += elements;
    ++result.vision_tensors;
    // The patch embedding is the one vision tensor that is published in F32.
    const bool wide = entry.name.ends_with("patch_embedding.weight");
    for (Variant& variant : result.variants) variant.bytes += elements * (wide ? 4 : 2);
  }
}

void count_cache(Inspection& result) {
  std::int64_t keys = 0;
  std::int64_t indices = 0;
  for (const LayerKind& layer : result.config.layers) {
    keys += 2 * std::int64_t{result.config.num_key_value_heads} * head_dim;
    if (layer.sparse_attention && !layer.reuses_blocks) indices += head_dim;  // reusing layers keep none
  }
  for (const auto& [kv, kv_bytes] : {std::pair("bf16", 2), std::pair("fp8", 1)}) {
    for (const auto& [index, index_bytes] : {std::pair("bf16", 2), std::pair("fp8", 1)}) {
      result.caches.push_back({kv, index, keys * kv_bytes + indices * index_bytes});
    }
  }
}

void map_layers(Inspection& result) {
  for (int n = 0; n < result.config.num_hidden_layers; ++n) {
    const LayerKind& kind = result.config.layers[static_cast<std::size_t>(n)];
    if (!result.layers.empty()) {
      LayerRun& run = result.layers.back();
      if (run.kind.moe == kind.moe && run.kind.sparse_attention == kind.sparse_attention &&
          run.kind.reuses_blocks == kind.reuses_blocks) {
        run.last = n;
        continue;
      }
    }
    result.layers.push_back({n, n, kind});
  }
}

void finish(Inspection& result, const TextWeights& weights, const QuantizationPlan& plan) {
  Counter counter(result, plan, result.weights_read);
  read_text(result.config, weights, counter);
  count_vision(result);
  for (const GroupCount& group : result.groups) {
    result.total.tensors += group.tensors;
    result.total.parameters += group.parameters;
  }
  count_cache(result);
  map_layers(result);
}

}  // namespace

Inspection inspect(const std::filesystem::path& path, bool deep, const ReadProgress& progress) {
  Inspection result;
  result.path = path;
  result.config = read_config(path);
  const QuantizationPlan plan = read_quantization(path, result.config.layers);
  result.quantization = plan.description();
  if (!std::filesystem::is_directory(path)) {
    if (deep) fail_usage("{} is a config alone; reading the weights needs the checkpoint's directory", path.string());
    finish(result, {}, plan);
    return result;
  }
  LoadedCheckpoint loaded;
  try {
    loaded = load_checkpoint(path);
    result.weights_read = true;
  } catch (const Error& error) {
    result.failure = error.what();
  }
  if (result.weights_read) {
    result.stored_tensors = static_cast<std::int64_t>(loaded.files.tensors().size());
    result.skipped_tensors = loaded.skipped_tensors;
    result.text_bytes = loaded.text_bytes;
    result.vision_bytes = loaded.vision_bytes;
    result.file_bytes = loaded.files.file_bytes();
    result.problems = loaded.problems;
    if (deep) result.ranges = deep_scan(loaded, result.problems, progress);
  }
  finish(result, loaded.weights, plan);
  return result;
}

}  // namespace m3
