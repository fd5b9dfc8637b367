// m3::Engine in this process: a queue in front of one engine thread, which runs steps (docs/engine.md).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "m3/engine.h"
#include "src/engine/constraint.h"
#include "src/engine/loaded_model.h"
#include "src/engine/reply_gate.h"
#include "src/engine/scheduler.h"
#include "src/engine/sequence.h"
#include "src/engine/step.h"

namespace m3::engine {

struct LocalEngineOptions {
  std::int64_t max_num_seqs = 64;
  std::int64_t max_queued_requests = 1024;
  bool enable_prefix_caching = true;
  std::int64_t feature_cache_bytes = std::int64_t{256} << 20;
  double picture_piece = 0;  // as PictureEncoder takes it
  // Called on the engine's thread before each step; what it throws ends the engine (tests of faults).
  std::function<void(std::int64_t step)> before_step;
};

// Running sequences that a step of `max_batched_tokens` (0: as many as are needed) can give a token each.
std::int64_t running_limit(std::int64_t max_num_seqs, std::int64_t max_batched_tokens);
// Rows of logits that a step needs for so many running sequences.
std::int64_t logits_rows(std::int64_t max_num_seqs, std::int64_t max_batched_tokens);

class LocalEngine final : public Engine {
 public:
  // The model must be planned for running_limit() sequences and logits_rows() rows. While the engine has requests,
  // nobody else may use the model.
  LocalEngine(std::shared_ptr<LoadedModel> model, Tokenizer tokenizer, GenerationConfig defaults,
              LocalEngineOptions options);
  ~LocalEngine() override;

  const ModelInfo& info() const override { return info_; }
  RequestId submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  Statistics statistics() const override;
  bool healthy() const override;
  void reset_prefix_cache() override;
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special) const override;

 private:
  // What other threads have asked for since the last step.
  struct Inbox {
    std::vector<std::unique_ptr<ActiveRequest>> arrivals;
    std::vector<RequestId> cancelled;
    std::vector<RequestId> compiled;  // their constraints are ready, or have failed
    bool reset_prefix_cache = false;
    bool stop = false;
    bool empty() const {
      return arrivals.empty() && cancelled.empty() && compiled.empty() && !reset_prefix_cache && !stop;
    }
  };
  struct Outgoing {
    ActiveRequest* request;
    Event event;
  };

  void fill_info();
  std::shared_ptr<const ThinkTags> tags_of(const Request& request);

  // All below: on the engine's thread.
  void loop();
  bool take_inbox();
  void take_arrival(std::unique_ptr<ActiveRequest> arrival);
  void admit(RequestId id);
  void step();
  std::optional<double> work_on_pictures(bool wait);
  std::vector<PictureNeed> picture_needs();
  void note_admitted(const Plan& plan);
  void accept(std::vector<Draw>& draws);
  void fork(const Plan& plan);
  void end_request(ActiveRequest& request, FinishReason reason, const std::string& error = "");
  void settle();
  void count_step(const Plan& plan, double seconds);
  void publish();
  void die(const std::string& error);

  const std::shared_ptr<LoadedModel> model_;
  const Tokenizer tokenizer_;
  const GenerationConfig defaults_;
  const LocalEngineOptions options_;
  const Vocabulary vocabulary_;
  const SequenceContext context_;
  ModelInfo info_;

  // The engine thread's own.
  std::optional<kv::PrefixTree> cache_;
  Scheduler scheduler_;
  PictureEncoder pictures_;
  Step step_;
  std::map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::map<RequestId, std::unique_ptr<ActiveRequest>> compiling_;  // wait for their constraints
  std::int64_t open_requests_ = 0;
  std::vector<Outgoing> outgoing_;
  Statistics counts_;

  std::atomic<RequestId> next_id_ = 1;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  Inbox inbox_;
  Statistics published_;
  std::int64_t places_taken_ = 0;
  std::string failure_;                    // why the thread ended; empty: it has not
  std::shared_ptr<const ThinkTags> tags_;  // of the last request that had any
  Constraints constraints_;                // ends before what its thread calls
  std::thread thread_;
};

}  // namespace m3::engine
