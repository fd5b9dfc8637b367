// Hands out pieces of the bound workspace, or only counts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/error.h"

namespace m3::ops {

// An operation describes its scratch memory once, as a struct filled from an arena: the same description over
// an empty arena says how many bytes it needs.
class Arena {
 public:
  Arena() = default;  // counts; every pointer is null
  explicit Arena(std::span<std::byte> memory) : memory_(memory), counting_(false) {}

  // `count` elements at a multiple of 64 bytes, uninitialised.
  template <typename T>
  T* take(std::int64_t count) {
    const std::size_t begin = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    if (counting_) return nullptr;
    if (used_ > memory_.size()) {
      fail_internal("an operation needs {} bytes of workspace, {} are bound", used_, memory_.size());
    }
    return reinterpret_cast<T*>(memory_.data() + begin);
  }

  std::int64_t used() const { return static_cast<std::int64_t>(used_); }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
  bool counting_ = true;
};

}  // namespace m3::ops
