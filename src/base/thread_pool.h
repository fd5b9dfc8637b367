// A fixed set of threads that split a range of indices; the split never changes a result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/function_ref.h"

namespace m3 {

class ThreadPool {
 public:
  // `threads` >= 1, the calling thread included. 0 = one for each physical core this process may use.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(thread) once on every thread, 0 <= thread < size(), and waits for all. The first exception is
  // thrown again here. Not re-entrant; one caller at a time.
  void run(FunctionRef<void(int thread)> work);

  // Static split of [0, count) in units of `grain` indices: work(begin, end, thread). Each thread gets one
  // contiguous range, always the same for the same count, so that memory stays with the core that touched it.
  void split(std::int64_t count, std::int64_t grain,
             FunctionRef<void(std::int64_t begin, std::int64_t end, int thread)> work);

  // Dynamic split for uneven work: work(index, thread) for every index, taken in ascending order.
  void each(std::int64_t count, FunctionRef<void(std::int64_t index, int thread)> work);

 private:
  void worker(int thread);
  void run_one(int thread);
  // Returns once `generation_` differs from `seen`, or at the end.
  void await_work(std::uint64_t seen);
  void await_workers();
  void stop();

  std::vector<std::thread> workers_;
  bool spin_ = false;
  const FunctionRef<void(int)>* work_ = nullptr;  // written while no worker runs
  std::atomic<std::uint64_t> generation_ = 0;
  std::atomic<int> running_ = 0;
  std::atomic<bool> stopping_ = false;

  // For those who gave up spinning. A sleeper says so before it looks once more; a waker looks after it has written.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<int> sleepers_ = 0;
  std::atomic<bool> caller_sleeps_ = false;
  std::exception_ptr failure_;
};

// Physical cores in this process's affinity mask (hardware threads of one core count once), at least 1.
int physical_cores();

}  // namespace m3
