// A request while it is in the engine, and each of its samples: what is drawn, what ends it, and the events that say
// so.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "m3/request.h"
#include "src/checkpoint/generation_config.h"
#include "src/engine/constraint.h"
#include "src/engine/pictures.h"
#include "src/engine/reply_gate.h"
#include "src/engine/scheduler.h"
#include "src/engine/stop_strings.h"
#include "src/engine/vocabulary.h"
#include "src/ops/ops.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::engine {

// What all sequences of an engine share.
struct SequenceContext {
  const Tokenizer& tokenizer;
  const Vocabulary& vocabulary;
  const GenerationConfig& defaults;
  std::int64_t max_model_len;
  kv::PagePool& pages;
};

struct DrawnToken {
  TokenId id = -1;
  float logprob = 0;              // where asked, as are
  std::vector<TokenLogprob> top;  // the most probable ones
};

class Sequence;

// Whether an error is the request's fault.
bool is_refusal(const std::exception& error);

struct ActiveRequest {
  // `request` is checked, its prompt_ids are filled; `pictures` are what take_pictures() made of it.
  ActiveRequest(RequestId id, Request request, std::vector<Picture> pictures, EventSink sink, std::uint64_t seed,
                const SequenceContext& context);

  // The first sample that has not begun takes the prompt, with those after it as its followers; null: all have begun.
  Sequence* begin_next();
  // Once its constraint is compiled, if it has one: every sample gets its gate.
  void open_gates(const Constraints& constraints);

  RequestId id;
  Request request;
  std::vector<Picture> pictures;
  EventSink sink;
  std::uint64_t seed;
  std::shared_ptr<const StopList> stops;  // of request.stop, which is empty then
  std::vector<ops::SamplingRow::Bias> bias;
  std::vector<std::uint32_t> allowed, allowed_no_end;  // as in Vocabulary, for `allowed_ids`; empty: not given
  const std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  double queue_seconds = -1;  // as Event has it
  std::vector<std::unique_ptr<Sequence>> samples;
  std::size_t begun = 0;                  // samples that have the prompt
  int open = 0;                           // samples whose last event is still to come
  std::int64_t cached_tokens = -1;        // of the prompt; -1: not looked up yet
  ConstraintHandle constraint;            // null: none
  std::shared_ptr<const ThinkTags> tags;  // null: no reasoning that anything depends on
  // By position, as Event has them; go out with the first event.
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> prompt_top_logprobs;
};

class Sequence : public Schedulable {
 public:
  Sequence(ActiveRequest& request, int sample, const SequenceContext& context);

  ActiveRequest& request() const { return request_; }
  bool finished() const { return finished_; }
  std::int64_t prompt_tokens() const { return static_cast<std::int64_t>(request_.request.prompt_ids.size()); }
  std::int64_t completion_tokens() const { return static_cast<std::int64_t>(tokens.size()) - prompt_tokens(); }

  // Whether the next token is the last that max_tokens and the context leave.
  bool at_limit() const { return completion_tokens() + 1 >= limit_; }

  void take_prompt();

  // Up to the first picture whose features are not there; nothing, where that is less than a page.
  std::int64_t ready() const override;

  // Whether the next draw needs fill_mask() before it.
  bool needs_mask() const { return gate_ && gate_->limits(); }
  void fill_mask();
  // The mask just filled allows nothing, and the constraint is satisfied: the reply is complete without an end token.
  bool is_complete() const { return complete_; }
  const std::string& mask_error() const { return mask_error_; }  // why it allows nothing; empty: no fault
  bool mask_refused() const { return mask_refused_; }            // that it allows nothing is the request's fault
  void open_gate(std::unique_ptr<ReplyGate> gate) { gate_ = std::move(gate); }

  // How the next token is drawn; views into this sequence, valid until accept().
  ops::SamplingRow sampling_row();
  // Takes the drawn token; the event may carry a finish reason.
  Event accept(DrawnToken drawn);
  // Ends for another reason; `error` with FinishReason::error, `refused` as Event has it.
  Event end(FinishReason reason, const std::string& error = "", bool refused = false);

 private:
  const std::vector<std::uint32_t>& vocabulary_mask() const;
  // The request's bias, and -inf for what `banned` forbids next.
  const std::vector<ops::SamplingRow::Bias>& bias();
  Event new_event() const;
  void take(TokenId id, Event& event);
  void finish(FinishReason reason, const std::string& why, Event& event);

  ActiveRequest& request_;
  const SequenceContext& context_;
  IncrementalDecoder decoder_;
  StopStrings stop_;
  std::unique_ptr<ReplyGate> gate_;  // null: any token, and no reasoning to count
  std::vector<std::uint32_t> mask_;
  std::vector<ops::SamplingRow::Bias> bias_;  // where anything is banned
  std::string mask_error_;
  bool mask_refused_ = true;
  bool complete_ = false;
  std::int64_t limit_ = 0;  // completion tokens that max_tokens and the context leave
  bool finished_ = false;
};

}  // namespace m3::engine
