// Every weight of the vision tower: its published name, shape, and slot in VisionWeights (spec §2.1 "Vision").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/checkpoint/config.h"
#include "src/checkpoint/text_layout.h"
#include "src/checkpoint/vision_weights.h"

namespace m3 {

struct VisionEntry {
  std::string name;
  std::vector<std::int64_t> shape;
  ParameterGroup group = ParameterGroup::vision_tower;

  std::int64_t elements() const;
  // Of the matrix [shape[0], the rest]; the element count of a vector.
  std::int64_t columns() const { return shape.size() == 1 ? shape[0] : elements() / shape[0]; }
};

class VisionVisitor {
 public:
  virtual ~VisionVisitor() = default;
  virtual void matrix(const VisionEntry& entry, WeightMatrix& weight) = 0;
  virtual void vector(const VisionEntry& entry, std::vector<float>& values) = 0;
};

// Visits the 523 tensors (for M3's own sizes) in the order of spec §2.1; nothing without a vision_config. Sizes
// weights.layers first.
void visit_vision(const ModelConfig& config, VisionWeights& weights, VisionVisitor& visitor);

// The same as a list.
std::vector<VisionEntry> vision_layout(const ModelConfig& config);

}  // namespace m3
