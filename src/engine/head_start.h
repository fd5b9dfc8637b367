// The next step's decoding, queued while this step's tokens are still being drawn: a device need not wait for the host.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "src/engine/loaded_model.h"
#include "src/engine/sequence.h"

namespace m3::engine {

// A guess: everybody who draws now goes on with one token. The pass takes the tokens where the draw leaves them, in the
// device's memory. Who has ended by then leaves a row that nobody reads, and a chunk that is not as guessed is computed
// as ever; K and V that were written for nothing lie past the end of their sequence, or in a page that was free.
class HeadStart {
 public:
  explicit HeadStart(LoadedModel& model) : model_(model) {}

  // Queues the pass after a draw has begun in which `rows[i]` is the row of `sequences[i]`, each of which has all its
  // known tokens computed. Nothing is queued where a page that one would need is not free.
  void begin(std::span<Sequence* const> sequences, std::span<const std::int32_t> rows);

  std::int32_t rows() const { return rows_; }  // of logits, from 0; 0: nothing is queued
  // The row of this chunk's logits; -1: it has to be computed.
  std::int32_t find(const Chunk& chunk) const;
  void drop() { rows_ = 0; }

 private:
  struct Guess {
    std::int64_t position = 0;
    std::int32_t page = -1;  // where the token is written
    std::int32_t row = -1;
  };

  LoadedModel& model_;
  model::RaggedBatch batch_;
  std::map<std::pair<RequestId, int>, Guess> guesses_;  // by request and sample: a sequence may be gone by then
  std::int32_t rows_ = 0;
};

}  // namespace m3::engine
