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

constexpr std::int64_t chunk_elements = std::int64_t{1} << 20;
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

// Of the codes 0x30 … 0x3f: 0.5 … 1.875.
double rms_of_nvfp4_scales() {
  double sum = 0;
  for (int code = 0x30; code < 0x40; ++code) sum += std::pow(e4m3_to_float(static_cast<std::uint8_t>(code)), 2);
  return std::sqrt(sum / 16);
}

// e8m0 codes e or e + 1, drawn so that the mean square of the scales is target².
struct BlockScale {
  std::uint8_t low = 127;
  double high_share = 0;

  explicit BlockScale(double target) {
    const double exponent = std::log2(target);
    const double floor = std::floor(exponent);
    low = static_cast<std::uint8_t>(std::clamp(static_cast<int>(floor) + 127, 0, 253));
    high_share = (std::exp2(2 * (exponent - floor)) - 1) / 3;
  }
};

// A run of output bytes and the work that fills it.
struct Job {
  enum class Kind : std::uint8_t { values, floats, codes8, codes4, e8m0, e4m3_scales, row_scales };
  Kind kind = Kind::values;
  std::int64_t offset = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;  // elements, or bytes of codes and scales
  std::uint64_t key = 0;
  double parameter = 0;  // bound of values, target of scales
};

void fill_codes(std::uint64_t key, std::int64_t first, std::int64_t count, std::uint64_t mask, std::uint64_t set,
                std::byte* out) {
  // Chunks begin at multiples of 8, so that a word's place depends on its index alone.
  for (std::int64_t i = 0; i < count; i += 8) {
    const std::uint64_t word = (seeded_word(key, static_cast<std::uint64_t>((first + i) / 8)) & mask) | set;
    std::memcpy(out + i, &word, static_cast<std::size_t>(std::min<std::int64_t>(8, count - i)));
  }
}

void run_job(const Job& job, std::byte* memory) {
  const auto word = [&](std::int64_t i) { return seeded_word(job.key, static_cast<std::uint64_t>(job.first + i)); };
  const auto unit = [&](std::int64_t i) { return static_cast<double>(word(i) >> 11) * 0x1p-53; };
  std::byte* out = memory + job.offset;
  switch (job.kind) {
    case Job::Kind::values:
      return seeded_values(job.key, job.parameter, job.first, job.count, reinterpret_cast<bf16*>(out));
    case Job::Kind::floats:
      return seeded_values(job.key, job.parameter, job.first, job.count, reinterpret_cast<float*>(out));
    case Job::Kind::codes8: return fill_codes(job.key, job.first, job.count, e4m3_mask, e4m3_set, out);
    case Job::Kind::codes4: return fill_codes(job.key, job.first, job.count, ~std::uint64_t{0}, 0, out);
    case Job::Kind::e8m0: {
      const BlockScale scale(job.parameter);
      for (std::int64_t i = 0; i < job.count; ++i) out[i] = std::byte(scale.low + (unit(i) < scale.high_share));
      return;
    }
    case Job::Kind::e4m3_scales:
      return fill_codes(job.key, job.first, job.count, 0x0f0f0f0f0f0f0f0fu, 0x3030303030303030u, out);
    case Job::Kind::row_scales: {
      auto* scales = reinterpret_cast<float*>(out);
      for (std::int64_t i = 0; i < job.count; ++i) scales[i] = static_cast<float>(job.parameter * (0.5 + unit(i)));
      return;
    }
  }
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
    if (weight.format == WeightFormat::bf16) return plain(entry, weight, Job::Kind::values, 2);
    quantized(entry, weight);
  }

  void matrix(const LayoutEntry& entry, WeightMatrix& weight) override {
    const bool router = seeded_stays_float(entry.name());
    weight = {};
    weight.format = router ? WeightFormat::f32 : WeightFormat::bf16;
    weight.rows = entry.rows;
    weight.columns = entry.columns;
    plain(entry, weight, router ? Job::Kind::floats : Job::Kind::values, router ? 4 : 2);
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
    placed_.push_back({&weight, add(wide ? Job::Kind::floats : Job::Kind::values, entry.name, entry.elements(),
                                    wide ? 4 : 2, seeded_bound(entry.name, entry.columns()))});
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
    pool.each(std::ssize(jobs_),
              [&](std::int64_t index, int) { run_job(jobs_[static_cast<std::size_t>(index)], made.data()); });
    return made;
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

  // `count` elements of `size` bytes, cut into jobs; returns where they begin.
  std::int64_t add(Job::Kind kind, const std::string& name, std::int64_t count, std::int64_t size, double parameter) {
    const std::int64_t begin = bytes_;
    const std::uint64_t key = seeded_key(name, seed_);
    for (std::int64_t first = 0; first < count; first += chunk_elements) {
      jobs_.push_back({kind, begin + first * size, first, std::min(chunk_elements, count - first), key, parameter});
    }
    bytes_ += aligned(count * size);
    return begin;
  }

  void plain(const LayoutEntry& entry, WeightMatrix& weight, Job::Kind kind, std::int64_t size) {
    const std::string name = entry.name();
    placed_.push_back({&weight, add(kind, name, entry.elements(), size, seeded_bound(name, entry.columns))});
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
    placed.values =
        add(four_bits ? Job::Kind::codes4 : Job::Kind::codes8, name, weight.rows * weight.row_bytes(), 1, 0);
    const std::int64_t blocks = weight.rows * weight.scale_row_bytes();
    if (weight.format == WeightFormat::fp8) {
      // Factors uniform in 0.5 … 1.5 have a mean square of 13/12.
      placed.scales = add(Job::Kind::row_scales, scale_name, weight.rows, 4, target / std::sqrt(13.0 / 12.0));
    } else if (weight.format == WeightFormat::nvfp4) {
      placed.scales = add(Job::Kind::e4m3_scales, scale_name, blocks, 1, 0);
      weight.tensor_scale = static_cast<float>(target / rms_of_nvfp4_scales());
    } else {
      placed.scales = add(Job::Kind::e8m0, scale_name, blocks, 1, target);
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

Checkpoint Checkpoint::random(const ModelConfig& config, const std::string& format, std::uint64_t seed) {
  auto contents = std::make_unique<Contents>();
  contents->directory = "random weights";
  contents->loaded.config = config;
  TextWeights& weights = contents->loaded.weights;
  RandomPlanner planner(format, seed);
  visit_text(config, weights, planner);
  contents->made = planner.make();
  if (config.tie_word_embeddings) weights.lm_head = weights.embed_tokens;
  return Checkpoint(std::move(contents));
}

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
