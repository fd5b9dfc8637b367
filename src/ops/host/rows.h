// Where the tokens of a ragged batch stand, and where their pages are.
#pragma once

#include <cstdint>

#include "src/ops/ops.h"

namespace m3::ops {

// Page of a block of a sequence, -1 = none.
inline std::int32_t page_of(const Batch& batch, const std::int32_t* table, std::int32_t sequence, std::int64_t block) {
  if (block < 0 || block >= batch.page_table_stride) return -1;
  return table[std::int64_t{sequence} * batch.page_table_stride + block];
}

inline std::int32_t kv_page(const Batch& batch, std::int32_t sequence, std::int64_t block) {
  return page_of(batch, batch.page_table, sequence, block);
}

// index-K falls back to the table of K and V.
inline std::int32_t index_page(const Batch& batch, std::int32_t sequence, std::int64_t block) {
  return page_of(batch, batch.index_page_table != nullptr ? batch.index_page_table : batch.page_table, sequence, block);
}

// Sequence of a token, or -1 where the row is inert: padding of a bucket, or a context of length 0.
inline std::int32_t live_sequence(const Batch& batch, std::int64_t token) {
  const std::int32_t sequence = batch.sequence_of_token[token];
  if (sequence < 0 || sequence >= batch.sequences) return -1;
  const std::int32_t position = batch.positions[token];
  if (position < 0 || position >= batch.context_lengths[sequence]) return -1;
  return sequence;
}

// What stands for a token's embedding: a row [columns] of batch.features; null: the table's row.
inline const std::byte* feature_row(const Batch& batch, std::int64_t token, std::int64_t columns, DType dtype) {
  if (batch.feature_rows == nullptr || batch.feature_rows[token] < 0) return nullptr;
  return batch.features + batch.feature_rows[token] * columns * static_cast<std::int64_t>(dtype_size(dtype));
}

}  // namespace m3::ops
