#include <algorithm>

#include "src/ops/cuda/attend.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int warp_pages = 2;
constexpr int split_pages = attend_warps * warp_pages;

// Eight pages a block of threads, two neighbours a warp.
template <bool Fp8>
__global__ void __launch_bounds__(128) attend_dense_partial_sm80(const __grid_constant__ AttendArgs args) {
  wait_for_previous();
  __shared__ float shared[attend_warps][group_rows][head_dim];
  __shared__ float marks[2][attend_warps][group_rows];
  const int token = args.first_token + static_cast<int>(blockIdx.z);
  const int tile = static_cast<int>(blockIdx.y);
  const int kv_head = tile / row_tiles(args.query_heads, args.kv_heads);
  const int sequence = live_sequence(args.batch, token);
  if (sequence < 0) return;
  const int end = args.batch.positions[token] + 1;
  const int begin = args.window > 0 ? max(0, end - args.window) : 0;
  const int first_block = static_cast<int>(blockIdx.x) * split_pages;
  if (first_block * page_tokens >= end || (first_block + split_pages) * page_tokens <= begin) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int own_block = first_block + static_cast<int>(threadIdx.x) / warp_size * warp_pages;
  SoftmaxState state;
  std::uint32_t q[8][4];
  load_tile_queries<Fp8>(args, token, tile, lane, q);
  constexpr int element_bytes = CacheRow<Fp8>::element_bytes;
  for (int block = own_block; block < own_block + warp_pages; ++block) {
    const int visible = min(page_tokens, end - block * page_tokens);
    const int hidden = max(0, begin - block * page_tokens);
    if (visible <= hidden) continue;
    const int page = kv_page(args.batch, sequence, block);
    if (page < 0) continue;
    const std::byte* k = page_run(args.k, page, kv_head, element_bytes);
    const std::byte* v = page_run(args.v, page, kv_head, element_bytes);
    for (int key = hidden / 64 * 64; key < visible; key += 64) {
      const int first[2] = {hidden - key, hidden - key};
      const int last[2] = {visible - key, visible - key};
      const std::int64_t offset = std::int64_t{key} * head_dim * element_bytes;
      attend_chunk<Fp8>(q, k + offset, v + offset, first, last, min(64, visible - key), args.scale, lane, state);
    }
  }
  const std::int64_t tiles = gridDim.y;
  write_partial<Fp8>(state, shared, marks, args.partials[(blockIdx.z * tiles + blockIdx.y) * args.splits + blockIdx.x]);
}

__global__ void __launch_bounds__(128) attend_dense_merge_sm80(const __grid_constant__ AttendArgs args) {
  wait_for_previous();
  const int token = args.first_token + static_cast<int>(blockIdx.y);
  const int sequence = live_sequence(args.batch, token);
  const int position = args.batch.positions[token];
  if (sequence < 0 || kv_page(args.batch, sequence, position / page_tokens) < 0) return;
  const int begin = args.window > 0 ? max(0, position + 1 - args.window) : 0;
  const int first = begin / (split_pages * page_tokens);
  const int splits = position / (split_pages * page_tokens) + 1 - first;
  const std::int64_t at = std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  merge_partials(args, token, static_cast<int>(blockIdx.x), args.partials + at * args.splits + first, splits);
}

std::int64_t token_bytes(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t splits) {
  const std::int64_t tiles = kv_heads * row_tiles(static_cast<int>(query_heads), static_cast<int>(kv_heads));
  return tiles * splits * static_cast<std::int64_t>(sizeof(Partial));
}

std::int64_t dense_splits(std::int64_t pages) { return (pages + split_pages - 1) / split_pages; }

}  // namespace

std::int64_t attend_workspace_bytes(std::int64_t tokens, std::int64_t query_heads, std::int64_t kv_heads,
                                    std::int64_t context, std::int64_t topk) {
  if (kv_heads == 0) return 0;
  constexpr std::int64_t enough = std::int64_t{128} << 20;
  const std::int64_t pages = (context + page_tokens - 1) / page_tokens;
  const std::int64_t sparse = token_bytes(query_heads, kv_heads, topk);
  const std::int64_t dense = token_bytes(query_heads, kv_heads, dense_splits(pages));
  const std::int64_t one = std::max(sparse, dense);
  return std::max(one, std::min(enough, tokens * one));
}

cudaError_t launch_attend_dense(const AttendCall& call, cudaStream_t stream) {
  const bool prompt = call.batch.longest_query >= prompt_tokens;
  if (prompt && attend_dense_takes_sm90(call)) return launch_attend_dense_sm90(call, stream);
  if (attend_decode_takes_sm90(call)) return launch_attend_decode_sm90(call, stream);
  AttendArgs args{call.batch,
                  call.q,
                  call.q_stride,
                  call.pages.k,
                  call.pages.v,
                  0,
                  0,
                  call.args.query_heads,
                  call.args.kv_heads,
                  call.args.window,
                  nullptr,
                  0,
                  0,
                  0,
                  nullptr,
                  call.out,
                  call.out_stride};
  const bool fp8 = call.pages.k.dtype == DType::f8_e4m3;
  args.scale = call.args.scale * (fp8 ? call.pages.k_scale : 1.0f) * log2_e;
  args.v_scale = fp8 ? call.pages.v_scale : 1.0f;
  args.splits = static_cast<int>(dense_splits(args.batch.page_table_stride));
  args.partials = static_cast<Partial*>(call.workspace);
  const int tiles = args.kv_heads * row_tiles(args.query_heads, args.kv_heads);
  const std::int64_t most =
      std::min<std::int64_t>(call.workspace_bytes / token_bytes(args.query_heads, args.kv_heads, args.splits), 32768);
  if (most < 1) return cudaErrorInvalidValue;
  for (int first = 0; first < args.batch.tokens; first += static_cast<int>(most)) {
    const auto count = static_cast<unsigned>(std::min<std::int64_t>(most, args.batch.tokens - first));
    args.first_token = first;
    const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(tiles), count);
    if (fp8) {
      launch(attend_dense_partial_sm80<true>, grid, 128, 0, stream, args);
    } else {
      launch(attend_dense_partial_sm80<false>, grid, 128, 0, stream, args);
    }
    launch(attend_dense_merge_sm80, dim3(static_cast<unsigned>(tiles), count), 128, 0, stream, args);
  }
  return cudaGetLastError();
}

}  // namespace m3::ops::cuda
