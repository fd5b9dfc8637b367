#include "src/checkpoint/anonymous_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace m3 {

AnonymousMemory::AnonymousMemory(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    fail_resource("cannot have {:.1f} GiB of memory for weights: {}", static_cast<double>(bytes) / (1u << 30),
                  std::strerror(errno));
  }
  ::madvise(data_, bytes, MADV_HUGEPAGE);  // a hint: decode reads these front to back
}

AnonymousMemory AnonymousMemory::addresses(std::size_t bytes) {
  AnonymousMemory memory;
  void* data = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    fail_resource("cannot have {:.1f} GiB of addresses: {}", static_cast<double>(bytes) / (1u << 30),
                  std::strerror(errno));
  memory.data_ = data;
  memory.size_ = bytes;
  return memory;
}

AnonymousMemory::~AnonymousMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace m3
