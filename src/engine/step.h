// One step of the model for a plan: the forward pass, the prompt's log-probabilities, and one draw for every sequence
// whose known tokens are all computed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/engine/head_start.h"
#include "src/engine/loaded_model.h"
#include "src/engine/mask_worker.h"
#include "src/engine/pictures.h"
#include "src/engine/scheduler.h"
#include "src/engine/sequence.h"

namespace m3::engine {

struct Draw {
  Sequence* sequence = nullptr;
  DrawnToken token;
  std::string error;      // one line instead of a token
  bool refused = false;   // the error is the request's fault
  bool complete = false;  // instead of a token: the reply's constraint is satisfied, and nothing may follow
  std::int32_t row = 0;   // of logits
};

class Step {
 public:
  Step(LoadedModel& model, PictureEncoder& pictures) : model_(model), pictures_(pictures), next_(model) {}

  // Every chunk's item is a Sequence; features of the pictures in a chunk are there. The draws stand in the order of the chunks, valid until the next call.
  std::vector<Draw>& run(const Plan& plan);

  // Of the last run: spent in operations of the backend, and in reading logits.
  double forward_seconds() const { return forward_seconds_; }
  double sampling_seconds() const { return sampling_seconds_; }

 private:
  struct PromptRow {
    Sequence* sequence = nullptr;
    std::int64_t position = 0;
  };

  bool started(const Plan& plan) const;
  void collect(const Plan& plan);
  void compute();
  void begin_next(const Plan& plan);
  std::int32_t add_chunk(Sequence& sequence, std::int64_t first, std::int64_t count);
  void note_prompt_rows();
  void begin_sample();
  void end_sample();
  void note_prompt_row(const PromptRow& row, std::span<const float> logits);
  template <typename Work>
  void each_row(std::size_t count, const Work& work);

  LoadedModel& model_;
  PictureEncoder& pictures_;
  std::vector<model::FeatureRun> features_;  // of one sequence
  model::RaggedBatch batch_;
  MaskWorker masks_;
  HeadStart next_;
  std::int32_t started_rows_ = 0;  // of logits that the step before had begun; this step's own follow
  std::int32_t drawn_rows_ = 0;    // of logits that are drawn from; prompt rows follow
  std::vector<Draw> draws_;
  std::vector<PromptRow> prompt_rows_;
  std::vector<std::int32_t> rows_, rows_of_prompts_;
  std::vector<ops::SamplingRow> sampling_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> finite_;
  std::vector<std::byte> prompt_logits_;  // of prompt rows, where the backend's memory is not the host's
  double forward_seconds_ = 0, sampling_seconds_ = 0;
};

}  // namespace m3::engine
