// The table of operations that every backend implements: the seam between the model and the kernels.
// Operations are coarse, so that a backend may fuse inside them. The model calls nothing else.
//
// Rules (spec §3.16, addenda §13 "Rounding"):
// - Activations are bf16 values. A backend stores them as it likes (`activation_dtype`): the judge keeps fp32
//   words that hold bf16 values, or unrounded fp32 under Numerics::fp32; the others keep bf16.
// - A row of any result depends only on that row's inputs, its position and the pages of its sequence: never on
//   the other rows of the batch, on chunking, on page order or on the number of threads, bit for bit.
// - No operation allocates. `workspace_bytes` says what a backend needs for given maxima.
// - Memory: all operands (data of tensors, arrays of a batch, pages, weights, spans of floats, routing, block ids,
//   row ids, `previous`) lie in the backend's memory, which for some is a device's. The structs that hold the pointers,
//   and what the comments below call the host's, lie in the host's memory.
// - A device's operations run in the order of their calls, behind the host: only download(), end_sample() and
//   synchronize() wait.
// - Rows with sequence length 0 or page -1 are inert: nothing is written, block ids are -1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/number_formats.h"
#include "src/base/random_fill.h"
#include "src/base/weight_matrix.h"
#include "src/ops/memory.h"

namespace m3::ops {

inline constexpr int head_dim = 128;     // target model; fixed (spec §1.2)
inline constexpr int page_tokens = 128;  // tokens of a page = tokens of a sparse block (spec §3.6)

class Communicator;  // made by src/parallel; opaque here

enum class Numerics : std::uint8_t {
  bf16,  // the contract of spec §3.16
  fp32,  // no rounding of activations: the judge only, to compare with an fp32 reference
};

// A row-major view of activations or results. `row_stride` counts elements.
struct Tensor {
  DType dtype = DType::bf16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  std::byte* data = nullptr;

  bool empty() const { return data == nullptr; }
  std::byte* row(std::int64_t index) const {
    return data + static_cast<std::size_t>(index * row_stride) * dtype_size(dtype);
  }
};

// A ragged batch: prompt chunks, single decode tokens and verify groups mixed, never padded. Row i of every [T, ...]
// tensor is token i. A token sees the keys at positions <= its own of its own sequence.
struct Batch {
  std::int32_t tokens = 0;                          // T
  std::int32_t sequences = 0;                       // B
  const std::int32_t* token_ids = nullptr;          // [T]; id < 0: row -id-1 of the step before's sampled tokens
  const std::int32_t* positions = nullptr;          // [T] absolute, from 0
  const std::int32_t* sequence_of_token = nullptr;  // [T] row of the page table
  const std::int32_t* query_begin = nullptr;        // [B+1] tokens query_begin[s] .. query_begin[s+1] belong to s
  const std::int32_t* context_lengths = nullptr;    // [B] tokens in the cache once this step is written; 0 = inert
  const std::int32_t* page_table = nullptr;         // [B, page_table_stride] page of each 128-token block, -1 = none
  std::int32_t page_table_stride = 0;
  const std::int32_t* index_page_table = nullptr;  // likewise for index-K, which may be resident elsewhere
  // Pictures (spec §4.7): row feature_rows[i] >= 0 of `features` [.., H] stands for token i's embedding; null = none.
  const std::int32_t* feature_rows = nullptr;  // [T], -1 = the token's own
  const std::byte* features = nullptr;         // rows of activation_dtype without gaps

  // For the choice of launches. In a pass that is played again (begin_pass) these bound what the arrays may hold then.
  std::int32_t longest_query = 0;    // tokens of one sequence at most: 1 where all decode; 0 = not known
  std::int32_t longest_context = 0;  // of context_lengths at most; 0 = not known
  // The same batch with its arrays in the host's memory. Null where the arrays above lie there, and in a pass that is
  // played again.
  const Batch* host = nullptr;
};

// One part (K, V or index-K) of every page of one layer: page p starts at data + p · page_bytes.
// K and V: [KV head][128 tokens][128]; index-K: [128 tokens][128]. dtype f32, bf16 or f8_e4m3.
struct PagePart {
  DType dtype = DType::bf16;
  std::byte* data = nullptr;
  std::int64_t page_bytes = 0;
};

struct LayerPages {
  PagePart k, v;
  PagePart index_k;   // data null where the layer has no indexer
  float k_scale = 1;  // fp8 caches: stored = e4m3(k / k_scale), read back as code · k_scale
  float v_scale = 1;
};

struct NormWeight {
  std::span<const float> weight;  // [columns], as stored
  float eps = 1e-6f;
  bool gemma = true;  // multiply by (1 + w), formed in fp32; else by w (drafts)
};

struct QkvFinish {
  int query_heads = 0;
  int kv_heads = 0;
  int index_heads = 0;  // 0: no indexer on this layer; else equals kv_heads, with one shared index key
  int rotary_dim = 64;
  float eps = 1e-6f;
  bool gemma = true;
  std::span<const float> q_norm, k_norm, index_q_norm, index_k_norm;  // [128] each; empty = no norm
};

struct SelectBlocks {
  int index_heads = 0;
  int topk = 0;          // slots, forced blocks included
  int init_blocks = 0;   // forced leading blocks
  int local_blocks = 1;  // forced trailing blocks, the own block included
  // Blocks that may not be chosen (m3 trace); forced ones stay. The host's memory.
  std::span<const std::int32_t> dropped;
};

struct Attention {
  int query_heads = 0;
  int kv_heads = 0;
  float scale = 0;  // 128^-0.5 for the target model
  int window = 0;   // attend_dense: keys at distance < window only; 0 = all (drafts use it)
  int topk = 0;     // attend_sparse: slots a token and KV head
};

struct Activation {  // swigluoai (spec §3.12)
  float alpha = 1.702f;
  float limit = 7.0f;
  float beta = 1.0f;
};

struct MlpWeights {
  WeightMatrix gate, up;  // [intermediate, hidden]
  WeightMatrix down;      // [hidden, intermediate]
};

struct Routing {
  int experts_per_token = 0;
  std::int32_t* expert_ids = nullptr;  // [T, k] ascending
  float* expert_weights = nullptr;     // [T, k] before the routed scaling factor; sum to 1
};

struct LayerNormWeight {
  std::span<const float> weight, bias;  // [columns]
  float eps = 1e-5f;
};

// Two linears with bias and the exact (erf) GELU between them.
struct GeluMlpWeights {
  WeightMatrix fc1;                 // [inner, columns]
  std::span<const float> fc1_bias;  // [inner]
  WeightMatrix fc2;                 // [out, inner]
  std::span<const float> fc2_bias;  // [out]
};

// Rows of the vision tower's attention: q | k | v of a patch, each heads · vision_head_dim wide.
inline constexpr int vision_head_dim = 80;      // fixed (spec §1.4); a tower with another one is refused
inline constexpr int vision_rotary_pairs = 39;  // 13 frequencies for each of t, h, w; 2 dimensions pass (spec §4.5)
struct VisionHeads {
  int heads = 0;
  float scale = 0;  // 80^-0.5
};

// Maxima that workspaces are planned for.
struct Limits {
  std::int64_t tokens = 0;     // T
  std::int64_t sequences = 0;  // B
  std::int64_t context = 0;    // longest context
  std::int64_t logits_rows = 0;
  std::int64_t hidden = 0;
  std::int64_t widest_linear = 0;  // the largest row count of one packed projection
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t intermediate = 0;  // the widest of routed, shared and dense
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t topk_blocks = 0;     // 0: no layer chooses blocks
  std::int64_t scaled_columns = 0;  // the longest row of a weight with scales (mxfp8, mxfp4, nvfp4)
  std::int64_t vocab = 0;
  std::int64_t feature_rows = 0;  // rows of pictures' features in a batch
  // Of the vision operations; 0 where none runs.
  std::int64_t vision_rows = 0;     // rows of one call
  std::int64_t vision_columns = 0;  // the widest input of a linear
  std::int64_t vision_inner = 0;    // the widest middle of gelu_mlp
  std::int64_t vision_segment = 0;  // the longest segment
  std::int64_t vision_hidden = 0;   // of layer_norm
};

// How one row of logits becomes a token. Order: repetition, presence and frequency penalties, bias, mask,
// temperature, top-k, top-p, min-p, draw. temperature 0 takes the largest logit, ties to the lower id. All of it lies in
// the host's memory.
struct SamplingRow {
  float temperature = 1;
  int top_k = 0;  // 0 = all
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;  // over prompt and output ids
  float presence_penalty = 0;    // over output ids
  float frequency_penalty = 0;   // over output ids
  std::uint64_t seed = 0;
  std::uint32_t sample = 0;   // which of n samples
  std::int64_t position = 0;  // of the token being drawn; the draw is a function of (seed, sample, position)
  std::span<const std::int32_t> prompt_ids, output_ids;
  struct Bias {
    std::int32_t id;
    float value;
  };
  std::span<const Bias> logit_bias;
  std::span<const std::uint32_t> allowed;  // bit id%32 of word id/32; empty = all (grammars, ids without a token)
  bool keep_raw = false;                   // raw_logits() has the row as it was
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;    // "scalar", "cpu", "cuda"
  virtual std::string description() const = 0;  // for the start-up line: "cpu (AVX2, 2 threads)"
  virtual DType activation_dtype() const = 0;

  // Memory. Where has_host_memory(), operands are ordinary memory of this process and a call returns with its results.
  virtual bool has_host_memory() const = 0;
  // 256-byte aligned (a page on the host). Content is undefined. Errors: there is not that much; the line says what was
  // asked and what is free.
  virtual Memory allocate(std::int64_t bytes) = 0;
  virtual MemoryState memory_state() const = 0;
  // Behind the operations called so far. `from` may be changed once the call returns.
  virtual void upload(std::byte* to, std::span<const std::byte> from) = 0;
  // Many and large ones, not ordered with operations; returns when all have arrived. `progress` (may be null) gets bytes
  // done so far, from the calling thread.
  virtual void upload(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress) = 0;
  // After all operations called so far; waits.
  virtual void download(std::span<std::byte> to, const std::byte* from) = 0;
  virtual void synchronize() = 0;
  // Whether all operations called so far have ended, without waiting.
  virtual bool idle() const { return true; }
  // Bytes made where they lie, the same by every backend: weights at true sizes that nobody could store.
  virtual void fill_random(std::span<std::byte> to, const RandomFill& fill) = 0;

  // A pass: the operations between begin_pass and end_pass. Passes of the same key, which is not 0, have the same
  // operands but for the content of memory (same addresses, shapes and arguments) as long as the workspace stays bound,
  // so that a backend may record one and play it again. True: it has just been played, and the caller leaves its
  // operations out. end_pass follows in either case; drop_pass where an operation between them has failed.
  virtual bool begin_pass(std::uint64_t key) = 0;
  virtual void end_pass() = 0;
  virtual void drop_pass() = 0;

  // Time by operation (m3 bench --profile): begin_marks notes the time on the device, and so does mark behind the
  // operations called so far; take_marks waits, and returns the seconds from each to the next. False: the backend notes
  // nothing, and whoever measures waits and reads the clock.
  virtual bool begin_marks() { return false; }
  virtual void mark() {}
  virtual std::vector<double> take_marks() { return {}; }

  // Why operations within `limits` cannot run here, however much memory there is: "KEY is N and BACKEND takes at most M".
  // Empty: they can. Asked while a model loads (check_limits), so that no step fails of its sizes.
  virtual std::string refusal(const Limits& limits) const {
    static_cast<void>(limits);
    return {};
  }
  virtual std::int64_t workspace_bytes(const Limits& limits) const = 0;
  // The workspace stays bound until the next call; it is at least workspace_bytes(limits) long, 64-byte aligned.
  virtual void bind_workspace(std::span<std::byte> workspace, const Limits& limits) = 0;

  // residual [T, H] <- rows of the table, or of batch.features; `previous` holds the step before's sampled ids.
  virtual void embed(const Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
                     const Tensor& residual) = 0;

  // table [T, rotary_dim] f32: cos then sin of position · inv_freq, each rotary_dim/2 wide, times
  // `attention_factor` (YaRN; else 1). The product is fp32 (spec §3.5).
  virtual void rotary_table(const Batch& batch, std::span<const float> inv_freq, float attention_factor,
                            const Tensor& table) = 0;

  // residual <- round(residual + delta), reduced over `communicator` where given; normed <- RMSNorm of the rounded
  // sum. delta empty: norm only; normed empty: sum only. (spec §3.2)
  virtual void add_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm, const Tensor& normed,
                        Communicator* communicator) = 0;

  // out [T, Σ rows] <- x · Wᵀ for several W concatenated by rows, each in its own format; rounded once.
  virtual void linear(const Tensor& x, std::span<const WeightMatrix> weights, const Tensor& out) = 0;

  // packed [T, (Hq + 2·Hkv + Hi)·128 + (Hi ? 128 : 0)] = q | k | v | index_q | index_k -> per-head norms and rotary
  // in fp32, one rounding; writes K, V and index-K into pages; q [T, Hq·128], index_q [T, Hi·128]. (spec §3.4-3.6)
  virtual void qkv_finish(const Batch& batch, const QkvFinish& args, const Tensor& packed, const Tensor& table,
                          const LayerPages& pages, const Tensor& q, const Tensor& index_q) = 0;

  // block_ids [T, index_heads, topk]: ascending, -1 padded at the end; score = max over visible positions of the
  // fp32 dot product, ties to the lower id; forced blocks inside the topk. With fp8 index-K index_q is cast to e4m3
  // too. NaN scores count as the lowest. (spec §3.8)
  virtual void select_blocks(const Batch& batch, const SelectBlocks& args, const Tensor& index_q,
                             const LayerPages& pages, std::int32_t* block_ids) = 0;

  // out [T, Hq·128]; causal by absolute position. (spec §3.7)
  virtual void attend_dense(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                            const Tensor& out) = 0;
  // Over the tokens of the chosen blocks at positions <= the query's. (spec §3.9)
  virtual void attend_sparse(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                             const std::int32_t* block_ids, const Tensor& out) = 0;

  // fp32 throughout: sigmoid, choice by p + bias (ties to the lower id), weights p / Σp of the chosen. (spec §3.11)
  virtual void route(const Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
                     const Routing& routing) = 0;

  // out [T, H] <- Σ over chosen experts in [first, first + experts.size()) of scaling · weight · expert(hidden)
  // (+ shared(hidden) where given), summed in fp32 in ascending expert order, rounded once. (spec §3.12-3.13)
  virtual void experts(const Tensor& hidden, const Routing& routing, int first, std::span<const MlpWeights> experts,
                       const MlpWeights* shared, float routed_scaling_factor, const Activation& activation,
                       const Tensor& out) = 0;

  virtual void mlp(const Tensor& hidden, const MlpWeights& weights, const Activation& activation,
                   const Tensor& out) = 0;

  // logits [R, vocab] f32 of the rows `row_ids` of hidden. (spec §3.14)
  virtual void logits(const Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
                      const Tensor& logits) = 0;

  // One token a row of logits [R, vocab] f32, which it may overwrite. Begun here; what the rows' spans refer to may be
  // changed once the call returns. Not more than one at a time.
  virtual void begin_sample(const Tensor& logits, std::span<const SamplingRow> rows) = 0;
  // Waits for the draw. ids [R] <- the tokens; -1 where no id has a finite logit after masks. finite [R] (or empty: not
  // asked) <- 1 where all raw logits of the row were finite, else 0. Both in the host's memory.
  virtual void end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) = 0;
  // Row `row` [vocab] of the draw that ended last, as it was before, where keep_raw was set; in the host's memory, until the
  // next draw begins. A device brings all of them up at once, and nobody waits but for the draw.
  virtual std::span<const float> raw_logits(std::int64_t row) const = 0;
  // The ids [R] of the draw begun last, in the backend's memory and in order with its operations: what `previous` of the
  // next step takes. Stays at one address while the workspace is bound.
  virtual const std::int32_t* sampled_ids() const = 0;
  void sample(const Tensor& logits, std::span<const SamplingRow> rows, std::span<std::int32_t> ids,
              std::span<std::uint8_t> finite = {}) {
    begin_sample(logits, rows);
    end_sample(ids, finite);
  }

  // The vision tower (spec §4). Row p of every [P, ...] tensor is patch p, in the order of spec §4.3.

  // out [P, W] <- pixels [P, C·T·h·w] f32 · Wᵀ; pixels and weight as they are stored, rounded once. (spec §4.4)
  virtual void patch_embed(const Tensor& pixels, const WeightMatrix& weight, const Tensor& out) = 0;

  // table [P, 2·39] f32: cos, then sin, of t·f | h·f | w·f; positions [P, 3] = t (inside the segment), h, w, and inv_freq
  // [13], in the host's memory. Products, cos and sin in fp32. (spec §4.5)
  virtual void vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                                   const Tensor& table) = 0;

  // residual <- round(residual + delta); normed <- round((x - mean) / sqrt(variance + eps) · w + b) of the rounded sum.
  // delta empty: norm only; normed empty: sum only.
  virtual void layer_norm(const Tensor& residual, const Tensor& delta, const LayerNormWeight& norm,
                          const Tensor& normed) = 0;

  // out [P, Σ rows] <- x · Wᵀ + bias for several W concatenated by rows, bias [Σ rows] likewise; rounded once.
  virtual void linear_bias(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                           const Tensor& out) = 0;

  // packed [P, 3·heads·80] = q | k | v: rotates q and k in place in pairs (i, i + 39) in fp32, one rounding. (spec §4.5)
  virtual void vision_qkv_finish(const VisionHeads& args, const Tensor& packed, const Tensor& table) = 0;

  // out [R, heads·80] <- attention of rows first_row ... first_row + R - 1 of packed [P, 3·heads·80]: softmax over all
  // rows of the row's own segment. Segment s is rows segment_begin[s] ... segment_begin[s + 1] - 1 (the host's
  // memory). (spec §4.6)
  virtual void attend_segments(const VisionHeads& args, const Tensor& packed,
                               std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                               const Tensor& out) = 0;

  // out [P, out] <- fc2(gelu(fc1(hidden))), each linear with its bias; fc1's output rounded, GELU in fp32, rounded.
  // Projector and merge are two of these: four consecutive rows of the first's output are one of the second's input.
  // (spec §4.4, §4.7)
  virtual void gelu_mlp(const Tensor& hidden, const GeluMlpWeights& weights, const Tensor& out) = 0;

  // Page `from[i]` of a part -> page `to[i]`; both arrays (the host's memory) of the same length, no page in both. Forks
  // use it.
  virtual void copy_pages(const PagePart& part, std::span<const std::int32_t> from,
                          std::span<const std::int32_t> to) = 0;
};

// inv_freq[i] = 1 / theta^(2i/rotary_dim) in fp32 as the reference forms it (addenda §13 "RoPE").
void plain_inverse_frequencies(double theta, std::span<float> inv_freq);

}  // namespace m3::ops
