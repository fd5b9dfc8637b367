#include "src/checkpoint/scales.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "src/checkpoint/text_layout.h"

namespace m3 {

namespace {

std::int64_t scale_bytes(const WeightMatrix& weight) {
  return weight.rows * weight.scale_row_bytes() + (weight.row_scales != nullptr ? weight.rows * 4 : 0);
}

class ScaleSum : public TextReader {
 public:
  std::int64_t bytes = 0;
  void matrix(const LayoutEntry&, const WeightMatrix& weight, bool) override { bytes += scale_bytes(weight); }
  void vector(const LayoutEntry&, const std::vector<float>&) override {}
};

class ScaleCheck : public TextReader {
 public:
  explicit ScaleCheck(ProblemList& problems) : problems_(problems) {}
  void matrix(const LayoutEntry& entry, const WeightMatrix& weight, bool) override {
    const ScaleFaults faults = scale_faults(weight);
    if (faults.not_a_number == 0) return;
    problems_.add(entry.name(), "scales that are numbers",
                  fmt::format("{} that are not, the first in row {}", faults.not_a_number, faults.first_row));
  }
  void vector(const LayoutEntry&, const std::vector<float>&) override {}

 private:
  ProblemList& problems_;
};

}  // namespace

ScaleFaults scale_faults(const WeightMatrix& weight) {
  ScaleFaults faults;
  const bool e4m3 = weight.format == WeightFormat::nvfp4;
  const std::int64_t width = weight.scale_row_bytes();
  for (std::int64_t row = 0; row < weight.rows; ++row) {
    std::int64_t found = 0;
    const std::byte* scales = weight.scales == nullptr ? nullptr : weight.scales + row * width;
    for (std::int64_t i = 0; scales != nullptr && i < width; ++i) {
      const auto code = static_cast<unsigned>(scales[i]);
      found += e4m3 ? (code & 0x7f) == 0x7f : code == 255;
    }
    if (weight.row_scales != nullptr && !std::isfinite(weight.row_scales[row])) ++found;
    if (found != 0 && faults.first_row < 0) faults.first_row = row;
    faults.not_a_number += found;
  }
  return faults;
}

void check_small_scales(const ModelConfig& config, const TextWeights& weights, std::int64_t limit,
                        ProblemList& problems) {
  ScaleSum sum;
  read_text(config, weights, sum);
  if (sum.bytes > limit) return;
  ScaleCheck check(problems);
  read_text(config, weights, check);
}

}  // namespace m3
