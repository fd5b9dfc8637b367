#include <cstring>

#include "src/base/error.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops {

void HostBackend::copy_pages(const PagePart& part, std::span<const std::int32_t> from,
                             std::span<const std::int32_t> to) {
  if (from.size() != to.size()) fail_internal("copy_pages: {} pages to {}", from.size(), to.size());
  pool_.split(static_cast<std::int64_t>(from.size()), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::size_t>(i);
      std::memcpy(part.data + to[index] * part.page_bytes, part.data + from[index] * part.page_bytes,
                  static_cast<std::size_t>(part.page_bytes));
    }
  });
}

}  // namespace m3::ops
