#include "src/engine/mask_worker.h"

#include <utility>

#include "src/engine/sequence.h"

namespace m3::engine {

MaskWorker::~MaskWorker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MaskWorker::begin(std::vector<Sequence*> sequences) {
  if (sequences.empty()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  const std::lock_guard lock(mutex_);
  work_ = std::move(sequences);
  busy_ = true;
  changed_.notify_all();
}

void MaskWorker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void MaskWorker::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
    if (stop_) return;
    const std::vector<Sequence*> work = std::exchange(work_, {});
    lock.unlock();
    std::exception_ptr error;
    try {
      for (Sequence* sequence : work) sequence->fill_mask();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = std::move(error);
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace m3::engine
