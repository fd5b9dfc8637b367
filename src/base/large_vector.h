// Vectors for megabytes of plain values that are all written after resize(): not zeroed, in huge pages where there are.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace m3 {

// Asks for huge pages for what lies whole within these bytes: one page fault for 2 MiB instead of 512. For memory that
// was not written yet. A hint; failing costs only speed.
void prefer_huge_pages(void* data, std::size_t bytes);

template <typename T>
struct LargeAllocator {
  static_assert(std::is_trivial_v<T>);
  using value_type = T;

  LargeAllocator() = default;
  template <typename U>
  explicit LargeAllocator(const LargeAllocator<U>&) {}

  T* allocate(std::size_t count) {
    T* data = std::allocator<T>().allocate(count);
    prefer_huge_pages(data, count * sizeof(T));
    return data;
  }
  void deallocate(T* data, std::size_t count) { std::allocator<T>().deallocate(data, count); }

  // What resize() adds has any value.
  void construct(T* at) { ::new (static_cast<void*>(at)) T; }
  template <typename... Args>
  void construct(T* at, Args&&... args) {
    ::new (static_cast<void*>(at)) T(std::forward<Args>(args)...);
  }

  bool operator==(const LargeAllocator&) const = default;
};

template <typename T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace m3
