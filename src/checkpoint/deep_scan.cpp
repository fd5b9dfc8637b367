#include "src/checkpoint/deep_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "src/base/thread_pool.h"
#include "src/checkpoint/names.h"
#include "src/checkpoint/scales.h"
#include "src/checkpoint/schemes.h"
#include "src/checkpoint/text_layout.h"

namespace m3 {

namespace {

struct Tally {
  float lowest = std::numeric_limits<float>::infinity();
  float highest = -std::numeric_limits<float>::infinity();
  double squares = 0;
  std::int64_t values = 0;
  std::int64_t zero_rows = 0;
  std::int64_t not_finite = 0;

  void add_row(const float* row, std::int64_t count) {
    bool zero = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = row[i];
      if (!std::isfinite(value)) {
        ++not_finite;
        zero = false;
        continue;
      }
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
      squares += static_cast<double>(value) * value;
      zero = zero && value == 0;
    }
    values += count;
    zero_rows += zero;
  }

  void add(const Tally& other) {
    lowest = std::min(lowest, other.lowest);
    highest = std::max(highest, other.highest);
    squares += other.squares;
    values += other.values;
    zero_rows += other.zero_rows;
    not_finite += other.not_finite;
  }
};

class Scan : public TextReader {
 public:
  Scan(ProblemList& problems, std::int64_t total, const ReadProgress& progress)
      : problems_(problems), progress_(progress), total_(total) {}

  std::vector<ValueRange> ranges;

  void matrix(const LayoutEntry& entry, const WeightMatrix& weight, bool) override {
    if (weight.empty()) return;
    const ScaleFaults faults = scale_faults(weight);
    std::vector<Tally> tallies(static_cast<std::size_t>(pool_.size()));
    pool_.split(weight.rows, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      std::vector<float> row(static_cast<std::size_t>(weight.columns));
      for (std::int64_t n = begin; n < end; ++n) {
        widen_row(weight, n, row.data());
        tallies[static_cast<std::size_t>(thread)].add_row(row.data(), weight.columns);
      }
    });
    Tally sum;
    for (const Tally& tally : tallies) sum.add(tally);
    report(entry.name(), sum, faults.not_a_number);
    note(scheme_name(entry.module), sum, faults.not_a_number);
    read(weight.stored_bytes());
  }

  void vector(const LayoutEntry& entry, const std::vector<float>& values) override {
    one_row(entry.name(), scheme_name(entry.part == "weight" ? entry.module : entry.name()), values);
  }

  void one_row(const std::string& name, const std::string& scheme, const std::vector<float>& values) {
    if (values.empty()) return;
    Tally tally;
    tally.add_row(values.data(), static_cast<std::int64_t>(values.size()));
    report(name, tally, 0);
    note(scheme, tally, 0);
  }

  void read(std::int64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(std::min(done_, total_), total_);
  }

 private:
  void report(const std::string& name, const Tally& tally, std::int64_t bad_scales) {
    if (bad_scales != 0) {
      problems_.add(name, "scales that are numbers", fmt::format("{} that are not", bad_scales));
    } else if (tally.not_finite != 0 && std::ranges::count(problems_.all(), name, &Problem::name) == 0) {
      problems_.add(name, "finite values", fmt::format("{} that are not", tally.not_finite));
    }
  }

  void note(const std::string& scheme, const Tally& tally, std::int64_t bad_scales) {
    auto found = std::find_if(ranges.begin(), ranges.end(), [&](const ValueRange& r) { return r.modules == scheme; });
    if (found == ranges.end()) {
      ranges.push_back(
          {scheme, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 0, 0, 0, 0, 0});
      found = ranges.end() - 1;
    }
    ValueRange& range = *found;
    range.lowest = std::min(range.lowest, static_cast<double>(tally.lowest));
    range.highest = std::max(range.highest, static_cast<double>(tally.highest));
    const double squares = range.mean_square * static_cast<double>(range.values) + tally.squares;
    range.values += tally.values;
    range.mean_square = squares / static_cast<double>(std::max<std::int64_t>(range.values, 1));
    range.zero_rows += tally.zero_rows;
    range.not_finite += tally.not_finite;
    range.bad_scales += bad_scales;
  }

  ProblemList& problems_;
  const ReadProgress& progress_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  ThreadPool pool_;
};

}  // namespace

std::string scheme_name(const std::string& module) {
  std::string result;
  for (const std::string_view part : split_name(from_layers(module))) {
    if (!result.empty()) result += '.';
    const bool number = std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    result += number ? "*" : part;
  }
  return result;
}

std::vector<ValueRange> deep_scan(const LoadedCheckpoint& loaded, ProblemList& problems, const ReadProgress& progress) {
  Scan scan(problems, text_bytes(loaded.config, loaded.weights) + loaded.vision_bytes, progress);
  read_text(loaded.config, loaded.weights, scan);
  for (const StoredTensor* tensor : loaded.vision_tensors) {
    scan.one_row(tensor->name, "vision and projector", widen(*tensor));
    scan.read(static_cast<std::int64_t>(tensor->bytes.size()));
  }
  return std::move(scan.ranges);
}

}  // namespace m3
