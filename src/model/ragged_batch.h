// Host-side builder of the ragged batch that one forward pass takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/ops/ops.h"

namespace m3::model {

// Rows that stand for the embeddings of the tokens at positions first, first + 1, … of a sequence.
struct FeatureRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  const std::byte* rows = nullptr;  // [count, hidden] of the backend's activation type
};

class RaggedBatch {
 public:
  void clear();

  // `ids` are the tokens at positions first_position, first_position + 1, … of one sequence whose pages (all of
  // them, in block order, room for these tokens included) are `pages`. Returns the row of its first token.
  std::int32_t add(std::span<const std::int32_t> ids, std::int64_t first_position, std::span<const std::int32_t> pages);
  // The same where pictures stand in the sequence: the parts of `features` (of the whole sequence, ascending) at these
  // positions are copied. `row_bytes`: of one row.
  std::int32_t add(std::span<const std::int32_t> ids, std::int64_t first_position, std::span<const std::int32_t> pages,
                   std::span<const FeatureRun> features, std::int64_t row_bytes);

  std::int32_t tokens() const { return static_cast<std::int32_t>(token_ids_.size()); }
  std::int32_t sequences() const { return static_cast<std::int32_t>(context_lengths_.size()); }

  // Views stay valid until the next add() or clear().
  ops::Batch view();

 private:
  std::vector<std::int32_t> token_ids_, positions_, sequence_of_token_;
  std::vector<std::int32_t> feature_rows_;  // of the tokens so far; shorter than those where the rest has none
  std::vector<std::byte> features_;
  std::vector<std::int32_t> query_begin_ = {0};
  std::vector<std::int32_t> context_lengths_;
  std::vector<std::int32_t> pages_;       // all sequences' pages, one after another
  std::vector<std::size_t> pages_begin_;  // of each sequence in pages_
  std::vector<std::int32_t> page_table_;  // [B, stride], made by view()
};

}  // namespace m3::model
