#include "src/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include "src/base/error.h"

namespace m3 {

int physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return std::max(1u, std::thread::hardware_concurrency());
  std::set<std::string> cores;
  int allowed = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    ++allowed;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (std::getline(file, siblings)) cores.insert(siblings);
  }
  return std::max(1, cores.empty() ? allowed : static_cast<int>(cores.size()));
}

namespace {

// Between two operations of a forward pass lie a few microseconds, and waking a sleeping thread takes 50: so both
// sides first look this often (some 30 microseconds).
constexpr int spins = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

template <typename Condition>
bool spin_until(bool spin, const Condition& condition) {
  for (int i = 0; i < (spin ? spins : 1); ++i) {
    if (condition()) return true;
    relax();
  }
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads < 0 || threads > 4096) {
    fail_usage("{} threads: give a number from 1 to 4096, or 0 for all cores", threads);
  }
  const int cores = physical_cores();
  const int count = threads == 0 ? cores : threads;
  spin_ = count <= cores;  // more threads than cores would only take them from one another
  try {
    for (int thread = 1; thread < count; ++thread) workers_.emplace_back([this, thread] { worker(thread); });
  } catch (const std::system_error& error) {
    stop();
    fail_resource("cannot start {} threads: {}; give fewer with --threads", count, error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  { const std::lock_guard lock(mutex_); }
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

void ThreadPool::await_work(std::uint64_t seen) {
  const auto due = [&] { return stopping_ || generation_ != seen; };
  if (spin_until(spin_, due)) return;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  wake_.wait(lock, due);
  --sleepers_;
}

void ThreadPool::worker(int thread) {
  std::uint64_t seen = 0;
  while (true) {
    await_work(seen);
    if (stopping_) return;
    seen = generation_;
    run_one(thread);
    if (--running_ == 0 && caller_sleeps_) {
      {
        const std::lock_guard lock(mutex_);
      }
      done_.notify_one();
    }
  }
}

void ThreadPool::await_workers() {
  const auto finished = [&] { return running_ == 0; };
  if (spin_until(spin_, finished)) return;
  std::unique_lock lock(mutex_);
  caller_sleeps_ = true;
  done_.wait(lock, finished);
  caller_sleeps_ = false;
}

void ThreadPool::run(FunctionRef<void(int)> work) {
  if (workers_.empty()) return work(0);
  work_ = &work;
  running_ = static_cast<int>(workers_.size());
  ++generation_;
  if (sleepers_ > 0) {
    {
      const std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  run_one(0);
  await_workers();
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
