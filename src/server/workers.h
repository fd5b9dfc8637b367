// Threads that handlers and replies run on, apart from the ones that move bytes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace m3::server {

using Clock = std::chrono::steady_clock;

class Workers {
 public:
  explicit Workers(int threads);
  ~Workers();  // waits for what runs; what is queued is dropped
  void post(std::function<void()> work);
  void stop();  // the same, early

  struct Pool;
  Pool& pool() { return *pool_; }

 private:
  std::unique_ptr<Pool> pool_;
};

// Runs what is posted one at a time, in order, on any of the workers. What is posted must keep alive what it uses.
class SerialQueue {
 public:
  explicit SerialQueue(Workers& workers);
  ~SerialQueue();
  void post(std::function<void()> work);
  // Runs `work` at that time, in place of what an earlier call asked for. From within the queue only.
  void post_at(Clock::time_point time, std::function<void()> work);
  void cancel_alarm();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace m3::server
