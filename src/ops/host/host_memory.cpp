#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops {

Memory host_memory(std::int64_t bytes) {
  const std::size_t size = std::max<std::size_t>(static_cast<std::size_t>(bytes), 1);
  // NORESERVE: a long context that is never reached costs nothing.
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail_resource("cannot reserve {} of memory: {}", human_bytes(bytes), std::strerror(errno));
  ::madvise(memory, size, MADV_HUGEPAGE);  // a hint; failing costs only speed
  return {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes),
          [size](std::byte* data, std::size_t) { ::munmap(data, size); }};
}

Memory HostBackend::allocate(std::int64_t bytes) { return host_memory(bytes); }

MemoryState HostBackend::memory_state() const { return {available_memory_bytes(), total_memory_bytes()}; }

void HostBackend::upload(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void HostBackend::upload(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress) {
  std::int64_t done = 0;
  for (const Transfer& transfer : transfers) {
    upload(transfer.to, transfer.from);
    done += std::ssize(transfer.from);
    if (progress) progress(done);
  }
}

void HostBackend::download(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
}

void HostBackend::fill_random(std::span<std::byte> to, const RandomFill& fill) {
  const std::int64_t grain = 8 * fill.element_bytes();  // a fill begins at multiples of 8 elements
  pool_.split((std::ssize(to) + grain - 1) / grain, 1, [&](std::int64_t begin, std::int64_t end, int) {
    const std::int64_t bytes = std::min(std::ssize(to), end * grain) - begin * grain;
    m3::fill_random(fill, begin * 8,
                    to.subspan(static_cast<std::size_t>(begin * grain), static_cast<std::size_t>(bytes)));
  });
}

}  // namespace m3::ops
