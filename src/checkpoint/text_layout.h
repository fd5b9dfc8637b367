// Every weight of the text model: its published name, shape, and slot in TextWeights (spec §2.1). The one place that
// knows them; loading, random weights, counting and quantising all walk it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/config.h"
#include "src/checkpoint/text_weights.h"

namespace m3 {

// The rows of spec §7.1.
enum class ParameterGroup : std::uint8_t {
  routed_experts,
  attention,
  shared_experts,
  lm_head,
  embedding,
  dense_mlp,
  vision_tower,
  projector,
  indexer,
  router,
  norms,
};
inline constexpr std::size_t parameter_groups = 11;
std::string_view parameter_group_name(ParameterGroup group);  // "routed experts", ...

// Where a re-saved checkpoint keeps a matrix: rows from `first_row` of a stored tensor whose sizes are `lead`, then
// the matrix's columns.
struct FusedPlace {
  std::string module;  // "" where no fused spelling exists
  std::vector<std::int64_t> lead;
  std::int64_t first_row = 0;
};

// One weight as visited. `name()` is the published tensor name.
struct LayoutEntry {
  std::string module;
  std::string_view part = "weight";
  ParameterGroup group = ParameterGroup::attention;
  int layer = -1;  // -1 outside the layers
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // 0 for a vector of `rows` elements
  FusedPlace fused;

  std::string name() const { return module + "." + std::string(part); }
  std::int64_t elements() const { return columns == 0 ? rows : rows * columns; }
};

class TextVisitor {
 public:
  virtual ~TextVisitor() = default;
  // May be quantised.
  virtual void linear(const LayoutEntry& entry, WeightMatrix& weight) = 0;
  // Embedding, head, router: never quantised.
  virtual void matrix(const LayoutEntry& entry, WeightMatrix& weight) = 0;
  virtual void vector(const LayoutEntry& entry, std::vector<float>& values) = 0;
};

// Visits in file order: embedding, layers ascending, final norm, head. Sizes weights.layers and the experts first.
// A tied head is not visited; it is the embedding.
void visit_text(const ModelConfig& config, TextWeights& weights, TextVisitor& visitor);

// The same walk over weights that stay as they are.
class TextReader {
 public:
  virtual ~TextReader() = default;
  virtual void matrix(const LayoutEntry& entry, const WeightMatrix& weight, bool may_be_quantized) = 0;
  virtual void vector(const LayoutEntry& entry, const std::vector<float>& values) = 0;
};
void read_text(const ModelConfig& config, const TextWeights& weights, TextReader& reader);

}  // namespace m3
