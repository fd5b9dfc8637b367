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

// Bytes that Part(arena, arguments...) takes.
template <typename Part, typename... Arguments>
std::int64_t bytes_of(const Arguments&... arguments) {
  Arena counting;
  Part(counting, arguments...);
  return counting.used();
}

// An equal piece of an arena for each thread.
class ThreadArenas {
 public:
  ThreadArenas(Arena& arena, int threads, std::int64_t bytes)
      : base_(arena.take<std::byte>(threads * bytes)), bytes_(bytes) {}
  Arena operator[](int thread) const { return Arena({base_ + thread * bytes_, static_cast<std::size_t>(bytes_)}); }

 private:
  std::byte* base_;
  std::int64_t bytes_;
};

}  // namespace m3::ops
