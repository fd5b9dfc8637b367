// Progress of long work on standard error: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace m3 {

class Progress {
 public:
  // `what` names the work, `unit` what is counted ("bytes" are shown as GiB). Nothing is shown before a second
  // has passed, so that short work stays silent.
  Progress(std::string what, std::int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done);

 private:
  void show(std::int64_t done, bool last);

  std::string what_;
  std::int64_t total_;
  std::string unit_;
  bool terminal_;
  bool shown_ = false;
  std::int64_t done_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace m3
