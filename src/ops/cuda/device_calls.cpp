#include "src/ops/cuda/device_calls.h"

#include <algorithm>

#include "src/base/error.h"

namespace m3::ops::cuda {

namespace {

constexpr std::size_t small_slot = std::size_t{64} << 10;
constexpr std::size_t large_slot = std::size_t{8} << 20;

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the next call starts anew
  if (error == cudaErrorMemoryAllocation) fail_resource("{}: the GPU is out of memory", what);
  fail_internal("{}: CUDA says {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

void check_pinned(cudaError_t error) {
  if (error != cudaErrorMemoryAllocation) return check(error, "pinning memory of the host");
  cudaGetLastError();
  fail_resource("this machine (not its GPU) has no memory left that can be pinned for copies");
}

HostBuffer::~HostBuffer() { cudaFreeHost(pinned_); }

std::byte* HostBuffer::reserve(std::size_t bytes) {
  if (bytes > size_) {
    check(cudaFreeHost(pinned_), "freeing pinned memory");
    pinned_ = nullptr;
    size_ = 0;
    const std::size_t wanted = bytes + bytes / 2;
    void* memory = nullptr;
    const cudaError_t error = cudaMallocHost(&memory, wanted);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      ordinary_.resize(wanted);
    } else {
      check_pinned(error);
      pinned_ = static_cast<std::byte*>(memory);
      ordinary_ = {};
    }
    size_ = wanted;
  }
  return pinned_ != nullptr ? pinned_ : ordinary_.data();
}

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

std::byte* DeviceBuffer::reserve(std::size_t bytes) {
  if (bytes <= size_) return data_;
  check(cudaFree(data_), "freeing GPU memory");
  data_ = nullptr;
  size_ = 0;
  const std::size_t wanted = std::max<std::size_t>(bytes + bytes / 2, 4096);
  void* memory = nullptr;
  check(cudaMalloc(&memory, wanted), "growing a buffer on the GPU");
  data_ = static_cast<std::byte*>(memory);
  size_ = wanted;
  return data_;
}

Staging::~Staging() {
  for (Slot& slot : slots_) {
    cudaFreeHost(slot.data);
    if (slot.done != nullptr) cudaEventDestroy(slot.done);
  }
}

std::byte* Staging::begin(std::size_t bytes) {
  Slot& slot = slots_[next_];
  if (slot.done == nullptr) {
    check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "creating an event");
  } else {
    check(cudaEventSynchronize(slot.done), "waiting for a copy to the GPU");
  }
  if (slot.size < bytes) {
    check(cudaFreeHost(slot.data), "freeing pinned memory");
    slot.data = nullptr;
    slot.size = 0;
    // Pinning takes milliseconds, so a slot grows at most twice for what comes in parts.
    const std::size_t wanted = bytes <= small_slot ? small_slot : std::max(bytes, large_slot);
    void* memory = nullptr;
    check_pinned(cudaMallocHost(&memory, wanted));
    slot.data = static_cast<std::byte*>(memory);
    slot.size = wanted;
  }
  return slot.data;
}

int Staging::fetch(const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  std::byte* to = begin(bytes);
  const int slot = next_;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "a copy from the GPU");
  check(cudaEventRecord(slots_[slot].done, stream), "marking a copy from the GPU");
  next_ = (next_ + 1) % slot_count;
  return slot;
}

const std::byte* Staging::take(int slot) {
  check(cudaEventSynchronize(slots_[slot].done), "waiting for a copy from the GPU");
  return slots_[slot].data;
}

void Staging::send(std::byte* to, std::size_t bytes, cudaStream_t stream) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slot_count;
  check(cudaMemcpyAsync(to, slot.data, bytes, cudaMemcpyHostToDevice, stream), "a copy to the GPU");
  check(cudaEventRecord(slot.done, stream), "recording an event");
}

}  // namespace m3::ops::cuda
