// Memory that a backend's operands live in: the host's, or a device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

namespace m3::ops {

// One owned block. For a device `data` is an address of the device, never to be followed by the host.
class Memory {
 public:
  using Release = std::function<void(std::byte* data, std::size_t bytes)>;

  Memory() = default;
  Memory(std::byte* data, std::size_t bytes, Release release)
      : data_(data), size_(bytes), release_(std::move(release)) {}
  ~Memory() {
    if (data_ != nullptr) release_(data_, size_);
  }
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        release_(std::move(other.release_)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(release_, other.release_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Release release_;
};

// Anonymous memory of the host: page-aligned, zero until written, taken from the system as it is written. Errors: no
// address space for it (the line says how many bytes).
Memory host_memory(std::int64_t bytes);

// What a device has.
struct MemoryState {
  std::int64_t free_bytes = 0;  // that this process may still take
  std::int64_t total_bytes = 0;
};

// One piece of a large upload: weights, straight from mapped files.
struct Transfer {
  std::byte* to = nullptr;          // in the backend's memory
  std::span<const std::byte> from;  // in the host's
};

}  // namespace m3::ops
