// Masks of constrained sequences, filled on a thread of its own while the model computes their logits.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace m3::engine {

class Sequence;

class MaskWorker {
 public:
  MaskWorker() = default;
  ~MaskWorker();
  MaskWorker(const MaskWorker&) = delete;
  MaskWorker& operator=(const MaskWorker&) = delete;

  // Begins fill_mask() of these sequences; nobody may use their gates before wait(). Starts the thread when it is first
  // needed.
  void begin(std::vector<Sequence*> sequences);
  // Until all are filled. Errors: what a fill threw.
  void wait();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Sequence*> work_;
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace m3::engine
