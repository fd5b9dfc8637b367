#include "tests/support/golden_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "tests/support/seeded_checkpoint.h"

namespace m3::test {

namespace {

std::filesystem::path goldens() { return std::filesystem::path(M3_TEST_DATA) / "goldens"; }

template <typename T>
std::vector<T> values(const StoredTensor& tensor, DType dtype) {
  if (tensor.dtype != dtype) fail("{} is {}", tensor.name, dtype_name(tensor.dtype));
  std::vector<T> out(tensor.bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

}  // namespace

GoldenCase::GoldenCase(const std::string& name, const std::string& file) : directory_(goldens() / name) {
  expected_ = TensorFiles::open_file(directory_ / file);
  const auto meta = nlohmann::json::parse(read_file(directory_ / "meta.json"));
  if (meta.at("weights") == "stored") return;
  SeededGains gains;
  for (const auto& [suffix, gain] : meta.at("gains").items()) gains[suffix] = gain.get<double>();
  temporary_ = std::make_unique<TemporaryDirectory>();
  write_seeded_checkpoint(temporary_->path(), read_file(directory_ / "config.json"),
                          meta.at("seed").get<std::uint64_t>(), gains);
  directory_ = temporary_->path();
}

Checkpoint GoldenCase::open() const { return Checkpoint::open(directory_); }

const StoredTensor& GoldenCase::tensor(const std::string& name) const {
  const StoredTensor* found = expected_.find(name);
  if (found == nullptr) fail("the case lacks {}", name);
  return *found;
}

std::vector<float> GoldenCase::floats(const std::string& name) const { return values<float>(tensor(name), DType::f32); }
std::vector<std::int32_t> GoldenCase::ints(const std::string& name) const {
  return values<std::int32_t>(tensor(name), DType::i32);
}
std::vector<std::int64_t> GoldenCase::shape(const std::string& name) const { return tensor(name).shape; }

VisionCase::VisionCase(const std::string& name) : GoldenCase(name, "vision.safetensors") {
  const auto meta = nlohmann::json::parse(read_file(goldens() / name / "meta.json"));
  columns = meta.at("pixel_columns").get<std::int64_t>();
  const std::vector<std::int32_t> grids = ints("grids");
  const std::vector<std::int32_t> is_video = ints("is_video");
  for (std::size_t i = 0; i < is_video.size(); ++i) {
    media.push_back({is_video[i] != 0, grids[3 * i], grids[3 * i + 1], grids[3 * i + 2], std::ssize(pixels)});
    const std::int64_t count = media.back().patches() * columns;
    pixels.resize(pixels.size() + static_cast<std::size_t>(count));
    const std::uint64_t key = seeded_key("pixels." + std::to_string(i), meta.at("seed").get<std::uint64_t>());
    seeded_values(key, 2.0, 0, count, pixels.data() + media.back().first_pixel);
  }
}

std::vector<std::string> golden_case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(goldens())) {
    if (entry.is_directory() && exists(entry.path() / "expected.safetensors"))
      names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

double row_error(const float* a, const float* b, std::int64_t row, std::int64_t columns) {
  double difference = 0, norm = 0;
  for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace m3::test
