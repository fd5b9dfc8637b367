// Checkpoint::random: weights of any described size and format without a file.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/thread_pool.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/contents.h"
#include "src/checkpoint/seeded_weights.h"
#include "src/checkpoint/text_layout.h"
#include "src/checkpoint/vision_layout.h"

namespace m3 {

namespace {

constexpr std::int64_t chunk_bytes = std::int64_t{2} << 20;
constexpr std::int64_t alignment = 64;

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// e4m3 codes with bit 6 clear and bit 3 set: no NaN, magnitudes below 2, and no subnormals, of which scaled weights
// hold one in 10,000 (a normal distribution whose largest of 32 lies at the top of the range).
constexpr std::uint64_t e4m3_mask = 0xb7b7b7b7b7b7b7b7u;
constexpr std::uint64_t e4m3_set = 0x0808080808080808u;

double rms_of_e4m3_codes() {
  double sum = 0;
  for (int code = 0; code < 64; ++code) sum += std::pow(e4m3_to_float(static_cast<std::uint8_t>(code | 8)), 2);
  return std::sqrt(sum / 64);
}

double rms_of_e2m1_codes() {
  double sum = 0;
  for (int code = 0; code < 8; ++code) sum += std::pow(e2m1_to_float(static_cast<std::uint8_t>(code)), 2);
  return std::sqrt(sum / 8);
}

constexpr RandomFill nvfp4_scales{
    .kind = RandomFill::Kind::bytes, .mask = 0x0f0f0f0f0f0f0f0fu, .set = 0x3030303030303030u};
// Of the codes 0x30 … 0x3f: 0.5 … 1.875.
double rms_of_nvfp4_scales() {
  double sum = 0;
  for (int code = 0x30; code < 0x40; ++code) sum += std::pow(e4m3_to_float(static_cast<std::uint8_t>(code)), 2);
  return std::sqrt(sum / 16);
}

// e8m0 codes e or e + 1, drawn so that the mean square of the scales is target².
RandomFill of_e8m0_scales(double target) {
  const double exponent = std::log2(target);
  const double floor = std::floor(exponent);
  return {.kind = RandomFill::Kind::e8m0,
          .parameter = (std::exp2(2 * (exponent - floor)) - 1) / 3,
          .base = static_cast<std::uint8_t>(std::clamp(static_cast<int>(floor) + 127, 0, 253))};
}

// A run of output bytes and what fills it.
struct Job {
  RandomFill fill;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

RandomFill of_values(bool wide, double bound) {
  return {.kind = wide ? RandomFill::Kind::f32 : RandomFill::Kind::bf16, .parameter = bound};
}
RandomFill of_codes(bool four_bits) {
  if (four_bits) return {.kind = RandomFill::Kind::bytes};
  return {.kind = RandomFill::Kind::bytes, .mask = e4m3_mask, .set = e4m3_set};
}

WeightFormat linear_format(const std::string& format, const LayoutEntry& entry) {
  const bool routed = entry.group == ParameterGroup::routed_experts;
  if (format == "bf16") return WeightFormat::bf16;
  if (format == "mxfp8") return WeightFormat::mxfp8;
  if (format == "fp8") return WeightFormat::fp8;
  if (format == "mxfp4") return routed ? WeightFormat::mxfp4 : WeightFormat::bf16;
  if (format == "nvfp4") return routed ? WeightFormat::nvfp4 : WeightFormat::mxfp8;
  fail_usage("unknown weight format \"{}\"; accepted: bf16, mxfp8, mxfp4, nvfp4, fp8", format);
}

// Lays all weights out in one block, offsets first; pointers are set when the block exists.
class RandomPlanner : public TextVisitor, public VisionVisitor {
 public:
  RandomPlanner(std::string format, std::uint64_t seed) : format_(std::move(format)), seed_(seed) {}

  void linear(const LayoutEntry& entry, WeightMatrix& weight) override {
    weight = {};
    weight.format = linear_format(format_, entry);
    weight.rows = entry.rows;
    weight.columns = entry.columns;
    const std::int64_t group = weight.format == WeightFormat::bf16    ? 1
                               : weight.format == WeightFormat::fp8   ? 1
                               : weight.format == WeightFormat::nvfp4 ? 16
                                                                      : 32;
    if (entry.columns % group != 0) {
      fail("{}: {} columns are no multiple of {}, which {} needs", entry.name(), entry.columns, group,
           weight_format_name(weight.format));
    }
    if (weight.format == WeightFormat::bf16) return plain(entry, weight, false);
    quantized(entry, weight);
  }

  void matrix(const LayoutEntry& entry, WeightMatrix& weight) override {
    const bool router = seeded_stays_float(entry.name());
    weight = {};
    weight.format = router ? WeightFormat::f32 : WeightFormat::bf16;
    weight.rows = entry.rows;
    weight.columns = entry.columns;
    plain(entry, weight, router);
  }

  void vector(const LayoutEntry& entry, std::vector<float>& values) override {
    const std::string name = entry.name();
    values.resize(static_cast<std::size_t>(entry.rows));
    seeded_values(seeded_key(name, seed_), seeded_bound(name, entry.rows), 0, entry.rows, values.data());
    if (seeded_stays_float(name)) return;
    for (float& value : values) value = round_to_bf16(value);
  }

  void matrix(const VisionEntry& entry, WeightMatrix& weight) override {
    const bool wide = seeded_stays_float(entry.name);
    weight = {};
    weight.format = wide ? WeightFormat::f32 : WeightFormat::bf16;
    weight.rows = entry.shape.front();
    weight.columns = entry.columns();
    placed_.push_back(
        {&weight, add(of_values(wide, seeded_bound(entry.name, entry.columns())), entry.name, entry.elements())});
  }

  void vector(const VisionEntry& entry, std::vector<float>& values) override {
    values.resize(static_cast<std::size_t>(entry.elements()));
    seeded_values(seeded_key(entry.name, seed_), seeded_bound(entry.name, entry.columns()), 0, entry.elements(),
                  values.data());
    for (float& value : values) value = round_to_bf16(value + seeded_centre(entry.name));
  }

  // The planned weights.
  AnonymousMemory make() {
    AnonymousMemory made(static_cast<std::size_t>(bytes_));
    place(made.data());
    ThreadPool pool;
    std::vector<std::pair<const Job*, std::int64_t>> chunks;  // with their first bytes
    for (const Job& job : jobs_) {
      for (std::int64_t first = 0; first < job.bytes; first += chunk_bytes) chunks.emplace_back(&job, first);
    }
    pool.each(std::ssize(chunks), [&](std::int64_t index, int) {
      const auto [job, first] = chunks[static_cast<std::size_t>(index)];
      const auto bytes = static_cast<std::size_t>(std::min(chunk_bytes, job->bytes - first));
      fill_random(job->fill, first / job->fill.element_bytes(), {made.data() + job->offset + first, bytes});
    });
    return made;
  }

  // Their places and what would fill them.
  AnonymousMemory plan(std::vector<RandomPiece>& pieces) {
    AnonymousMemory addresses = AnonymousMemory::addresses(static_cast<std::size_t>(bytes_));
    place(addresses.data());
    for (const Job& job : jobs_) pieces.push_back({addresses.data() + job.offset, job.bytes, job.fill});
    return addresses;
  }

 private:
  // Turns offsets into addresses.
  void place(std::byte* memory) {
    for (const Placed& placed : placed_) {
      placed.weight->values = memory + placed.values;
      if (placed.scales < 0) continue;
      if (placed.weight->format == WeightFormat::fp8) {
        placed.weight->row_scales = reinterpret_cast<const float*>(memory + placed.scales);
      } else {
        placed.weight->scales = memory + placed.scales;
      }
    }
  }

  struct Placed {
    WeightMatrix* weight = nullptr;
    std::int64_t values = 0;
    std::int64_t scales = -1;
  };

  // `count` elements; returns where they begin.
  std::int64_t add(RandomFill fill, const std::string& name, std::int64_t count) {
    const std::int64_t begin = bytes_;
    fill.key = seeded_key(name, seed_);
    jobs_.push_back({fill, begin, count * fill.element_bytes()});
    bytes_ += aligned(jobs_.back().bytes);
    return begin;
  }

  void plain(const LayoutEntry& entry, WeightMatrix& weight, bool wide) {
    const std::string name = entry.name();
    placed_.push_back({&weight, add(of_values(wide, seeded_bound(name, entry.columns)), name, entry.elements())});
  }

  void quantized(const LayoutEntry& entry, WeightMatrix& weight) {
    static const double e4m3_rms = rms_of_e4m3_codes();
    static const double e2m1_rms = rms_of_e2m1_codes();
    const bool four_bits = weight.format == WeightFormat::mxfp4 || weight.format == WeightFormat::nvfp4;
    // What all scales together must be for a variance of 1/K.
    const double target = 1 / (std::sqrt(static_cast<double>(entry.columns)) * (four_bits ? e2m1_rms : e4m3_rms));
    const std::string name = entry.name();
    const std::string scale_name = name + "_scale";
    Placed placed{&weight};
    placed.values = add(of_codes(four_bits), name, weight.rows * weight.row_bytes());
    const std::int64_t blocks = weight.rows * weight.scale_row_bytes();
    if (weight.format == WeightFormat::fp8) {
      // Factors uniform in 0.5 … 1.5 have a mean square of 13/12.
      placed.scales = add({.kind = RandomFill::Kind::row_scales, .parameter = target / std::sqrt(13.0 / 12.0)},
                          scale_name, weight.rows);
    } else if (weight.format == WeightFormat::nvfp4) {
      placed.scales = add(nvfp4_scales, scale_name, blocks);
      weight.tensor_scale = static_cast<float>(target / rms_of_nvfp4_scales());
    } else {
      placed.scales = add(of_e8m0_scales(target), scale_name, blocks);
    }
    placed_.push_back(placed);
  }

  std::string format_;
  std::uint64_t seed_;
  std::vector<Placed> placed_;
  std::vector<Job> jobs_;
  std::int64_t bytes_ = 0;
};

}  // namespace

Checkpoint Checkpoint::make_random(const ModelConfig& config, const std::string& format, std::uint64_t seed,
                                   bool stored) {
  auto contents = std::make_unique<Contents>();
  contents->directory = "random weights";
  contents->loaded.config = config;
  TextWeights& weights = contents->loaded.weights;
  RandomPlanner planner(format, seed);
  visit_text(config, weights, planner);
  contents->made = stored ? planner.make() : planner.plan(contents->unmade);
  if (config.tie_word_embeddings) weights.lm_head = weights.embed_tokens;
  return Checkpoint(std::move(contents));
}

Checkpoint Checkpoint::random(const ModelConfig& config, const std::string& format, std::uint64_t seed) {
  return make_random(config, format, seed, true);
}

Checkpoint Checkpoint::random_unmade(const ModelConfig& config, const std::string& format, std::uint64_t seed) {
  return make_random(config, format, seed, false);
}

std::span<const RandomPiece> Checkpoint::made() const { return contents_->unmade; }

Checkpoint Checkpoint::random_vision(const ModelConfig& config, std::uint64_t seed) {
  auto contents = std::make_unique<Contents>();
  contents->directory = "random weights";
  contents->loaded.config = config;
  RandomPlanner planner("bf16", seed);
  visit_vision(config, contents->loaded.vision, planner);
  contents->made = planner.make();
  return Checkpoint(std::move(contents));
}

}  // namespace m3
