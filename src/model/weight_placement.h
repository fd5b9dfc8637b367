// Weights in the memory of a backend: on the host where they are mapped; for a device copied there, as they are stored.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/base/random_fill.h"
#include "src/base/weight_matrix.h"
#include "src/ops/ops.h"

namespace m3::model {

class WeightPlacement {
 public:
  explicit WeightPlacement(ops::Backend& backend) : backend_(&backend) {}

  // Views of the host's memory, which place() turns into the backend's; they stay where they are until then. The same
  // memory added twice is placed once.
  void add(WeightMatrix& weight);
  void add(std::span<const float>& values);
  void add(ops::MlpWeights& weights);

  // Memory of the backend that place() takes: 0 where operands are the host's.
  std::int64_t bytes() const { return bytes_; }

  // `made`: weights that no memory holds; the backend makes their bytes. `progress` gets bytes done.
  // Errors: the backend has not that much memory.
  void place(std::span<const RandomPiece> made, const std::function<void(std::int64_t)>& progress);

 private:
  struct Piece {
    std::span<const std::byte> from;
    std::int64_t offset = 0;
  };

  std::int64_t offset_of(const std::byte* data, std::int64_t bytes);
  void upload(std::span<const RandomPiece> made, const std::function<void(std::int64_t)>& progress);

  ops::Backend* backend_;
  std::vector<WeightMatrix*> matrices_;
  std::vector<std::span<const float>*> vectors_;
  std::vector<Piece> pieces_;
  std::unordered_map<const std::byte*, std::int64_t> offsets_;  // of pieces, by where they come from
  std::int64_t bytes_ = 0;
  ops::Memory memory_;
};

}  // namespace m3::model
