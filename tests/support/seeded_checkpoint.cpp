#include "tests/support/seeded_checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "src/checkpoint/safetensors_writer.h"
#include "src/checkpoint/text_layout.h"
#include "tests/support/temporary_directory.h"

namespace m3::test {

namespace {

class SeededWriter : public TextVisitor {
 public:
  SeededWriter(std::uint64_t seed, const SeededGains& gains) : seed_(seed), gains_(gains) {}
  std::vector<FileTensor> tensors;

  void linear(const LayoutEntry& entry, WeightMatrix&) override { add(entry, {entry.rows, entry.columns}); }
  void matrix(const LayoutEntry& entry, WeightMatrix&) override { add(entry, {entry.rows, entry.columns}); }
  void vector(const LayoutEntry& entry, std::vector<float>&) override { add(entry, {entry.rows}); }

 private:
  void add(const LayoutEntry& entry, std::vector<std::int64_t> shape) {
    FileTensor tensor;
    tensor.name = entry.name();
    const bool wide = seeded_stays_float(tensor.name);
    tensor.dtype = wide ? DType::f32 : DType::bf16;
    const std::uint64_t key = seeded_key(tensor.name, seed_);
    const double bound = seeded_bound(tensor.name, shape.back(), gains_);
    tensor.shape = std::move(shape);
    const std::int64_t count = entry.elements();
    if (wide) {
      std::vector<float> values(static_cast<std::size_t>(count));
      seeded_values(key, bound, 0, count, values.data());
      const auto bytes = std::as_bytes(std::span(values));
      tensor.bytes.assign(bytes.begin(), bytes.end());
    } else {
      std::vector<bf16> values(static_cast<std::size_t>(count));
      seeded_values(key, bound, 0, count, values.data());
      const auto bytes = std::as_bytes(std::span(values));
      tensor.bytes.assign(bytes.begin(), bytes.end());
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
