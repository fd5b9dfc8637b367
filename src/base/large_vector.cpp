#include "src/base/large_vector.h"

#include <sys/mman.h>

#include <cstdint>

namespace m3 {

void prefer_huge_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + bytes) / page * page;
  if (begin < end) ::madvise(static_cast<std::byte*>(data) + (begin - address), end - begin, MADV_HUGEPAGE);
}

}  // namespace m3
