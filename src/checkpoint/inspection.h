// What a checkpoint, or a config alone, amounts to: parameters, bytes, cache, layers, number formats, problems.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/config.h"
#include "src/checkpoint/problems.h"
#include "src/checkpoint/text_layout.h"

namespace m3 {

struct GroupCount {
  std::int64_t tensors = 0;  // as published: one for each matrix, vector and bias
  std::int64_t parameters = 0;
};

// Parameters that one token's forward pass multiplies by (spec §7.2): attention, indexer, dense MLP, the chosen and the
// shared experts, router matrices, head. Not counted: embedding table, norms, correction biases, vision.
struct ActiveCount {
  std::int64_t total = 0;
  std::int64_t with_embedding = 0;
};

struct FormatCount {
  std::int64_t matrices = 0;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;  // codes and block or row scales
};

// Bytes of the whole published layout, vision included, in one of the released variants (spec §7.3).
struct Variant {
  std::string name;
  std::int64_t bytes = 0;
};

struct CacheCost {
  std::string kv_dtype;
  std::string index_dtype;
  std::int64_t bytes_per_token = 0;
};

// Consecutive layers of one kind.
struct LayerRun {
  int first = 0;
  int last = 0;
  LayerKind kind;
};

// Modules that differ in layer and expert number alone, and share a format and a shape.
struct Scheme {
  std::string modules;  // "layers.*.self_attn.q_proj"
  std::string format;   // "bf16", "mxfp8", ...
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t count = 0;
};

// What reading all weights of one scheme showed.
struct ValueRange {
  std::string modules;
  double lowest = 0;
  double highest = 0;
  double mean_square = 0;
  std::int64_t values = 0;
  std::int64_t zero_rows = 0;  // rows (of a vector: the whole) without a value other than 0
  std::int64_t not_finite = 0;
  std::int64_t bad_scales = 0;
};

struct Inspection {
  std::filesystem::path path;
  bool weights_read = false;  // false for a bare config and where the weight files cannot be read
  ModelConfig config;
  std::string quantization;  // QuantizationPlan::description()
  std::array<GroupCount, parameter_groups> groups;
  GroupCount total;
  std::int64_t text_tensors = 0;    // published layout, unquantised
  std::int64_t vision_tensors = 0;  // likewise
  ActiveCount active;
  std::map<std::string, FormatCount> formats;  // matrices of the text model: as stored, or as the config promises
  std::vector<Variant> variants;
  std::vector<CacheCost> caches;
  std::vector<LayerRun> layers;
  std::vector<Scheme> schemes;

  // Of a checkpoint on disk.
  std::int64_t stored_tensors = 0;
  std::int64_t skipped_tensors = 0;
  std::int64_t text_bytes = 0;
  std::int64_t vision_bytes = 0;
  std::int64_t file_bytes = 0;
  std::string failure;  // why the weight files cannot be read; "" where they can
  ProblemList problems;
  std::vector<ValueRange> ranges;  // filled where all weights were read

  bool sound() const { return failure.empty() && problems.empty(); }
};

// Called with bytes read and in all.
using ReadProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// `path` is a checkpoint's directory or a config file. `deep` reads all weights and reports values that are not finite,
// scales that stand for no number, and ranges. Errors: no config there, or one that is refused.
Inspection inspect(const std::filesystem::path& path, bool deep, const ReadProgress& progress = nullptr);

}  // namespace m3
