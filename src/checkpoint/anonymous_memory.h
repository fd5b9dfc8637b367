// One large block of zeroed memory straight from the system.
#pragma once

#include <cstddef>

namespace m3 {

class AnonymousMemory {
 public:
  AnonymousMemory() = default;
  // Errors: the system has not that much.
  explicit AnonymousMemory(std::size_t bytes);
  // Addresses alone, which nothing may read or write.
  static AnonymousMemory addresses(std::size_t bytes);
  ~AnonymousMemory();
  AnonymousMemory(AnonymousMemory&& other) noexcept;
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace m3
