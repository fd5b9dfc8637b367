// Memory of pictures and videos: what requests hold of them, and what decoding takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "m3/error.h"

namespace m3::media {

// (busy) Other requests' pictures hold the memory.
class MediaMemoryError : public Error {
 public:
  explicit MediaMemoryError(const std::string& message) : Error(ErrorKind::busy, message) {}
};

// Bytes that are held anywhere: files that were read and are not decoded yet, and values ready for the model. They
// outlive the loader where requests do.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t limit) : limit_(limit) {}
  bool take(std::int64_t bytes);
  void give_back(std::int64_t bytes) { used_ -= bytes; }
  std::int64_t used() const { return used_; }
  std::int64_t limit() const { return limit_; }

 private:
  std::int64_t limit_;
  std::atomic<std::int64_t> used_ = 0;
};

// What was taken of a budget, given back at the end.
class Share {
 public:
  Share() = default;
  // Of what was taken already.
  Share(std::shared_ptr<MemoryBudget> budget, std::int64_t bytes) : budget_(std::move(budget)), bytes_(bytes) {}
  ~Share() { give_back(); }
  Share(Share&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Share& operator=(Share&& other) noexcept {
    give_back();
    budget_ = std::move(other.budget_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  std::int64_t bytes() const { return bytes_; }
  // More was taken.
  void add(std::int64_t bytes) { bytes_ += bytes; }
  void shrink_to(std::int64_t bytes) {
    if (bytes >= bytes_) return;
    budget_->give_back(bytes_ - bytes);
    bytes_ = bytes;
  }

 private:
  void give_back() {
    if (budget_ && bytes_ > 0) budget_->give_back(bytes_);
  }
  std::shared_ptr<MemoryBudget> budget_;
  std::int64_t bytes_ = 0;
};

// What all decoders together hold of decoded pictures and frames. Large ones wait for one another in their order; a
// part is kept for small ones, which therefore never wait for a large one.
class DecodeMemory {
 public:
  explicit DecodeMemory(std::int64_t limit);

  std::int64_t limit() const { return limit_; }
  // The largest that counts as small; this much is kept for them.
  std::int64_t small() const { return small_; }
  std::int64_t used() const;

  // Waits until so much is there; `keep_on` is called meanwhile and may throw. Errors (input): more than a large one
  // may ever have.
  void take(std::int64_t bytes, const std::function<void()>& keep_on);
  void give_back(std::int64_t bytes);

 private:
  std::int64_t limit_, small_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t used_ = 0, used_by_large_ = 0;
  std::deque<const void*> waiting_;  // large ones
};

}  // namespace m3::media
