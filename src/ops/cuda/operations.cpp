// The text operations: shapes are checked, scratch memory is taken, kernels are queued.
#include <algorithm>

#include "src/base/error.h"
#include "src/ops/cuda/backend.h"
#include "src/ops/cuda/matmul_decode_sm90.h"
#include "src/ops/cuda/matmul_narrow_sm90.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops::cuda {

namespace {

std::uint16_t* halves(const Tensor& tensor) { return reinterpret_cast<std::uint16_t*>(tensor.data); }

void check_pages(const PagePart& part, const char* what) {
  if (part.dtype == DType::bf16 || part.dtype == DType::f8_e4m3) return;
  fail_usage("{} of {}: the CUDA backend keeps bf16 and fp8 (e4m3) caches", what, dtype_name(part.dtype));
}

void check_rotary(int rotary_dim) {
  if (rotary_dim % 2 != 0 || rotary_dim > head_dim) fail_internal("qkv_finish: a rotary width of {}", rotary_dim);
}

}  // namespace

void CudaBackend::embed(const Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
                        const Tensor& residual) {
  check_tensor(residual, DType::bf16, batch.tokens, table.columns, "embed");
  check(launch_embed({batch, table, previous, halves(residual), residual.row_stride}, stream_), "embed");
}

void CudaBackend::rotary_table(const Batch& batch, std::span<const float> inv_freq, float attention_factor,
                               const Tensor& table) {
  const auto half = static_cast<int>(inv_freq.size());
  check_tensor(table, DType::f32, batch.tokens, 2 * half, "rotary_table");
  check(launch_rotary_table(batch, inv_freq.data(), half, attention_factor, reinterpret_cast<float*>(table.data),
                            table.row_stride, stream_),
        "rotary_table");
}

void CudaBackend::add_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm, const Tensor& normed,
                           Communicator* communicator) {
  refuse_communicator(communicator);
  const std::int64_t columns = residual.columns;
  check_tensor(residual, DType::bf16, residual.rows, columns, "add_norm: residual");
  if (!delta.empty()) check_tensor(delta, DType::bf16, residual.rows, columns, "add_norm: delta");
  if (!normed.empty()) {
    check_tensor(normed, DType::bf16, residual.rows, columns, "add_norm: normed");
    if (std::ssize(norm.weight) != columns) {
      fail_internal("add_norm: {} weights for {} columns", norm.weight.size(), columns);
    }
  }
  AddNormArgs args;
  args.rows = static_cast<int>(residual.rows);
  args.columns = static_cast<int>(columns);
  args.residual = halves(residual);
  args.residual_stride = residual.row_stride;
  args.delta = halves(delta);
  args.delta_stride = delta.row_stride;
  args.normed = halves(normed);
  args.normed_stride = normed.row_stride;
  args.weight = norm.weight.data();
  args.eps = norm.eps;
  args.gemma = norm.gemma;
  check(launch_add_norm(args, stream_), "add_norm");
}

std::int64_t CudaBackend::matmul_scratch_bytes(const Limits& limits) const {
  Arena arena;
  const std::int64_t rows = std::max(limits.tokens, limits.logits_rows);
  const std::int64_t columns = std::max({limits.hidden, limits.intermediate, limits.query_heads * head_dim});
  arena.take<std::uint16_t>(rows * columns);  // quantised activations
  arena.take<float>(rows);
  arena.take<float>(limits.tokens * limits.experts);  // route
  arena.take<float>(std::max(k_segments, most_route_segments) *
                    std::min<std::int64_t>(limits.tokens, route_segment_tokens) * limits.experts);
  return arena.used();
}

CudaBackend::Activations CudaBackend::activations_for(bool quantised, const std::uint16_t* x, std::int64_t stride,
                                                      std::int64_t rows, std::int64_t columns, Arena& arena) {
  if (!quantised) return {x, stride, nullptr};
  auto* codes = arena.take<std::uint16_t>(rows * columns);
  auto* scales = arena.take<float>(rows);
  check(launch_quantise_rows(x, stride, static_cast<int>(rows), static_cast<int>(columns), codes, scales, stream_),
        "quantising activations");
  return {codes, columns, scales};
}

// out <- x · Wᵀ (+ bias) for several W; of the rows `row_ids` of x where given.
bool CudaBackend::multiply(const Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                           Store store, const Tensor& out, std::span<const std::int32_t> row_ids, const char* what,
                           Then then) {
  MatmulArgs args;
  args.items = static_cast<std::int32_t>(row_ids.empty() ? x.rows : std::ssize(row_ids));
  args.store = store;
  args.out = out.data;
  args.out_stride = out.row_stride;
  args.bias = bias.data();
  args.fixed_order = deterministic_;
  args.partials = partials_;
  args.counters = counters_;
  std::int64_t first_column = 0;
  for (std::size_t first = 0; first < weights.size();) {
    // Weights that take the same activations go together.
    const WeightMatrix& like = weights[first];
    args.list = row_ids.data();
    args.parts = 0;
    for (; first < weights.size() && args.parts < max_parts; ++first) {
      const WeightMatrix& weight = weights[first];
      if (weight.quantized_activations != like.quantized_activations || weight.columns != like.columns) break;
      args.inline_parts[args.parts++] = part_of(weight, first_column);
      first_column += weight.rows;
    }
    Arena arena = scratch();
    const Activations rows =
        activations_for(like.quantized_activations, halves(x), x.row_stride, x.rows, like.columns, arena);
    args.columns = static_cast<int>(like.columns);
    args.x = rows.data;
    args.x_stride = rows.stride;
    args.token_scales = rows.scales;
    // The products of 9 to 64 rows take no list.
    MatmulArgs gathered = args;
    gathered.list = nullptr;
    if (args.list != nullptr && rows.scales == nullptr && !decode_takes_sm90(args) &&
        (decode_takes_sm90(gathered) || takes_narrow(gathered))) {
      auto* memory = arena.take<std::uint16_t>(std::int64_t{args.items} * args.columns);
      check(launch_gather_rows(args.x, args.x_stride, args.list, args.items, args.columns, memory, stream_), what);
      gathered.x = memory;
      gathered.x_stride = args.columns;
      args = gathered;
    }
    args.gelu = then == Then::gelu && weights.size() == 1 && like.format == WeightFormat::bf16 && takes_wide(args);
    check(matmul(args, stream_), what);
    if (args.gelu) return true;
  }
  return then == Then::nothing;
}

void CudaBackend::linear(const Tensor& x, std::span<const WeightMatrix> weights, const Tensor& out) {
  std::int64_t rows = 0;
  for (const WeightMatrix& weight : weights) {
    check_tensor(x, DType::bf16, x.rows, weight.columns, "linear: x");
    rows += weight.rows;
  }
  check_tensor(out, DType::bf16, x.rows, rows, "linear: out");
  multiply(x, weights, {}, Store::bf16, out, {}, "linear");
}

void CudaBackend::logits(const Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
                         const Tensor& logits) {
  const auto rows = std::ssize(row_ids);
  check_tensor(hidden, DType::bf16, 0, head.columns, "logits: hidden");
  check_tensor(logits, DType::f32, rows, head.rows, "logits");
  if (rows == 0) return;
  multiply(hidden, {&head, 1}, {}, Store::f32, logits, row_ids, "logits");
}

void CudaBackend::qkv_finish(const Batch& batch, const QkvFinish& args, const Tensor& packed, const Tensor& table,
                             const LayerPages& pages, const Tensor& q, const Tensor& index_q) {
  const std::int64_t heads = args.query_heads + 2 * args.kv_heads + args.index_heads + (args.index_heads > 0 ? 1 : 0);
  check_tensor(packed, DType::bf16, batch.tokens, heads * head_dim, "qkv_finish: packed");
  check_tensor(table, DType::f32, batch.tokens, args.rotary_dim, "qkv_finish: table");
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "qkv_finish: q");
  check_rotary(args.rotary_dim);
  check_pages(pages.k, "K");
  check_pages(pages.v, "V");
  if (args.index_heads > 0) {
    check_tensor(index_q, DType::bf16, batch.tokens, args.index_heads * head_dim, "qkv_finish: index_q");
    check_pages(pages.index_k, "index-K");
  }
  QkvFinishArgs launch;
  launch.batch = batch;
  launch.query_heads = args.query_heads;
  launch.kv_heads = args.kv_heads;
  launch.index_heads = args.index_heads;
  launch.rotary_dim = args.rotary_dim;
  launch.eps = args.eps;
  launch.gemma = args.gemma;
  launch.q_norm = args.q_norm.data();
  launch.k_norm = args.k_norm.data();
  launch.index_q_norm = args.index_q_norm.data();
  launch.index_k_norm = args.index_k_norm.data();
  launch.packed = halves(packed);
  launch.packed_stride = packed.row_stride;
  launch.table = reinterpret_cast<const float*>(table.data);
  launch.table_stride = table.row_stride;
  launch.pages = pages;
  launch.q = halves(q);
  launch.q_stride = q.row_stride;
  launch.index_q = halves(index_q);
  launch.index_q_stride = index_q.row_stride;
  check(launch_qkv_finish(launch, stream_), "qkv_finish");
}

// Bounds for launches, where the host does not know them.
static Batch bounded(Batch batch) {
  if (batch.longest_context <= 0 || batch.longest_context > batch.page_table_stride * page_tokens) {
    batch.longest_context = batch.page_table_stride * page_tokens;
  }
  if (batch.longest_query <= 0) batch.longest_query = batch.tokens;
  return batch;
}

void CudaBackend::select_blocks(const Batch& batch, const SelectBlocks& args, const Tensor& index_q,
                                const LayerPages& pages, std::int32_t* block_ids) {
  check_tensor(index_q, DType::bf16, batch.tokens, args.index_heads * head_dim, "select_blocks");
  check_pages(pages.index_k, "index-K");
  if (args.topk > most_topk_blocks) {
    fail_internal("select_blocks: {} blocks a token, at most {} are taken", args.topk, most_topk_blocks);
  }
  SelectArgs launch;
  launch.batch = bounded(batch);
  launch.heads = args.index_heads;
  launch.topk = args.topk;
  launch.init_blocks = args.init_blocks;
  launch.local_blocks = args.local_blocks;
  // A pass with dropped blocks is never played again (m3 trace), so that the list may be uploaded here.
  if (!args.dropped.empty()) launch.dropped = stage(args.dropped, dropped_list_);
  launch.dropped_count = static_cast<int>(args.dropped.size());
  launch.deterministic = deterministic_;
  launch.index_q = halves(index_q);
  launch.stride = index_q.row_stride;
  launch.index_k = pages.index_k;
  launch.block_ids = block_ids;
  launch.scores = reinterpret_cast<float*>(scratch_.data());
  launch.score_floats = std::ssize(scratch_) / 4;
  launch.counters = counters_;
  launch.counters_size = counters_size_;
  check(launch_select_blocks(launch, stream_), "select_blocks");
}

void CudaBackend::attend_dense(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                               const Tensor& out) {
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_dense: q");
  check_tensor(out, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_dense: out");
  check_pages(pages.k, "K");
  check(launch_attend_dense({bounded(batch), args, halves(q), q.row_stride, pages, nullptr, halves(out), out.row_stride,
                             scratch_.data(), std::ssize(scratch_), counters_, counters_size_, deterministic_},
                            stream_),
        "attend_dense");
}

void CudaBackend::attend_sparse(const Batch& batch, const Attention& args, const Tensor& q, const LayerPages& pages,
                                const std::int32_t* block_ids, const Tensor& out) {
  check_tensor(q, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_sparse: q");
  check_tensor(out, DType::bf16, batch.tokens, args.query_heads * head_dim, "attend_sparse: out");
  check_pages(pages.k, "K");
  check(launch_attend_sparse(
            {bounded(batch), args, halves(q), q.row_stride, pages, block_ids, halves(out), out.row_stride,
             scratch_.data(), std::ssize(scratch_), counters_, counters_size_, deterministic_},
            stream_),
        "attend_sparse");
}

void CudaBackend::route(const Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
                        const Routing& routing) {
  const std::int64_t experts = gate.rows;
  check_tensor(hidden, DType::bf16, hidden.rows, gate.columns, "route");
  if (!bias.empty() && std::ssize(bias) != experts) {
    fail_internal("route: {} biases for {} experts", bias.size(), experts);
  }
  // Behind what a product may take of the scratch memory itself.
  Arena arena = scratch();
  arena.take<std::uint16_t>(hidden.rows * gate.columns);
  arena.take<float>(hidden.rows);
  auto* logits = arena.take<float>(hidden.rows * experts);
  const auto tokens = static_cast<int>(hidden.rows);
  int segments = 1;
  const int hopper_segments = deterministic_ || gate.quantized_activations || experts > 128
                                  ? 0
                                  : route_segments_sm90(gate, halves(hidden), hidden.row_stride, tokens);
  if (hopper_segments > 0) {
    segments = hopper_segments;
    logits = arena.take<float>(segments * hidden.rows * experts);
    check(launch_route_sums_sm90(gate, halves(hidden), hidden.row_stride, tokens, logits, stream_), "route");
  } else if (!gate.quantized_activations && route_takes_segments(gate, halves(hidden), hidden.row_stride, tokens)) {
    segments = k_segments;
    logits = arena.take<float>(k_segments * hidden.rows * experts);
    check(launch_route_segments(gate, halves(hidden), hidden.row_stride, tokens, logits, stream_), "route");
  } else {
    const Tensor out{DType::f32, hidden.rows, experts, experts, reinterpret_cast<std::byte*>(logits)};
    multiply(hidden, {&gate, 1}, {}, Store::f32, out, {}, "route");
  }
  check(launch_choose_experts(logits, segments, gate.tensor_scale, tokens, static_cast<int>(experts), bias.data(),
                              routing, stream_),
        "route");
}

}  // namespace m3::ops::cuda
