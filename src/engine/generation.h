// One request on its way through the model: prefill in chunks, then one token a step, one sample after another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "m3/request.h"
#include "src/checkpoint/generation_config.h"
#include "src/engine/loaded_model.h"
#include "src/engine/stop_strings.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::engine {

// What ends replies and which ids may be drawn, for one checkpoint.
struct Vocabulary {
  std::vector<TokenId> end_ids;
  std::vector<std::uint32_t> allowed;         // ids with a token; empty = every id has one
  std::vector<std::uint32_t> allowed_no_end;  // the same without end_ids (before min_tokens)
};

// `config.eos_token_ids`, else the id of `[e~[`.
Vocabulary make_vocabulary(const Tokenizer& tokenizer, const GenerationConfig& config, std::int64_t vocab_size);

struct StepTimes {
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
};

class Generation {
 public:
  // `request.prompt_ids` is filled and checked. Everything named must outlive the generation.
  Generation(RequestId id, const Request& request, std::uint64_t seed, LoadedModel& model, const Tokenizer& tokenizer,
             const Vocabulary& vocabulary, const GenerationConfig& defaults);

  // Runs to the end, or until `cancelled` turns true (polled at every step). Every sample's last event carries a
  // finish reason; errors become FinishReason::error.
  void run(const EventSink& sink, const std::function<bool()>& cancelled, StepTimes& times);

 private:
  struct Sample;
  bool prefill(const std::function<bool()>& cancelled, StepTimes& times);
  void run_sample(int index, const EventSink& sink, const std::function<bool()>& cancelled, StepTimes& times);
  TokenId draw(Sample& sample, Event& event);
  // Whether this token ends the sample; fills the event's text and finish.
  void accept(Sample& sample, TokenId id, Event& event);
  void finish(Sample& sample, FinishReason reason, const std::string& why, Event& event);
  void deliver(const Event& event, const EventSink& sink);
  std::int64_t limit() const;  // completion tokens that max_tokens and the context leave

  RequestId id_;
  const Request& request_;
  std::uint64_t seed_;
  LoadedModel& model_;
  const Tokenizer& tokenizer_;
  const Vocabulary& vocabulary_;
  const GenerationConfig& defaults_;
  std::vector<ops::SamplingRow::Bias> bias_;
  kv::SequencePages sequence_;
  model::RaggedBatch batch_;
  ops::Tensor logits_;             // of the newest token
  std::vector<float> raw_logits_;  // a copy, where log-probabilities are asked for
};

}  // namespace m3::engine
