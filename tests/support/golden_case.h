// One folder of tests/data/goldens: a checkpoint and what the reference did with it (tools/goldens/README.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/safetensors.h"
#include "tests/support/temporary_directory.h"

namespace m3::test {

class GoldenCase {
 public:
  // Cases with seeded weights are written to a temporary directory first, as real files.
  explicit GoldenCase(const std::string& name, const std::string& file = "expected.safetensors");

  Checkpoint open() const;
  const std::filesystem::path& directory() const { return directory_; }

  bool has(const std::string& name) const { return expected_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const;
  std::vector<std::int32_t> ints(const std::string& name) const;
  std::vector<std::int64_t> shape(const std::string& name) const;

 private:
  const StoredTensor& tensor(const std::string& name) const;

  std::unique_ptr<TemporaryDirectory> temporary_;
  std::filesystem::path directory_;
  TensorFiles expected_;
};

// Every folder there that has expected.safetensors.
std::vector<std::string> golden_case_names();

// A folder with pictures (tools/goldens/vision_cases.py).
class VisionCase : public GoldenCase {
 public:
  explicit VisionCase(const std::string& name);

  struct Media {
    bool video = false;
    std::int64_t t = 0, h = 0, w = 0;
    std::int64_t first_pixel = 0;  // in `pixels`
    std::int64_t patches() const { return t * h * w; }
  };
  std::int64_t columns = 0;  // values of a patch
  std::vector<Media> media;
  std::vector<float> pixels;  // [Σ patches, columns], seeded
};

// ‖a − b‖₂ / ‖b‖₂ of row `row` of two [.., columns] arrays.
double row_error(const float* a, const float* b, std::int64_t row, std::int64_t columns);
double median(std::vector<double> values);

}  // namespace m3::test
