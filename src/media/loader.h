// Fetches, decodes and resizes pictures and videos on threads of its own: several at a time, requests in turns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "src/media/references.h"

namespace m3::media {

// A picture or clip as the engine takes it, with what its place in the prompt needs.
struct Prepared {
  Media media;                     // its key: SHA-256 of the bytes, and all options that decided the values
  std::vector<double> timestamps;  // of a clip's temporal groups, where known
};

// Bytes of prepared values that are held anywhere. They outlive the loader where requests do.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t limit) : limit_(limit) {}
  bool take(std::int64_t bytes);
  void give_back(std::int64_t bytes) { used_ -= bytes; }
  std::int64_t used() const { return used_; }
  std::int64_t limit() const { return limit_; }

 private:
  std::int64_t limit_;
  std::atomic<std::int64_t> used_ = 0;
};

class MediaLoader {
 public:
  explicit MediaLoader(const MediaOptions& options);
  ~MediaLoader() { stop(); }
  // Ends what runs at its next check and waits for that. What waits is dropped: its `done` is never called. load()
  // refuses from then on.
  void stop();
  MediaLoader(const MediaLoader&) = delete;
  MediaLoader& operator=(const MediaLoader&) = delete;

  const MediaOptions& options() const { return options_; }

  // What one load() works on.
  class Job {
   public:
    // From any thread; what has not begun is left out, what runs ends soon, and done() gets an error.
    void cancel() { cancelled_ = true; }
    bool cancelled() const { return cancelled_; }

   private:
    friend class MediaLoader;
    std::vector<Reference> references_;
    MediaInfo model_;
    std::int64_t most_tokens_ = 0;
    std::function<void(std::vector<Prepared>, std::exception_ptr)> done_;
    std::vector<Prepared> prepared_;
    std::vector<std::exception_ptr> problems_;
    std::size_t next_ = 0, running_ = 0;  // below the loader's lock, as the two above
    bool queued_ = false;
    std::atomic<std::int64_t> tokens_ = 0;
    std::atomic<bool> failed_ = false, cancelled_ = false;
  };

  // Returns at once; `done` is called once, on one of the loader's threads. With the results in the order of the
  // references, or with the error of the first that failed: m3::Error that begins with its path, (input) for what it is
  // and how large, (busy) where other requests hold the memory; and when the job was cancelled, (internal).
  // `most_tokens`: of all pictures together. Errors: (busy) too many wait.
  using Done = std::function<void(std::vector<Prepared>, std::exception_ptr)>;
  std::shared_ptr<Job> load(std::vector<Reference> references, const MediaInfo& model, std::int64_t most_tokens,
                            Done done);

  // Waits for it; `stop` is polled, and true cancels.
  std::vector<Prepared> load_now(std::vector<Reference> references, const MediaInfo& model, std::int64_t most_tokens,
                                 const std::function<bool()>& stop = {});

  std::int64_t held_bytes() const { return budget_->used(); }
  std::size_t waiting() const;  // jobs, with those that run

 private:
  void work();
  void finish(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock);
  Prepared prepare(Job& job, const Reference& reference);
  Prepared prepare_image(Job& job, const Reference& reference, std::span<const std::byte> bytes);
  Prepared prepare_video(Job& job, const Reference& reference, std::span<const std::byte> bytes);
  // Room for a picture of that grid, and its tokens within the prompt. Errors: input, busy.
  void admit(Job& job, const vision::Grid& grid, std::int64_t values);
  Prepared hold(vision::Pixels pixels);
  bool stopped(const Job& job) const { return stopping_ || job.cancelled_; }

  bool find(const std::string& key, Prepared& out);
  void keep(const std::string& key, const Prepared& prepared);
  bool forget_one();
  void drop_last();

  MediaOptions options_;
  std::shared_ptr<MemoryBudget> budget_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;  // that have pictures nobody has begun
  std::size_t open_ = 0;                   // jobs whose done was not called
  std::atomic<bool> stopping_ = false;

  std::mutex cache_mutex_;
  struct Entry {
    std::string key;
    Prepared prepared;
    std::int64_t bytes = 0;
  };
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  std::int64_t cached_bytes_ = 0;

  std::vector<std::thread> threads_;
};

}  // namespace m3::media
