// Threads that take work in turns.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace m3::media {

// Owners' work is begun in turns, one piece of each; of one kind no more pieces run at a time than its bound. A piece
// whose kind is at its bound lets those of other kinds and owners pass.
class Lane {
 public:
  // `bound`: of a kind; at least 1. Threads begin when there is work for them.
  Lane(int threads, std::function<int(const std::string& kind)> bound);
  ~Lane() { stop(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // `order`: an owner's pieces of one kind begin in the order in which they came; drop() knows them by this. `work`
  // must not throw. Once stopped, nothing is taken any more. Errors: (resource) no thread can be started; not taken.
  void post(const void* owner, const std::string& kind, std::size_t order, std::function<void()> work);
  // Forgets what has not begun of that owner's work, from that order on; returns the orders.
  std::vector<std::size_t> drop(const void* owner, std::size_t from = 0);
  // Forgets what has not begun and waits for what runs.
  void stop();

 private:
  struct Piece {
    std::size_t order;
    std::function<void()> work;
  };
  struct Owner {
    const void* id;
    std::map<std::string, std::deque<Piece>> kinds;  // none empty
  };
  // The next piece that may begin; false: none. Below the lock.
  bool pick(std::string& kind, Piece& piece);
  void work();

  std::size_t most_threads_;
  std::function<int(const std::string&)> bound_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Owner> owners_;            // whose turn is next first; those that have work
  std::map<std::string, int> running_;  // by kind
  std::size_t idle_ = 0;                // threads
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace m3::media
