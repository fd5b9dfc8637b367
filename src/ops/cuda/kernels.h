// Launchers of the kernels, by operation. All pointers are device memory; nothing allocates or waits. Each returns the
// launch's error. Shapes are checked by the backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/ops/cuda/limits.h"
#include "src/ops/ops.h"

namespace m3::ops::cuda {

// A table of rows in a stored format, for `embed`.
struct EmbedArgs {
  Batch batch;
  WeightMatrix table;
  const std::int32_t* previous = nullptr;
  std::uint16_t* residual = nullptr;
  std::int64_t stride = 0;
};
cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream);

// table [T, 2 · half]: cos, then sin.
cudaError_t launch_rotary_table(const Batch& batch, const float* inv_freq, int half, float attention_factor,
                                float* table, std::int64_t stride, cudaStream_t stream);

struct AddNormArgs {
  int rows = 0, columns = 0;
  std::uint16_t* residual = nullptr;
  std::int64_t residual_stride = 0;
  const std::uint16_t* delta = nullptr;  // null: norm only
  std::int64_t delta_stride = 0;
  std::uint16_t* normed = nullptr;  // null: sum only
  std::int64_t normed_stride = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;  // layer norm
  float eps = 0;
  bool gemma = false;
};
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream);
cudaError_t launch_layer_norm(const AddNormArgs& args, cudaStream_t stream);

struct QkvFinishArgs {
  Batch batch;
  int query_heads = 0, kv_heads = 0, index_heads = 0;
  int rotary_dim = 0;
  float eps = 0;
  bool gemma = false;
  const float *q_norm = nullptr, *k_norm = nullptr, *index_q_norm = nullptr, *index_k_norm = nullptr;  // null: none
  const std::uint16_t* packed = nullptr;
  std::int64_t packed_stride = 0;
  const float* table = nullptr;
  std::int64_t table_stride = 0;
  LayerPages pages;
  std::uint16_t* q = nullptr;
  std::int64_t q_stride = 0;
  std::uint16_t* index_q = nullptr;
  std::int64_t index_q_stride = 0;
};
cudaError_t launch_qkv_finish(const QkvFinishArgs& args, cudaStream_t stream);

struct SelectArgs {
  Batch batch;
  int heads = 0, topk = 0, init_blocks = 0, local_blocks = 0;
  const std::int32_t* dropped = nullptr;  // [dropped_count]
  int dropped_count = 0;
  bool deterministic = false;
  const std::uint16_t* index_q = nullptr;
  std::int64_t stride = 0;
  PagePart index_k;
  std::int32_t* block_ids = nullptr;
  float* scores = nullptr;        // workspace
  std::int64_t score_floats = 0;  // of it
  unsigned* counters = nullptr;   // zero between calls
  std::int64_t counters_size = 0;
};
// The least that a call takes, and what makes chunks of all tokens unless they are too many.
std::int64_t select_score_floats(std::int64_t tokens, std::int64_t heads, std::int64_t context);
cudaError_t launch_select_blocks(const SelectArgs& args, cudaStream_t stream);

// Hopper's own: up to 16 tokens times heads a sequence, in one launch; and prompts.
bool select_decode_takes_sm90(const SelectArgs& args);
cudaError_t launch_select_decode_sm90(const SelectArgs& args, cudaStream_t stream);
bool select_prefill_takes_sm90(const SelectArgs& args);
cudaError_t launch_select_prefill_sm90(const SelectArgs& args, cudaStream_t stream);
std::int64_t select_prefill_workspace_bytes_sm90(std::int64_t tokens, std::int64_t sequences, int heads);

struct AttendCall {
  Batch batch;
  Attention args;
  const std::uint16_t* q = nullptr;
  std::int64_t q_stride = 0;
  LayerPages pages;
  const std::int32_t* block_ids = nullptr;  // sparse
  std::uint16_t* out = nullptr;
  std::int64_t out_stride = 0;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  unsigned* counters = nullptr;  // zero between calls
  std::int64_t counters_size = 0;
  bool deterministic = false;  // one order of summation for any batch
};
std::int64_t attend_workspace_bytes(std::int64_t tokens, std::int64_t query_heads, std::int64_t kv_heads,
                                    std::int64_t context, std::int64_t topk);
cudaError_t launch_attend_dense(const AttendCall& call, cudaStream_t stream);
cudaError_t launch_attend_sparse(const AttendCall& call, cudaStream_t stream);

// From router logits [T, experts] (overwritten), or from `segments` arrays of them that add up to logits / factor.
cudaError_t launch_choose_experts(float* logits, int segments, float factor, int tokens, int experts, const float* bias,
                                  const Routing& routing, cudaStream_t stream);

// The segments' sums [8, T, experts] for few tokens, and whether the shapes fit.
inline constexpr int route_segment_tokens = 64;
bool route_takes_segments(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens);
cudaError_t launch_route_segments(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens,
                                  float* sums, cudaStream_t stream);

// The same on Hopper, in segments of 384 columns; 0 segments: does not take it.
inline constexpr int most_route_segments = 16;
int route_segments_sm90(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens);
cudaError_t launch_route_sums_sm90(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens,
                                   float* sums, cudaStream_t stream);

// Lists of (token, slot) pairs by expert, for matmul.h: pair = token · per_token + slot.
struct GroupLists {
  std::int32_t* list = nullptr;         // [pairs]
  std::int32_t* group_begin = nullptr;  // [groups + 1]
  std::int32_t* active = nullptr;       // [min(groups, pairs)]
  std::int32_t* tile_group = nullptr;   // [prefill_tiles]
  std::int32_t* tile_begin = nullptr;
  std::int32_t* position = nullptr;  // [pairs] where in the list, -1: nowhere; null: not wanted
};
// Experts first .. first + count - 1, each in a group of its own or in none (-1): those of one set of formats.
struct ExpertGroups {
  int first = 0, count = 0, groups = 0;
  const std::int32_t* group_of_expert = nullptr;  // [count]
};
cudaError_t launch_group_pairs(const Routing& routing, int tokens, const ExpertGroups& experts, const GroupLists& lists,
                               cudaStream_t stream);

// The same for many pairs; a group's list is in any order.
bool takes_group_many(int pairs, int groups);
cudaError_t launch_group_many(const Routing& routing, int tokens, const ExpertGroups& experts, const GroupLists& lists,
                              cudaStream_t stream);

// out [pairs, columns] <- row pair / per_token of x at position[pair], and scales [tokens] likewise where given.
struct GatherArgs {
  int tokens = 0, columns = 0, per_token = 0;  // whole eights of columns
  const std::int32_t* position = nullptr;
  const std::uint16_t* x = nullptr;  // rows at 16 bytes
  std::int64_t x_stride = 0;
  std::uint16_t* out = nullptr;
  const float* scales = nullptr;
  float* out_scales = nullptr;
  bool arranged = false;  // columns of `out`: see takes_arranged (matmul_sm90.h); whole 256 of columns
};
cudaError_t launch_gather(const GatherArgs& args, cudaStream_t stream);

// out [rows, columns] = rows ids[0] … of x, bf16; all at 16 bytes.
cudaError_t launch_gather_rows(const std::uint16_t* x, std::int64_t stride, const std::int32_t* ids, int rows,
                               int columns, std::uint16_t* out, cudaStream_t stream);

// y [rows, width] <- swigluoai of packed [rows, 2 · width] = gate | up.
cudaError_t launch_activate(const std::uint16_t* packed, int rows, int width, const Activation& activation,
                            std::uint16_t* y, cudaStream_t stream);
// y <- gelu(x), rounded, elementwise.
cudaError_t launch_gelu(const std::uint16_t* x, std::int64_t count, std::uint16_t* y, cudaStream_t stream);

// out [T, columns] <- round(Σ slots' parts in order (+ shared)); slots of experts outside [first, first + count) absent.
struct CombineArgs {
  int tokens = 0, columns = 0, per_token = 0, first = 0, count = 0;
  const std::int32_t* expert_ids = nullptr;
  bool old_ids = false;          // they were there before the kernel ahead of this one began, as MatmulArgs has it
  const float* parts = nullptr;  // [T · per_token, columns]
  const std::uint16_t* rounded_parts = nullptr;  // instead of them (many tokens only)
  const float* shared = nullptr;                 // [T, columns]; null: none
  std::uint16_t* out = nullptr;
  std::int64_t stride = 0;
};
cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream);
bool takes_combine_many(const CombineArgs& args);
cudaError_t launch_combine_many(const CombineArgs& args, cudaStream_t stream);

// out [rows, columns] <- e4m3 values of x / scale; scales [rows] = max|x| / 448 (1 for zeros).
cudaError_t launch_quantise_rows(const std::uint16_t* x, std::int64_t stride, int rows, int columns, std::uint16_t* out,
                                 float* scales, cudaStream_t stream);

cudaError_t launch_copy_pages(const PagePart& part, const std::int32_t* from, const std::int32_t* to, int count,
                              cudaStream_t stream);

// What a row of `sample` reads; pointers are device memory.
struct SampleRow {
  float temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  std::int32_t top_k;
  std::uint32_t sample;
  std::uint64_t seed;
  std::int64_t position;
  const std::int32_t* prompt_ids;
  const std::int32_t* output_ids;
  std::int32_t prompt_count, output_count;
  const SamplingRow::Bias* bias;
  std::int32_t bias_count;
  std::int32_t allowed_words;  // -1: all are allowed
  const std::uint32_t* allowed;
};
// `counts` [rows, vocab]: zero before and after; null where no row has a penalty. finite[r] (null: not wanted): whether
// all logits of the row were finite at first.
cudaError_t launch_sample(float* logits, std::int64_t stride, int vocab, const SampleRow* rows, int count,
                          std::uint32_t* counts, std::int32_t* ids, std::uint8_t* finite, cudaStream_t stream);

// The same by eight blocks of threads a row, on Hopper.
bool sample_takes_sm90(int vocab);
cudaError_t launch_sample_sm90(const float* logits, std::int64_t stride, int vocab, const SampleRow* rows, int count,
                               std::uint32_t* counts, std::int32_t* ids, std::uint8_t* finite, cudaStream_t stream);

// Vision.
struct PatchEmbedArgs {
  std::int64_t patches = 0;
  const float* pixels = nullptr;  // [patches, weight.columns]
  std::int64_t pixel_stride = 0;
  WeightMatrix weight;
  std::int64_t row_bytes = 0, scale_bytes = 0;  // of a row of the weight
  std::uint16_t* out = nullptr;                 // [patches, weight.rows]
  std::int64_t out_stride = 0;
};
cudaError_t launch_patch_embed(const PatchEmbedArgs& args, cudaStream_t stream);

// out [rows, heads · 80] <- attention of rows first_row … first_row + rows - 1 of packed [P, 3 · heads · 80] = q | k | v
// over the segments that hold them: segment s is rows segment_begin[s] … segment_begin[s + 1] - 1. Rows of packed and
// out begin at multiples of 16 bytes (strides in multiples of 8).
struct VisionAttendArgs {
  const std::uint16_t* packed = nullptr;
  std::int64_t packed_stride = 0;
  int heads = 0;
  float scale = 0;                              // 80^-0.5
  const std::int32_t* segment_begin = nullptr;  // [segments + 1], on the device, ascending
  int segments = 0;
  int first_segment = 0, last_segment = 0;  // that hold the first and the last of the rows
  std::int64_t first_row = 0;
  int rows = 0;
  std::uint16_t* out = nullptr;
  std::int64_t out_stride = 0;
  bool deterministic = false;  // one order of summation for any cut into calls
};
cudaError_t launch_vision_attend(const VisionAttendArgs& args, cudaStream_t stream);
cudaError_t launch_vision_rotary_table(const std::int32_t* positions, int rows, const float* inv_freq, float* table,
                                       std::int64_t stride, cudaStream_t stream);
// Rows of packed at 16 bytes.
cudaError_t launch_vision_qkv_finish(std::uint16_t* packed, std::int64_t stride, int rows, int heads,
                                     const float* table, std::int64_t table_stride, cudaStream_t stream);

}  // namespace m3::ops::cuda
