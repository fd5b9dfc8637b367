// How fast weights go up: a file in the page cache through upload, beside the two limits of the way.
#include "bench/gpu/bench.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/random_fill.h"
#include "src/ops/backends.h"
#include "src/ops/cuda/device_calls.h"

namespace m3::gpu_bench {

namespace {

using ops::cuda::check;

struct UploadTimes {
  double seconds = 0;     // mapped file to device memory
  double cache_rate = 0;  // bytes/s that as many threads read from the page cache into memory of their own
  double bus_rate = 0;    // bytes/s from pinned memory to the device
};

constexpr std::size_t piece = std::size_t{8} << 20;
constexpr unsigned most_threads = 12;  // as the upload's

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A file without a name, of random bytes: /proc/self/fd/N is its path.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::int64_t bytes) {
    std::string name = (std::filesystem::temp_directory_path() / "m3-upload-XXXXXX").string();
    descriptor_ = ::mkstemp(name.data());
    if (descriptor_ < 0) fail_resource("{}: no file can be made there", name);
    ::unlink(name.c_str());
    std::vector<std::byte> part(piece);
    fill_random({.kind = RandomFill::Kind::bf16, .key = 1, .parameter = 0.02}, 0, part);
    for (std::int64_t done = 0; done < bytes; done += static_cast<std::int64_t>(piece)) {
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(piece, bytes - done));
      if (::write(descriptor_, part.data(), count) != static_cast<ssize_t>(count))
        fail_resource("{}: no room for {} bytes", name, bytes);
    }
  }
  ~TemporaryFile() { ::close(descriptor_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

double page_cache_rate(int descriptor, std::int64_t bytes) {
  const unsigned count = std::min(most_threads, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::vector<char>> buffers(count, std::vector<char>(piece, 1));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t at = t * static_cast<std::int64_t>(piece); at < bytes;
           at += count * static_cast<std::int64_t>(piece)) {
        if (::pread(descriptor, buffers[t].data(), piece, at) < 0) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(bytes) / seconds_since(start);
}

double pinned_rate(std::byte* to) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  void* from = nullptr;
  check(cudaMallocHost(&from, bytes), "pinning memory of the host");
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "a copy to the GPU");
    best = std::max(best, static_cast<double>(bytes) / seconds_since(start));
  }
  cudaFreeHost(from);
  return best;
}

UploadTimes time_upload(ops::Backend& backend, std::int64_t bytes) {
  const TemporaryFile file(bytes);
  const MappedFile mapped(file.path());
  ops::Memory memory = backend.allocate(bytes);
  UploadTimes times;
  times.cache_rate = page_cache_rate(file.descriptor(), bytes);
  times.bus_rate = pinned_rate(memory.data());
  // Tensors of some tens of megabytes, as experts' weights are.
  constexpr std::size_t tensor = std::size_t{37} << 20;
  std::vector<ops::Transfer> transfers;
  const std::span<const std::byte> from = mapped.bytes();
  for (std::size_t at = 0; at < from.size(); at += tensor)
    transfers.push_back({memory.data() + at, from.subspan(at, std::min(tensor, from.size() - at))});
  const auto start = std::chrono::steady_clock::now();
  backend.upload(transfers, {});
  times.seconds = seconds_since(start);
  return times;
}

}  // namespace

void bench_upload(Bench& bench) {
  constexpr std::int64_t bytes = std::int64_t{16} << 30;
  const UploadTimes times = time_upload(*bench.backend, bytes);
  const double rate = static_cast<double>(bytes) / times.seconds, limit = std::min(times.cache_rate, times.bus_rate);
  std::printf("%-14s %-36s %9.2f GB/s  page cache %.1f, bus %.1f GB/s  %5.1f %% of the lower\n", "upload",
              "16 GiB from a mapped file", rate * 1e-9, times.cache_rate * 1e-9, times.bus_rate * 1e-9,
              100 * rate / limit);
}

}  // namespace m3::gpu_bench
