// The inner loops of the cpu backend, one table for each instruction set. Everything above this table is written once.
#pragma once

#include <cstdint>

#include "src/base/weight_matrix.h"
#include "src/ops/ops.h"

namespace m3::ops::cpu {

// Products of few tokens read the weights straight into registers; more go through a widened panel.
inline constexpr std::int64_t direct_tokens = 4;
// Tokens that share one pass over a weight, and their slice of K: what keeps a panel of weights in the first-level
// cache and x in the second.
inline constexpr std::int64_t block_tokens = 128;
inline constexpr std::int64_t k_block = 256;
// Rows of K are padded with zeros to a multiple of this in fp32 panels: what the kernels widen at once, or twice that.
inline constexpr std::int64_t column_group = 64;

// static: the kernels' units must not define a symbol that other units could take.
static constexpr std::int64_t padded_columns(std::int64_t columns) {
  return (columns + column_group - 1) / column_group * column_group;
}

// x as fp32, for up to block_tokens tokens: [K / depth][tokens][depth], the last slice shorter.
struct XPanel {
  const float* data = nullptr;
  std::int64_t tokens = 0;
  std::int64_t depth = 0;
  const float* token_scales = nullptr;  // [tokens], multiply the results; null = none
};

// out[t · out_stride + r] = x(t) · row first + r, times the row's factor, 0 <= r < rows.
struct MatmulCall {
  const WeightMatrix* weight = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  XPanel x;
  float* panel = nullptr;  // [panel_rows, k_block]
  float* sums = nullptr;   // [block_tokens · panel_rows · lanes]
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

// Running softmax of a group of query heads that share a KV head: lanes are heads.
struct AttentionState {
  float* highest;  // [heads]
  float* total;    // [heads]
  float* sums;     // [128, heads]
};

struct AttentionCall {
  const float* q = nullptr;  // [128, heads]: transposed, zero-padded to `heads`
  int heads = 0;             // a multiple of the lanes, at most max_heads
  float scale = 0;
  DType k_type = DType::bf16, v_type = DType::bf16;
  const std::byte* k = nullptr;  // the first visible row [128] of the page's head
  const std::byte* v = nullptr;
  const float* wide_k = nullptr;  // the same rows in fp32 where several calls share them, else null
  const float* wide_v = nullptr;
  std::int64_t count = 0;  // visible rows
  float k_scale = 1, v_scale = 1;
  float* rows = nullptr;    // scratch [key_chunk, 128]
  float* scores = nullptr;  // scratch [128, heads]
};

inline constexpr int max_heads = 16;  // query heads of one attention task
inline constexpr std::int64_t key_chunk = 32;

struct ScoreCall {
  const float* queries = nullptr;         // [count, 128]
  const std::int32_t* visible = nullptr;  // [count] keys of this block that the query may see, may be <= 0
  std::int64_t count = 0;
  DType type = DType::bf16;
  const std::byte* keys = nullptr;  // [128, 128]
  const std::byte* next = nullptr;  // keys that will be read after these, to be fetched meanwhile; null = none
  std::int64_t key_count = 0;       // the largest of `visible`, at most 128
  float* rows = nullptr;            // scratch [key_chunk, 128]
  float* scores = nullptr;          // out: scores[i · stride]
  std::int64_t stride = 0;
};

inline constexpr std::int64_t segment_queries = 128;  // of one call, so that widened keys serve several registers
inline constexpr std::int64_t segment_keys = 60;      // widened at once: K and V of a chunk take 38 KB
// Floats of SegmentCall::scratch: q and sums, the softmax's state, K, V, scores of at most 32 queries.
inline constexpr std::int64_t segment_scratch = 2 * segment_queries * vision_head_dim + 2 * segment_queries +
                                                2 * segment_keys * vision_head_dim + segment_keys * 32;

// One head of some rows of a segment. q, k and v are rows of 80 values, `stride` elements apart.
struct SegmentCall {
  const std::uint16_t* q = nullptr;
  std::int64_t queries = 0;  // at most segment_queries
  const std::uint16_t* k = nullptr;
  const std::uint16_t* v = nullptr;
  std::int64_t keys = 0;  // of the whole segment
  std::int64_t stride = 0;
  float scale = 0;
  float* scratch = nullptr;  // [segment_scratch]
  std::uint16_t* out = nullptr;
  std::int64_t out_stride = 0;
};

struct Kernels {
  const char* name;  // "AVX2"
  int lanes;         // floats of a register; attention pads heads to a multiple
  std::int64_t panel_rows;
  bool (*interleaved)(WeightFormat format);  // x must come through interleave for weights of this format
  void (*matmul)(const MatmulCall& call);
  // out[count] <- fp32 of bf16 values; [count, padded) <- 0.
  void (*widen_bf16)(const std::uint16_t* values, std::int64_t count, std::int64_t padded, float* out);
  // The same in the order of columns in which the short formats are widened.
  void (*interleave)(const std::uint16_t* values, std::int64_t count, std::int64_t padded, float* out);
  void (*round_bf16)(const float* values, std::int64_t count, std::uint16_t* out);
  // x <- bf16(x + delta) (delta may be null), then out <- bf16((x · r) · w) unless out is null.
  void (*add_norm)(std::uint16_t* x, const std::uint16_t* delta, const float* weight, bool gemma, float eps,
                   std::int64_t count, std::uint16_t* out);
  // One head: norm (weight null: none), rotation of the first `rotary_dim`; y [128] in fp32.
  void (*norm_rotate)(const std::uint16_t* x, const float* weight, bool gemma, float eps, const float* table,
                      int rotary_dim, float* y);
  // out[count] <- bf16(act(bf16(gate), bf16(up))).
  void (*swigluoai)(const float* gate, const float* up, const Activation& activation, std::int64_t count,
                    std::uint16_t* out);
  // out[i] += weight · values[i].
  void (*accumulate)(const float* values, float weight, std::int64_t count, float* out);
  void (*attention_begin)(int heads, const AttentionState& state);
  // out[count, 128] <- rows of a page in fp32.
  void (*widen_rows)(DType type, const std::byte* from, std::int64_t first, std::int64_t count, float scale,
                     float* out);
  void (*attend_page)(const AttentionCall& call, const AttentionState& state);
  void (*attention_merge)(int heads, const AttentionState& into, const AttentionState& other);
  // sums <- sums / total.
  void (*attention_finish)(int heads, const AttentionState& state);
  void (*score_page)(const ScoreCall& call);
  // out[count] <- bf16(values + bias), and bf16(gelu(bf16(values + bias))).
  void (*add_bias)(const float* values, const float* bias, std::int64_t count, std::uint16_t* out);
  void (*add_bias_gelu)(const float* values, const float* bias, std::int64_t count, std::uint16_t* out);
  // As add_norm, with the mean taken out and a bias.
  void (*layer_norm)(std::uint16_t* x, const std::uint16_t* delta, const float* weight, const float* bias, float eps,
                     std::int64_t count, std::uint16_t* out);
  // x in place: pairs (i, i + pairs) by the table's cos and sin [2 · pairs].
  void (*rotate_pairs)(std::uint16_t* x, const float* table, int pairs);
  void (*attend_segment)(const SegmentCall& call);
};

const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

}  // namespace m3::ops::cpu
