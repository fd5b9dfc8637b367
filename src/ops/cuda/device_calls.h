// Errors of the CUDA runtime as lines for people, and what owns things of the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace m3::ops::cuda {

// Throws m3::Error where `error` is one: out of memory as a lack of resources, the rest as broken promises.
void check(cudaError_t error, const char* what);
// The same of cudaMallocHost, which lacks the host's memory.
void check_pinned(cudaError_t error);

// Memory of the device that grows when more is asked for; content is lost then. Not for use while a pass is recorded.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  std::byte* reserve(std::size_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Memory of the host that grows when more is asked for; content is lost then. Pinned, or ordinary where no more can be
// pinned: copies are slower then.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  std::byte* reserve(std::size_t bytes);

 private:
  std::byte* pinned_ = nullptr;
  std::vector<std::byte> ordinary_;
  std::size_t size_ = 0;
};

// Pinned memory of the host in several slots, so that a copy to or from the device is under way while another slot is
// filled or read.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Memory to fill; waits for the copy that used its slot before.
  std::byte* begin(std::size_t bytes);
  // Queues the copy of its first `bytes` to the device.
  void send(std::byte* to, std::size_t bytes, cudaStream_t stream);
  // Queues a copy from the device into the next slot; returns the slot, for take().
  int fetch(const std::byte* from, std::size_t bytes, cudaStream_t stream);
  // Waits for it. Valid until the slot comes round again.
  const std::byte* take(int slot);

 private:
  static constexpr int slot_count = 4;
  struct Slot {
    std::byte* data = nullptr;
    std::size_t size = 0;
    cudaEvent_t done = nullptr;
  };
  Slot slots_[slot_count];
  int next_ = 0;
};

}  // namespace m3::ops::cuda
