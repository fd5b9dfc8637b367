// The generations that run now, by request id: to count, to cancel, and to wait for their end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace m3::server {

class GenerationRegistry {
 public:
  // Several may have one id, where clients choose their ids. Returns a key for remove().
  std::uint64_t add(const std::string& id, std::function<void()> cancel);
  void remove(std::uint64_t key);
  std::size_t size() const;
  // Cancels those with that id; how many.
  std::size_t cancel(const std::string& id);
  std::size_t cancel_all();
  // Until none runs or the time is over; whether none runs.
  bool wait_until_empty(std::chrono::steady_clock::time_point until);

 private:
  struct Entry {
    std::string id;
    std::function<void()> cancel;
  };
  mutable std::mutex mutex_;
  std::condition_variable emptied_;
  std::map<std::uint64_t, Entry> entries_;
  std::uint64_t next_ = 1;
};

}  // namespace m3::server
