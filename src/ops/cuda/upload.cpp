#include "src/ops/cuda/upload.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/large_vector.h"
#include "src/base/mapped_file.h"
#include "src/ops/cuda/device_calls.h"

namespace m3::ops::cuda {

namespace {

// One thread copies some 10 GB/s out of the page cache and the bus takes 50; more threads than these only wait for it.
constexpr unsigned most_threads = 12;
constexpr std::size_t buffer_bytes = std::size_t{2} << 20;  // small, so that they stay in the cache: 72 MiB in all
constexpr int buffers = 3;                                  // of a thread: one is filled while the others are under way

// A part of a transfer that fits into a buffer; parts that follow each other share one.
struct Part {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

std::vector<Part> cut(std::span<const Transfer> transfers) {
  std::vector<Part> parts;
  for (const Transfer& transfer : transfers) {
    for (std::size_t done = 0; done < transfer.from.size(); done += buffer_bytes) {
      parts.push_back(
          {transfer.to + done, transfer.from.data() + done, std::min(buffer_bytes, transfer.from.size() - done)});
    }
  }
  return parts;
}

// Pinned memory for all threads: one piece in huge pages, since each call that pins takes a lock of the driver and a time
// for every page.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes)
      : bytes_((bytes + huge_page - 1) / huge_page * huge_page),
        data_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{huge_page}, std::nothrow))) {
    if (data_ == nullptr) check_pinned(cudaErrorMemoryAllocation);
    prefer_huge_pages(data_.get(), bytes_);
    check_pinned(cudaHostRegister(data_.get(), bytes_, cudaHostRegisterDefault));
  }
  ~Pinned() { cudaHostUnregister(data_.get()); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return data_.get(); }

 private:
  static constexpr std::size_t huge_page = std::size_t{2} << 20;
  struct Release {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{huge_page}); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Release> data_;
};

// A thread's stream and its buffers, which lie at `memory`.
class Lane {
 public:
  static constexpr std::size_t bytes = buffers * buffer_bytes;

  explicit Lane(std::byte* memory) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    for (Buffer& buffer : buffers_) {
      buffer.data = std::exchange(memory, memory + buffer_bytes);
      check(cudaEventCreateWithFlags(&buffer.free, cudaEventDisableTiming), "creating an event");
    }
  }
  ~Lane() {
    if (stream_ != nullptr) {
      cudaStreamSynchronize(stream_);
      cudaStreamDestroy(stream_);
    }
    for (Buffer& buffer : buffers_) {
      if (buffer.free != nullptr) cudaEventDestroy(buffer.free);
    }
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Queues parts of up to buffer_bytes together.
  void send(std::span<const Part> parts) {
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers;
    check(cudaEventSynchronize(buffer.free), "waiting for a copy to the GPU");
    std::size_t used = 0;
    for (const Part& part : parts) {
      if (!read_mapped({part.from, part.bytes}, buffer.data + used))
        std::memcpy(buffer.data + used, part.from, part.bytes);
      check(cudaMemcpyAsync(part.to, buffer.data + used, part.bytes, cudaMemcpyHostToDevice, stream_),
            "a copy to the GPU");
      used += part.bytes;
    }
    check(cudaEventRecord(buffer.free, stream_), "recording an event");
  }
  void finish() { check(cudaStreamSynchronize(stream_), "waiting for copies to the GPU"); }

 private:
  struct Buffer {
    std::byte* data = nullptr;
    cudaEvent_t free = nullptr;
  };
  cudaStream_t stream_ = nullptr;
  std::array<Buffer, buffers> buffers_;
  std::size_t next_ = 0;
};

class Upload {
 public:
  Upload(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress)
      : parts_(cut(transfers)), progress_(progress) {
    check(cudaGetDevice(&device_), "asking for the GPU in use");
  }

  void run() {
    std::size_t bytes = 0;
    for (const Part& part : parts_) bytes += part.bytes;
    const std::size_t useful = (bytes + 4 * buffer_bytes - 1) / (4 * buffer_bytes);
    const std::size_t count =
        std::min<std::size_t>({useful, most_threads, std::max(1u, std::thread::hardware_concurrency())});
    pinned_.emplace(count * Lane::bytes);
    start(count);
    try {
      while (wait_a_little()) {
        if (progress_) progress_(done_);
      }
    } catch (...) {  // of the progress
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    for (std::thread& thread : threads_) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    if (progress_) progress_(done_);
  }

 private:
  void start(std::size_t count) {
    running_ = count;
    try {
      while (threads_.size() < count) {
        threads_.emplace_back([this, lane = threads_.size()] { work(pinned_->data() + lane * Lane::bytes); });
      }
    } catch (const std::system_error& error) {  // those that are there do it
      const std::lock_guard lock(mutex_);
      running_ -= count - threads_.size();
      if (threads_.empty()) fail_resource("cannot start a thread that loads weights: {}", error.what());
    }
  }
  // False: all threads have ended.
  bool wait_a_little() {
    std::unique_lock lock(mutex_);
    return !ended_.wait_for(lock, std::chrono::milliseconds(100), [&] { return running_ == 0; });
  }

  void work(std::byte* memory) {
    try {
      check(cudaSetDevice(device_), "choosing the GPU");
      Lane lane(memory);
      for (std::span<const Part> parts = take(); !parts.empty(); parts = take()) {
        lane.send(parts);
        for (const Part& part : parts) done_ += static_cast<std::int64_t>(part.bytes);
      }
      lane.finish();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_all();
  }

  // The next parts that fit one buffer together; none: all are taken, or a thread has failed.
  std::span<const Part> take() {
    const std::lock_guard lock(mutex_);
    if (failure_) return {};
    const std::size_t first = next_;
    std::size_t bytes = 0;
    while (next_ < parts_.size() && bytes + parts_[next_].bytes <= buffer_bytes) bytes += parts_[next_++].bytes;
    return std::span(parts_).subspan(first, next_ - first);
  }

  std::vector<Part> parts_;
  const std::function<void(std::int64_t)>& progress_;
  int device_ = 0;
  std::atomic<std::int64_t> done_ = 0;
  std::optional<Pinned> pinned_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // of what follows
  std::condition_variable ended_;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

void upload_all(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress) {
  Upload(transfers, progress).run();
}

}  // namespace m3::ops::cuda
