#include "src/media/media_memory.h"

#include <algorithm>
#include <chrono>

#include "src/base/error.h"
#include "src/base/memory_size.h"

namespace m3::media {
namespace {

// A photo of 12 million pixels takes 36 MB, and twice or three times that with interlacing or many passes.
constexpr std::int64_t small_most = std::int64_t{128} << 20;

constexpr std::chrono::milliseconds look_again{50};

}  // namespace

bool MemoryBudget::take(std::int64_t bytes) {
  std::int64_t used = used_;
  do {
    if (bytes > limit_ - used) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

DecodeMemory::DecodeMemory(std::int64_t limit) : limit_(limit), small_(std::min(small_most, limit / 4)) {}

std::int64_t DecodeMemory::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void DecodeMemory::take(std::int64_t bytes, const std::function<void()>& keep_on) {
  const bool large = bytes > small_;
  if (large && bytes > limit_ - small_) {
    fail(
        "decoding takes about {}, more than the {} there is for it; make it smaller or raise "
        "--media-decode-memory-bytes",
        human_bytes(bytes), human_bytes(limit_ - small_));
  }
  std::unique_lock lock(mutex_);
  const int here = 0;
  if (large) waiting_.push_back(&here);
  const auto leave = [&] {
    if (large) std::erase(waiting_, &here);
  };
  const auto fits = [&] {
    if (used_ + bytes > limit_) return false;
    return !large || (waiting_.front() == &here && used_by_large_ + bytes <= limit_ - small_);
  };
  while (!changed_.wait_for(lock, look_again, fits)) {
    lock.unlock();
    try {
      keep_on();
    } catch (...) {
      lock.lock();
      leave();
      changed_.notify_all();
      throw;
    }
    lock.lock();
  }
  leave();
  used_ += bytes;
  if (large) used_by_large_ += bytes;
  changed_.notify_all();
}

void DecodeMemory::give_back(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  if (bytes > small_) used_by_large_ -= bytes;
  changed_.notify_all();
}

}  // namespace m3::media
