// Where the tokens of a ragged batch stand, and where their pages are: src/ops/host/rows.h and pages.h on the device.
#pragma once

#include "src/ops/cuda/device.cuh"
#include "src/ops/ops.h"

namespace m3::ops::cuda {

__device__ inline int page_of(const Batch& batch, const std::int32_t* table, int sequence, int block) {
  if (block < 0 || block >= batch.page_table_stride) return -1;
  return table[std::int64_t{sequence} * batch.page_table_stride + block];
}
__device__ inline int kv_page(const Batch& batch, int sequence, int block) {
  return page_of(batch, batch.page_table, sequence, block);
}
__device__ inline int index_page(const Batch& batch, int sequence, int block) {
  return page_of(batch, batch.index_page_table != nullptr ? batch.index_page_table : batch.page_table, sequence, block);
}

// Sequence of a token, or -1 where the row is inert.
__device__ inline int live_sequence(const Batch& batch, int token) {
  const int sequence = batch.sequence_of_token[token];
  if (sequence < 0 || sequence >= batch.sequences) return -1;
  const int position = batch.positions[token];
  if (position < 0 || position >= batch.context_lengths[sequence]) return -1;
  return sequence;
}

// The run of one (page, head): [128 tokens][128] elements of `element_bytes`.
__device__ inline std::byte* page_run(const PagePart& part, int page, int head, int element_bytes) {
  return part.data + page * part.page_bytes + std::int64_t{head} * page_tokens * head_dim * element_bytes;
}

}  // namespace m3::ops::cuda
