#include "tests/support/seeded_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "src/checkpoint/safetensors_writer.h"
#include "src/checkpoint/text_layout.h"
#include "src/checkpoint/vision_layout.h"
#include "tests/support/temporary_directory.h"

namespace m3::test {

namespace {

class SeededWriter : public TextVisitor, public VisionVisitor {
 public:
  SeededWriter(std::uint64_t seed, const SeededGains& gains) : seed_(seed), gains_(gains) {}
  std::vector<FileTensor> tensors;

  void linear(const LayoutEntry& entry, WeightMatrix&) override { add(entry.name(), {entry.rows, entry.columns}); }
  void matrix(const LayoutEntry& entry, WeightMatrix&) override { add(entry.name(), {entry.rows, entry.columns}); }
  void vector(const LayoutEntry& entry, std::vector<float>&) override { add(entry.name(), {entry.rows}); }
  void matrix(const VisionEntry& entry, WeightMatrix&) override { add(entry.name, entry.shape); }
  void vector(const VisionEntry& entry, std::vector<float>&) override { add(entry.name, entry.shape); }

 private:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    FileTensor tensor;
    tensor.name = name;
    const bool wide = seeded_stays_float(name);
    tensor.dtype = wide ? DType::f32 : DType::bf16;
    std::int64_t count = 1;
    for (const std::int64_t dimension : shape) count *= dimension;
    const std::int64_t columns = shape.size() == 1 ? shape[0] : count / shape[0];
    tensor.shape = std::move(shape);
    std::vector<float> values(static_cast<std::size_t>(count));
    seeded_values(seeded_key(name, seed_), seeded_bound(name, columns, gains_), 0, count, values.data());
    for (float& value : values) value += seeded_centre(name);
    const auto keep = [&](const auto& stored) {
      const auto bytes = std::as_bytes(std::span(stored));
      tensor.bytes.assign(bytes.begin(), bytes.end());
    };
    if (wide) {
      keep(values);
    } else {
      std::vector<bf16> rounded(values.size());
      std::ranges::transform(values, rounded.begin(), to_bf16);
      keep(rounded);
    }
    tensors.push_back(std::move(tensor));
  }

  std::uint64_t seed_;
  const SeededGains& gains_;
};

}  // namespace

std::vector<FileTensor> seeded_tensors(const ModelConfig& config, std::uint64_t seed, const SeededGains& gains) {
  SeededWriter writer(seed, gains);
  TextWeights unused;
  visit_text(config, unused, writer);
  VisionWeights unused_vision;
  visit_vision(config, unused_vision, writer);
  return std::move(writer.tensors);
}

void write_safetensors(const std::filesystem::path& file, const std::vector<FileTensor>& tensors) {
  SafetensorsWriter writer(file);
  writer.metadata("format", "pt");
  for (const FileTensor& tensor : tensors) writer.declare(tensor.name, tensor.dtype, tensor.shape);
  for (const FileTensor& tensor : tensors) writer.write(tensor.name, tensor.bytes);
  writer.commit();
}

void write_checkpoint(const std::filesystem::path& directory, const std::string& config_json,
                      const std::vector<FileTensor>& tensors, int shards) {
  std::filesystem::create_directories(directory);
  write_file(directory / "config.json", config_json);
  if (shards == 1) return write_safetensors(directory / "model.safetensors", tensors);
  nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", nlohmann::json::object()}};
  for (int shard = 0; shard < shards; ++shard) {
    const auto at = [&](int n) { return tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size()) * n / shards; };
    const std::vector<FileTensor> part(at(shard), at(shard + 1));
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    write_safetensors(directory / name, part);
    for (const FileTensor& tensor : part) index["weight_map"][tensor.name] = name;
  }
  write_file(directory / "model.safetensors.index.json", index.dump(1));
}

void write_seeded_checkpoint(const std::filesystem::path& directory, const std::string& config_json, std::uint64_t seed,
                             const SeededGains& gains, int shards) {
  write_checkpoint(directory, config_json, seeded_tensors(parse_config(config_json, "test config"), seed, gains),
                   shards);
}

}  // namespace m3::test
