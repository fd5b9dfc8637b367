#include "src/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <set>
#include <string>

#include "src/base/error.h"

namespace m3 {

int physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0)
    return std::max(1u, std::thread::hardware_concurrency());
  std::set<std::string> cores;
  int allowed = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    ++allowed;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings;
    if (std::getline(file, siblings)) cores.insert(siblings);
  }
  return std::max(1, cores.empty() ? allowed : static_cast<int>(cores.size()));
}

ThreadPool::ThreadPool(int threads) {
  if (threads < 0 || threads > 4096)
    fail_usage("{} threads: give a number from 1 to 4096, or 0 for all cores", threads);
  const int count = threads == 0 ? physical_cores() : threads;
  for (int thread = 1; thread < count; ++thread) workers_.emplace_back([this, thread] { worker(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run_one(int thread) {
  try {
    (*work_)(thread);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadPool::worker(int thread) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    lock.unlock();
    run_one(thread);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

void ThreadPool::run(FunctionRef<void(int)> work) {
  if (workers_.empty()) return work(0);
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    running_ = static_cast<int>(workers_.size());
    failure_ = nullptr;
    ++generation_;
  }
  wake_.notify_all();
  run_one(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
  work_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::split(std::int64_t count, std::int64_t grain,
                       FunctionRef<void(std::int64_t, std::int64_t, int)> work) {
  if (count <= 0) return;
  const std::int64_t units = (count + grain - 1) / grain;
  if (units == 1 || size() == 1) return work(0, count, 0);
  run([&](int thread) {
    const std::int64_t begin = units * thread / size() * grain;
    const std::int64_t end = std::min(count, units * (thread + 1) / size() * grain);
    if (begin < end) work(begin, end, thread);
  });
}

void ThreadPool::each(std::int64_t count, FunctionRef<void(std::int64_t, int)> work) {
  if (count <= 0) return;
  std::atomic<std::int64_t> next = 0;
  const auto loop = [&](int thread) {
    for (std::int64_t index = next++; index < count; index = next++) work(index, thread);
  };
  if (count == 1 || size() == 1) return loop(0);
  run(loop);
}

}  // namespace m3
