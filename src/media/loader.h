// Reads, fetches, decodes and resizes pictures and videos on threads of its own: several at a time, requests in turns.
//
// Three lanes of threads, so that slow work holds up its own kind alone. What is in a request itself or in the cache is
// taken on the caller's thread.
//   local    files, and data: URLs too large for the caller's thread
//   web      fetches, so many at a time, and so many of one host
//   decode   large pictures and videos on so many threads, small pictures on these and one that is theirs
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "src/media/lane.h"
#include "src/media/media_memory.h"
#include "src/media/references.h"

namespace m3::media {

// A picture or clip as the engine takes it, with what its place in the prompt needs.
struct Prepared {
  Media media;                     // its key: SHA-256 of the bytes, and all options that decided the values
  std::vector<double> timestamps;  // of a clip's temporal groups, where known
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

  // With the memory and threads that zeros stood for.
  const MediaOptions& options() const { return options_; }

  // What one load() works on.
  class Job {
   public:
    bool cancelled() const { return cancelled_; }

   private:
    friend class MediaLoader;
    std::vector<Reference> references_;
    MediaInfo model_;
    std::int64_t most_tokens_ = 0;
    std::function<void(std::vector<Prepared>, std::exception_ptr)> done_;
    std::vector<Prepared> prepared_;
    std::vector<std::exception_ptr> problems_;
    std::size_t left_ = 0;                 // below the loader's lock: those that are not through
    int decoding_ = 0;                     // likewise
    std::vector<std::int64_t> tokens_of_;  // that of tokens_ are a picture's
    std::atomic<std::int64_t> tokens_ = 0;
    std::atomic<std::size_t> failed_at_;  // the first that is known to have failed; else their number
    std::atomic<bool> cancelled_ = false;
  };

  // Returns soon; `done` is called once: on this thread where everything is in the cache or the first picture is wrong,
  // else on one of the loader's. With the results in the order of the references, or with the error of the first that
  // failed: m3::Error that begins with its path, (input) for what it is and how large, MediaMemoryError where other
  // requests hold the memory; and when the job was cancelled, (internal).
  // `most_tokens`: of all pictures together. `others_waiting`: requests that wait elsewhere, for the same limit.
  // Errors: (busy) too many wait.
  using Done = std::function<void(std::vector<Prepared>, std::exception_ptr)>;
  std::shared_ptr<Job> load(std::vector<Reference> references, const MediaInfo& model, std::int64_t most_tokens,
                            Done done, std::int64_t others_waiting = 0);

  // From any thread. What has not begun is left out and what runs ends soon; done() gets an error, perhaps on this
  // thread.
  void cancel(const std::shared_ptr<Job>& job);

  // Waits for it; `stop` is polled, and true cancels.
  std::vector<Prepared> load_now(std::vector<Reference> references, const MediaInfo& model, std::int64_t most_tokens,
                                 const std::function<bool()>& stop = {});

  std::int64_t held_bytes() const { return budget_->used(); }
  std::int64_t decoding_bytes() const { return decode_memory_.used(); }
  std::size_t open() const;                              // jobs whose done() was not called
  std::size_t waiting() const;                           // of these, those of which nothing is being decoded
  std::int64_t decodings() const { return decodings_; }  // that began since the start

 private:
  // A file's bytes, until it is decoded.
  struct Source {
    std::vector<std::byte> bytes;
    Share share;
    std::string key;
  };

  void post_source(const std::shared_ptr<Job>& job, std::size_t i);
  void post_decode(const std::shared_ptr<Job>& job, std::size_t i, const std::shared_ptr<Source>& source, bool large);
  // One step of a picture, with what it throws as its problem. True from `step`: the picture is through.
  void run(const std::shared_ptr<Job>& job, std::size_t i, const std::function<bool()>& step);
  void through(const std::shared_ptr<Job>& job, std::size_t count);
  // Whoever hears of a problem holds it alone: a thread that let go of it later would race with its reader.
  void fail_at(const std::shared_ptr<Job>& job, std::size_t i, std::exception_ptr problem);
  void drop(const std::shared_ptr<Job>& job, std::size_t from);
  void finish(const std::shared_ptr<Job>& job);
  // Nobody needs the picture any more: the job was cancelled, or one before it failed.
  bool needless(const Job& job, std::size_t i) const;

  Source read(Job& job, std::size_t i);
  bool find_cached(Job& job, std::size_t i, const Source& source);
  void decode(Job& job, std::size_t i, const Source& source, bool large);
  Prepared prepare_image(Job& job, std::size_t i, const Source& source, const vision::DecodeControl& control);
  Prepared prepare_video(Job& job, std::size_t i, const Source& source, const vision::DecodeControl& control);
  // Whether a picture of that grid, with values of so many bytes, may come at all. Its tokens count once, however often
  // this is called. Errors: input.
  void admit(Job& job, std::size_t i, const vision::Grid& grid, std::int64_t bytes) const;
  // Errors: busy.
  Share room_for(std::int64_t bytes);
  void make_room(std::int64_t bytes);

  bool find(const std::string& key, Prepared& out);
  void keep(const std::string& key, const Prepared& prepared);
  bool forget_one();
  void drop_last();

  MediaOptions options_;
  std::shared_ptr<MemoryBudget> budget_;
  DecodeMemory decode_memory_;
  mutable std::mutex mutex_;
  std::unordered_set<std::shared_ptr<Job>> jobs_;  // whose done() was not called
  std::size_t decoding_jobs_ = 0;
  std::atomic<std::int64_t> decodings_ = 0;
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

  Lane local_, web_, decode_;
};

}  // namespace m3::media
