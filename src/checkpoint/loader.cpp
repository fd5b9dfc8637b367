#include "src/checkpoint/loader.h"

#include <fmt/format.h>
#include <cmath>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/checkpoint/names.h"
#include "src/checkpoint/scales.h"
#include "src/checkpoint/schemes.h"
#include "src/checkpoint/text_layout.h"
#include "src/checkpoint/vision_layout.h"

namespace m3 {

namespace {

constexpr std::int64_t scale_bytes_read_at_open = std::int64_t{256} << 20;

// The stored tensors of one module, by part.
using ModuleTensors = std::vector<std::pair<std::string, const StoredTensor*>>;

// Stored tensors under their canonical names, with a note of which were asked for.
class TensorTable {
 public:
  explicit TensorTable(LoadedCheckpoint& loaded) : tensors_(loaded.files.tensors()), used_(tensors_.size()) {
    for (const StoredTensor& tensor : tensors_) {
      TensorName name = canonical_name(tensor.name, loaded.config.layers);
      if (name.kind == NameKind::ignored) {
        ++loaded.skipped_tensors;
        use(tensor);
      }
      kinds_.push_back(name.kind);
      if (name.kind != NameKind::text && name.kind != NameKind::vision) continue;
      ModuleTensors& module = modules_[name.module];
      const auto other = find_part(module, name.part);
      if (other != nullptr) {
        loaded.problems.add(tensor.name, "one tensor of this meaning", "another one, " + printable(other->name));
        use(tensor);
        continue;
      }
      module.emplace_back(std::move(name.part), &tensor);
    }
  }

  bool has_module(const std::string& module) const { return modules_.contains(module); }

  // The tensor, noted as used; nullptr where absent.
  const StoredTensor* take(const std::string& module, std::string_view part) {
    const auto found = modules_.find(module);
    if (found == modules_.end()) return nullptr;
    const StoredTensor* tensor = find_part(found->second, part);
    if (tensor != nullptr) use(*tensor);
    return tensor;
  }

  void report_unused(ProblemList& problems) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (used_[i]) continue;
      const bool draft = kinds_[i] == NameKind::draft;
      problems.add(tensors_[i].name, "", (draft ? "a draft model's tensor, " : "") + describe(tensors_[i]));
    }
  }

  std::int64_t bytes(NameKind kind) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (kinds_[i] == kind) sum += static_cast<std::int64_t>(tensors_[i].bytes.size());
    }
    return sum;
  }

  std::int64_t count(NameKind kind) const { return std::count(kinds_.begin(), kinds_.end(), kind); }

 private:
  static const StoredTensor* find_part(const ModuleTensors& module, std::string_view part) {
    for (const auto& [name, tensor] : module) {
      if (name == part) return tensor;
    }
    return nullptr;
  }

  void use(const StoredTensor& tensor) { used_[static_cast<std::size_t>(&tensor - tensors_.data())] = true; }

  const std::vector<StoredTensor>& tensors_;
  std::vector<bool> used_;
  std::vector<NameKind> kinds_;
  std::unordered_map<std::string, ModuleTensors> modules_;
};

void check_finite(const std::string& name, std::span<const float> values, ProblemList& problems) {
  const auto broken = std::ranges::count_if(values, [](float value) { return !std::isfinite(value); });
  if (broken != 0) problems.add(name, "finite values", fmt::format("{} that are not", broken));
}

class TextLoader : public TextVisitor {
 public:
  TextLoader(LoadedCheckpoint& loaded, TensorTable& table) : loaded_(loaded), table_(table) {}

  void linear(const LayoutEntry& entry, WeightMatrix& weight) override {
    std::optional<WeightMatrix> found;
    const bool separate = table_.has_module(entry.module);
    if (separate || entry.fused.module.empty() || !table_.has_module(entry.fused.module)) {
      found = resolve(entry.module, std::vector{entry.rows}, entry.columns);
    } else {
      const auto& whole = fused(entry);
      if (whole) found = whole->row_slice(entry.fused.first_row, entry.rows);
    }
    if (!found) return;
    const std::string promise = loaded_.quantization.contradiction(entry.module, found->format);
    if (!promise.empty()) {
      loaded_.problems.add(entry.name(), promise, std::string(weight_format_name(found->format)));
    }
    weight = *found;
  }

  void matrix(const LayoutEntry& entry, WeightMatrix& weight) override {
    const StoredTensor* tensor = take(entry, fmt::format("BF16, F16 or F32 [{}, {}]", entry.rows, entry.columns));
    if (tensor == nullptr) return;
    const auto found = resolve_plain(*tensor, entry.rows, entry.columns, loaded_.copies, loaded_.problems);
    if (found) weight = *found;
  }

  void vector(const LayoutEntry& entry, std::vector<float>& values) override {
    const std::string expected = fmt::format("BF16, F16 or F32 [{}]", entry.rows);
    const StoredTensor* tensor = take(entry, expected);
    if (tensor == nullptr) return;
    if (!is_plain(tensor->dtype) || tensor->shape != std::vector{entry.rows}) {
      loaded_.problems.add(tensor->name, expected, describe(*tensor));
      return;
    }
    values = widen(*tensor);
    // Norms and the router's bias: a NaN there only loses comparisons and would bend choices without a trace.
    check_finite(tensor->name, values, loaded_.problems);
  }

  // k_proj.k_scale or k_proj.output_scale, and v's (addenda §13 "Names").
  void cache_scales() {
    for (std::size_t n = 0; n < loaded_.weights.layers.size(); ++n) {
      TextLayerWeights& layer = loaded_.weights.layers[n];
      layer.k_scale = cache_scale(n, "k");
      layer.v_scale = cache_scale(n, "v");
    }
  }

  // A stored head beside tied embeddings must be the same matrix.
  void tied_head() {
    if (!loaded_.config.tie_word_embeddings) return;
    loaded_.weights.lm_head = loaded_.weights.embed_tokens;
    const StoredTensor* head = table_.take("language_model.lm_head", "weight");
    if (head == nullptr || loaded_.weights.embed_tokens.empty()) return;
    const WeightMatrix& embedding = loaded_.weights.embed_tokens;
    const auto size = static_cast<std::size_t>(embedding.stored_bytes());
    if (head->bytes.size() == size && std::memcmp(head->bytes.data(), embedding.values, size) == 0) return;
    loaded_.problems.add(head->name, "the embedding's own values, as tie_word_embeddings is true", "other values");
  }

 private:
  const StoredTensor* take(const LayoutEntry& entry, const std::string& expected) {
    const StoredTensor* tensor = table_.take(entry.module, entry.part);
    if (tensor == nullptr) loaded_.problems.add(entry.name(), expected, "no such tensor");
    return tensor;
  }

  std::optional<WeightMatrix> resolve(const std::string& module, const std::vector<std::int64_t>& lead,
                                      std::int64_t columns) {
    LinearTensors tensors;
    tensors.weight = table_.take(module, "weight");
    tensors.weight_packed = table_.take(module, "weight_packed");
    if (tensors.weight == nullptr && tensors.weight_packed == nullptr) {
      std::vector<std::int64_t> shape = lead;
      shape.push_back(columns);
      loaded_.problems.add(module + ".weight", "a matrix " + describe_shape(shape), "no such tensor");
      return std::nullopt;
    }
    tensors.weight_scale = table_.take(module, "weight_scale");
    tensors.weight_scale_2 = table_.take(module, "weight_scale_2");
    tensors.weight_global_scale = table_.take(module, "weight_global_scale");
    tensors.input_scale = table_.take(module, "input_scale");
    tensors.input_global_scale = table_.take(module, "input_global_scale");
    return resolve_linear(module, tensors, lead, columns, loaded_.copies, loaded_.problems);
  }

  // A fused tensor, looked at once; its problems are reported once.
  const std::optional<WeightMatrix>& fused(const LayoutEntry& entry) {
    const auto found = fused_.find(entry.fused.module);
    if (found != fused_.end()) return found->second;
    auto matrix = resolve(entry.fused.module, entry.fused.lead, entry.columns);
    return fused_.emplace(entry.fused.module, matrix).first->second;
  }

  float cache_scale(std::size_t layer, std::string_view side) {
    const std::string module = fmt::format("language_model.model.layers.{}.self_attn.{}_proj", layer, side);
    std::optional<float> scale;
    for (const std::string& part : {fmt::format("{}_scale", side), std::string("output_scale")}) {
      const StoredTensor* tensor = table_.take(module, part);
      if (tensor == nullptr) continue;
      const auto value = resolve_scalar(*tensor, 0, loaded_.problems);
      if (value && *value == 0) loaded_.problems.add(tensor->name, "a positive number", "0");
      if (value && scale && *value != *scale) {
        loaded_.problems.add(tensor->name, fmt::format("{}, the other cache scale of this layer", *scale),
                             fmt::format("{}", *value));
      }
      scale = value;
    }
    return scale.value_or(1.0f);
  }

  LoadedCheckpoint& loaded_;
  TensorTable& table_;
  std::unordered_map<std::string, std::optional<WeightMatrix>> fused_;
};

class VisionLoader : public VisionVisitor {
 public:
  VisionLoader(LoadedCheckpoint& loaded, TensorTable& table) : loaded_(loaded), table_(table) {}

  void matrix(const VisionEntry& entry, WeightMatrix& weight) override {
    const StoredTensor* tensor = take(entry);
    if (tensor == nullptr) return;
    weight.format = tensor->dtype == DType::f32   ? WeightFormat::f32
                    : tensor->dtype == DType::f16 ? WeightFormat::f16
                                                  : WeightFormat::bf16;
    weight.rows = entry.shape.front();
    weight.columns = entry.columns();
    weight.values = loaded_.copies.data(*tensor);
  }

  void vector(const VisionEntry& entry, std::vector<float>& values) override {
    const StoredTensor* tensor = take(entry);
    if (tensor == nullptr) return;
    values = widen(*tensor);
    check_finite(tensor->name, values, loaded_.problems);
  }

 private:
  const StoredTensor* take(const VisionEntry& entry) {
    const auto dot = entry.name.rfind('.');
    const StoredTensor* tensor = table_.take(entry.name.substr(0, dot), std::string_view(entry.name).substr(dot + 1));
    const std::string expected = "BF16, F16 or F32 " + describe_shape(entry.shape);
    if (tensor == nullptr) {
      loaded_.problems.add(entry.name, expected, "no such tensor");
    } else if (!is_plain(tensor->dtype) || tensor->shape != entry.shape) {
      loaded_.problems.add(tensor->name, expected, describe(*tensor));
      tensor = nullptr;
    } else {
      loaded_.vision_tensors.push_back(tensor);
      loaded_.vision_bytes += static_cast<std::int64_t>(tensor->bytes.size());
    }
    return tensor;
  }

  LoadedCheckpoint& loaded_;
  TensorTable& table_;
};

class ByteCounter : public TextReader {
 public:
  std::int64_t bytes = 0;
  void matrix(const LayoutEntry&, const WeightMatrix& weight, bool) override { bytes += weight.stored_bytes(); }
  void vector(const LayoutEntry& entry, const std::vector<float>&) override { bytes += 4 * entry.rows; }
};

}  // namespace

LoadedCheckpoint load_checkpoint(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    fail("{}: not a directory; a checkpoint is a directory with config.json and safetensors files", directory.string());
  }
  LoadedCheckpoint loaded;
  loaded.config = read_config(directory);
  loaded.quantization = read_quantization(directory, loaded.config.layers);
  loaded.files = TensorFiles::open(directory);
  TensorTable table(loaded);
  if (table.count(NameKind::text) == 0 && table.count(NameKind::draft) > 0) {
    fail("{}: these are a draft model's tensors; m3 opens the target model's checkpoint", directory.string());
  }
  TextLoader loader(loaded, table);
  visit_text(loaded.config, loaded.weights, loader);
  loader.tied_head();
  loader.cache_scales();
  VisionLoader vision_loader(loaded, table);
  visit_vision(loaded.config, loaded.vision, vision_loader);
  table.report_unused(loaded.problems);
  loaded.text_tensors = table.count(NameKind::text);
  loaded.text_bytes = table.bytes(NameKind::text);
  if (loaded.problems.empty()) {
    check_small_scales(loaded.config, loaded.weights, scale_bytes_read_at_open, loaded.problems);
  }
  return loaded;
}

std::int64_t text_bytes(const ModelConfig& config, const TextWeights& weights) {
  ByteCounter counter;
  read_text(config, weights, counter);
  return counter.bytes;
}

}  // namespace m3
