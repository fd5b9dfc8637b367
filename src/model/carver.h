// Cutting a workspace into pieces, or counting what they take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/ops/ops.h"

namespace m3::model {

// 64-byte aligned pieces of a workspace; with no memory it only counts.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  std::byte* take(std::int64_t bytes) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }
  ops::Tensor tensor(DType dtype, std::int64_t rows, std::int64_t columns) {
    return {dtype, rows, columns, columns, take(rows * columns * static_cast<std::int64_t>(dtype_size(dtype)))};
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::int64_t used_ = 0;
};

}  // namespace m3::model
