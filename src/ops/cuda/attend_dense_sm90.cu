// Dense attention of prompts on Hopper: a block of threads takes the 16 query heads of one KV head of a few consecutive
// tokens of a sequence through all their keys.
#include <algorithm>

#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/attend_tiles_sm90.cuh"
#include "src/ops/cuda/batch.cuh"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

inline constexpr int dense_group_heads = 16;  // query heads of a KV head; the only shape taken

struct DenseArgs {
  Batch batch;
  const std::uint16_t* q;
  std::int64_t q_stride;
  PagePart k, v;
  float scale, v_scale;
  int kv_heads, window;
  int tile_tokens;     // at most, of a block of threads
  std::int32_t* plan;  // count, then the first token of each tile
  std::uint16_t* out;
  std::int64_t out_stride;
};

template <bool Fp8>
struct DenseWork {
  using Args = DenseArgs;
  static constexpr bool fp8 = Fp8;
  static constexpr int pieces = 16, query_pieces = 16, columns = head_dim;
  static constexpr int element_bytes = Fp8 ? 1 : 2;

  const Args& args;
  int kv_head = 0, first_token = 0, count = 0, sequence = -1;
  int first_key = 0, end_key = 0;

  // The longest contexts first.
  __device__ explicit DenseWork(const Args& a) : args(a) {
    const int tile = args.plan[0] - 1 - static_cast<int>(blockIdx.x) / args.kv_heads;
    if (tile < 0) return;
    kv_head = static_cast<int>(blockIdx.x) % args.kv_heads;
    first_token = args.plan[1 + tile];
    sequence = args.batch.sequence_of_token[first_token];
    first_key = args.batch.page_table_stride * page_tokens;
    for (; count < args.tile_tokens && first_token + count < args.batch.tokens; ++count) {
      const int token = first_token + count;
      if (args.batch.sequence_of_token[token] != sequence) break;
      if (live_sequence(args.batch, token) < 0) continue;
      const int end = args.batch.positions[token] + 1;
      end_key = max(end_key, end);
      first_key = min(first_key, args.window > 0 ? max(0, end - args.window) : 0);
    }
  }
  __device__ bool empty() const { return end_key == 0; }
  __device__ int first_tile() const { return first_key / tile_keys; }
  __device__ int end_tile() const { return (end_key + tile_keys - 1) / tile_keys; }
  __device__ int token_of(int row) const {
    if (row / dense_group_heads >= count) return -1;
    const int token = first_token + row / dense_group_heads;
    if (live_sequence(args.batch, token) < 0) return -1;
    return kv_page(args.batch, sequence, args.batch.positions[token] / page_tokens) < 0 ? -1 : token;
  }
  __device__ std::int64_t column_of(int row) const {
    return (std::int64_t{kv_head} * dense_group_heads + row % dense_group_heads) * head_dim;
  }
  __device__ const std::uint16_t* any_query() const { return args.q; }
  __device__ const std::uint16_t* query(int row) const {
    const int token = token_of(row);
    return token < 0 ? nullptr : args.q + token * args.q_stride + column_of(row);
  }
  __device__ KeyRows run(bool values, int tile) const {
    const int page = kv_page(args.batch, sequence, tile);
    if (page < 0) return {nullptr, head_dim * element_bytes, 0};
    return {page_run(values ? args.v : args.k, page, kv_head, element_bytes), head_dim * element_bytes,
            args.batch.context_lengths[sequence] - tile * page_tokens};
  }
  __device__ Span seen(int row) const {
    const int token = token_of(row);
    if (token < 0) return {0, 0};
    const int end = args.batch.positions[token] + 1;
    return {args.window > 0 ? max(0, end - args.window) : 0, end};
  }
  __device__ float scale() const { return args.scale; }
  __device__ float value_scale() const { return args.v_scale; }
  __device__ std::uint16_t* out(int row) const {
    const int token = token_of(row);
    return token < 0 ? nullptr : args.out + token * args.out_stride + column_of(row);
  }
};

namespace {

constexpr int groups = 3;      // warpgroups of a block of threads
constexpr int fp8_groups = 2;  // whose producers need registers to widen
constexpr int buffers = 4;
constexpr int plan_threads = 1024;

// Cuts each sequence's run of tokens into tiles. One block of threads.
__global__ void __launch_bounds__(plan_threads) attend_dense_plan_sm90(const __grid_constant__ DenseArgs args) {
  wait_for_previous();
  constexpr int warps = plan_threads / warp_size;
  __shared__ int starts[warps], counts[warps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  int run_begin = 0, tiles = 0;  // before these tokens
  for (int first = 0; first < args.batch.tokens; first += plan_threads) {
    const int token = first + thread;
    const bool inside = token < args.batch.tokens;
    const int sequence = inside ? args.batch.sequence_of_token[token] : -1;
    const bool begins = inside && (token == 0 || args.batch.sequence_of_token[token - 1] != sequence);
    int begin = begins ? token : 0;
    for (int step = 1; step < warp_size; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, begin, step);
      if (lane >= step) begin = max(begin, other);
    }
    if (lane == warp_size - 1) starts[warp] = begin;
    __syncthreads();
    int last_begin = run_begin;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) begin = max(begin, starts[w]);
      last_begin = max(last_begin, starts[w]);
    }
    begin = max(begin, run_begin);
    const bool tile = inside && sequence >= 0 && (token - begin) % args.tile_tokens == 0;
    const unsigned votes = __ballot_sync(all_lanes, tile);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int at = tiles + __popc(votes & ((1u << lane) - 1u));
    for (int w = 0; w < warps; ++w) {
      if (w < warp) at += counts[w];
      tiles += counts[w];
    }
    if (tile) args.plan[1 + at] = token;
    run_begin = last_begin;
    __syncthreads();
  }
  if (thread == 0) args.plan[0] = tiles;
}

template <bool Fp8, int Groups, int Buffers>
cudaError_t launch_tiles(DenseArgs& args, cudaStream_t stream) {
  args.tile_tokens = Groups * group_queries / dense_group_heads;
  cudaError_t error = launch(attend_dense_plan_sm90, dim3(1), plan_threads, 0, stream, args);
  if (error != cudaSuccess) return error;
  constexpr int bytes = tile_memory_bytes<Groups, Buffers>;
  static int allowed = 0;
  const auto kernel = attend_tiles_sm90<DenseWork<Fp8>, Groups, Buffers>;
  error = allow_shared(kernel, bytes, allowed);
  if (error != cudaSuccess) return error;
  // Each sequence may end with a tile that is not full.
  const std::int64_t tiles =
      std::min<std::int64_t>(args.batch.tokens, args.batch.tokens / args.tile_tokens + args.batch.sequences + 1);
  return launch(kernel, dim3(static_cast<unsigned>(tiles * args.kv_heads)), (Groups + 1) * 128, bytes, stream, args);
}

}  // namespace

std::int64_t attend_dense_sm90_bytes(std::int64_t tokens) { return (tokens + 1) * 4 + 256; }

bool attend_dense_takes_sm90(const AttendCall& call) {
  return runs_on_hopper() && !call.deterministic && call.args.query_heads == dense_group_heads * call.args.kv_heads &&
         call.q_stride % 8 == 0 && call.out_stride % 2 == 0 &&
         call.workspace_bytes >= attend_dense_sm90_bytes(call.batch.tokens);
}

cudaError_t launch_attend_dense_sm90(const AttendCall& call, cudaStream_t stream) {
  const bool fp8 = call.pages.k.dtype == DType::f8_e4m3;
  DenseArgs args = {};
  args.batch = call.batch;
  args.q = call.q;
  args.q_stride = call.q_stride;
  args.k = call.pages.k;
  args.v = call.pages.v;
  args.scale = call.args.scale * (fp8 ? call.pages.k_scale : 1.0f) * log2_e;
  args.v_scale = fp8 ? call.pages.v_scale : 1.0f;
  args.kv_heads = call.args.kv_heads;
  args.window = call.args.window;
  args.plan = static_cast<std::int32_t*>(call.workspace);
  args.out = call.out;
  args.out_stride = call.out_stride;
  return fp8 ? launch_tiles<true, fp8_groups, buffers>(args, stream)
             : launch_tiles<false, groups, buffers>(args, stream);
}

}  // namespace m3::ops::cuda
