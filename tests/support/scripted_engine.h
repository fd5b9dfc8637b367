// An engine without a model: replies are what the test says, token by token, so that servers can be tested on text that
// a small model would never write.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "m3/engine.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::test {

class ScriptedEngine final : public Engine {
 public:
  struct Reply {
    std::string text;  // in which special tokens are recognised
    std::chrono::microseconds token_time{0};
    FinishReason finish = FinishReason::stop;
  };
  using Script = std::function<Reply(const Request& request, int sample)>;

  ScriptedEngine(Tokenizer tokenizer, Script script);
  ~ScriptedEngine() override;

  // Every request fails from here on, as with an engine thread that ended.
  void die();
  // As many as that wait make submit() refuse.
  std::atomic<std::int64_t> most_waiting = 1'000'000;
  std::atomic<std::chrono::milliseconds> submit_time{std::chrono::milliseconds(0)};  // what each submit() takes
  std::atomic<int> submitted = 0;                                                    // requests
  std::atomic<int> cancelled = 0;                                                    // samples that ended so
  std::atomic<int> resets = 0;
  // Before the first request; 4096 otherwise.
  void set_max_model_len(std::int64_t tokens) { info_.max_model_len = tokens; }

  // Before the first request; it takes none otherwise.
  void set_media(MediaInfo media) { info_.media = std::move(media); }

  const ModelInfo& info() const override { return info_; }
  RequestId submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  Statistics statistics() const override;
  bool healthy() const override;
  void reset_prefix_cache() override { ++resets; }
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special) const override;

 private:
  struct Running {
    RequestId id = 0;
    Request request;
    EventSink sink;
    int sample = 0;
    Reply reply;
    std::vector<TokenId> ids;
    std::size_t next = 0;
    IncrementalDecoder decoder;
    std::chrono::steady_clock::time_point due;
    bool cancelled = false;
  };
  void loop();
  bool step(Running& running);  // whether it goes on

  Tokenizer tokenizer_;
  Script script_;
  ModelInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Running> arrived_, running_;  // running_ belongs to the thread
  std::vector<RequestId> cancel_;
  std::size_t count_ = 0;
  RequestId next_id_ = 1;
  bool stopping_ = false, dead_ = false;
  std::thread thread_;
};

}  // namespace m3::test
