#include "src/checkpoint/quantize_online.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/number_formats.h"
#include "src/base/thread_pool.h"
#include "src/checkpoint/quantization.h"
#include "src/checkpoint/schemes.h"
#include "src/checkpoint/text_layout.h"

namespace m3 {

namespace {

constexpr std::int64_t alignment = 64;

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Job {
  std::string name;
  WeightMatrix* weight = nullptr;
  std::int64_t offset = 0;  // of the codes; the row scales follow, aligned
};

class ExcludeList {
 public:
  ExcludeList(const ModelConfig& config, const std::vector<std::string>& patterns) : patterns_(patterns) {
    for (std::string pattern : patterns) {
      if (pattern.ends_with(".weight")) pattern.resize(pattern.size() - std::string_view(".weight").size());
      lists_.emplace_back().add(pattern, config.layers);
    }
    used_.resize(patterns.size());
  }

  bool holds(const std::string& module) {
    bool found = false;
    for (std::size_t i = 0; i < lists_.size(); ++i) {
      if (!lists_[i].holds(module)) continue;
      used_[i] = true;
      found = true;
    }
    return found;
  }

  void check_all_used() const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (used_[i]) continue;
      fail_usage(
          "the quantisation exclude pattern \"{}\" names no linear of this checkpoint (names are like {}; '*' "
          "stands for any run of characters)",
          patterns_[i], "layers.3.self_attn.q_proj");
    }
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<ModuleList> lists_;
  std::vector<bool> used_;
};

class Planner : public TextVisitor {
 public:
  explicit Planner(ExcludeList& excluded) : excluded_(excluded) {}

  std::vector<Job> jobs;
  std::int64_t bytes = 0;
  std::int64_t elements = 0;

  void linear(const LayoutEntry& entry, WeightMatrix& weight) override {
    if (excluded_.holds(entry.module)) return;
    if (weight.format == WeightFormat::fp8) {
      weight.quantized_activations = weight.row_scales != nullptr;
      return;
    }
    if (!is_plain(weight.format) && weight.format != WeightFormat::mxfp8) return;
    jobs.push_back({entry.name(), &weight, bytes});
    bytes += aligned(weight.rows * weight.columns) + aligned(weight.rows * 4);
    elements += weight.rows * weight.columns;
  }
  void matrix(const LayoutEntry&, WeightMatrix&) override {}
  void vector(const LayoutEntry&, std::vector<float>&) override {}

 private:
  ExcludeList& excluded_;
};

void quantize_row(const float* values, std::int64_t columns, const std::string& name, std::uint8_t* codes,
                  float& scale) {
  float largest = 0;
  bool finite = true;
  for (std::int64_t k = 0; k < columns; ++k) {
    finite = finite && std::isfinite(values[k]);
    largest = std::max(largest, std::fabs(values[k]));
  }
  if (!finite) fail("{}: a weight is not finite; ptpc_fp8 cannot scale its row", name);
  scale = largest / 448.0f;
  if (!(scale > 0)) scale = 1;  // zeros, or values below what a float scale can express
  for (std::int64_t k = 0; k < columns; ++k) codes[k] = float_to_e4m3(values[k] / scale);
}

}  // namespace

void quantize_online(const ModelConfig& config, const OpenOptions& options, TextWeights& weights,
                     AnonymousMemory& memory) {
  if (options.quantization != "ptpc_fp8") {
    fail_usage("unknown quantisation \"{}\"; accepted: ptpc_fp8 (the format that a checkpoint has needs no flag)",
               options.quantization);
  }
  ExcludeList excluded(config, options.quantization_exclude);
  Planner planner(excluded);
  visit_text(config, weights, planner);
  excluded.check_all_used();
  memory = AnonymousMemory(static_cast<std::size_t>(planner.bytes));

  ThreadPool pool;
  std::vector<std::vector<float>> rows(static_cast<std::size_t>(pool.size()));
  std::int64_t done = 0;
  for (const Job& job : planner.jobs) {
    const WeightMatrix source = *job.weight;
    auto* codes = reinterpret_cast<std::uint8_t*>(memory.data() + job.offset);
    auto* scales = reinterpret_cast<float*>(memory.data() + job.offset + aligned(source.rows * source.columns));
    pool.split(source.rows, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      std::vector<float>& row = rows[static_cast<std::size_t>(thread)];
      row.resize(static_cast<std::size_t>(source.columns));
      for (std::int64_t n = begin; n < end; ++n) {
        widen_row(source, n, row.data());
        quantize_row(row.data(), source.columns, job.name, codes + n * source.columns, scales[n]);
      }
    });
    WeightMatrix& result = *job.weight;
    result = {};
    result.format = WeightFormat::fp8;
    result.rows = source.rows;
    result.columns = source.columns;
    result.values = reinterpret_cast<const std::byte*>(codes);
    result.row_scales = scales;
    result.quantized_activations = true;
    done += source.rows * source.columns;
    if (options.progress) options.progress(done, planner.elements);
  }
}

}  // namespace m3
