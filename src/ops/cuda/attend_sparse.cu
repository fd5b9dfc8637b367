#include <algorithm>

#include "src/ops/cuda/attend.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// Four slots a block of threads, one a warp.
template <bool Fp8>
__global__ void __launch_bounds__(128) attend_sparse_partial_sm80(const __grid_constant__ AttendArgs args) {
  wait_for_previous();
  __shared__ float shared[attend_warps][group_rows][head_dim];
  __shared__ float marks[2][attend_warps][group_rows];
  const int token = args.first_token + static_cast<int>(blockIdx.z);
  const int tile = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.x);
  const int kv_head = tile / row_tiles(args.query_heads, args.kv_heads);
  const int sequence = live_sequence(args.batch, token);
  if (sequence < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int slot = split * attend_warps + static_cast<int>(threadIdx.x) / warp_size;
  SoftmaxState state;
  int block = -1;
  if (slot < args.topk) block = args.block_ids[(std::int64_t{token} * args.kv_heads + kv_head) * args.topk + slot];
  const int page = block >= 0 ? kv_page(args.batch, sequence, block) : -1;
  const int visible = min(page_tokens, args.batch.positions[token] + 1 - block * page_tokens);
  if (page >= 0 && visible > 0) {
    std::uint32_t q[8][4];
    load_tile_queries<Fp8>(args, token, tile, lane, q);
    constexpr int element_bytes = CacheRow<Fp8>::element_bytes;
    const std::byte* k = page_run(args.k, page, kv_head, element_bytes);
    const std::byte* v = page_run(args.v, page, kv_head, element_bytes);
    for (int key = 0; key < visible; key += 64) {
      const int first[2] = {0, 0};
      const int last[2] = {visible - key, visible - key};
      const std::int64_t offset = std::int64_t{key} * head_dim * element_bytes;
      attend_chunk<Fp8>(q, k + offset, v + offset, first, last, min(64, visible - key), args.scale, lane, state);
    }
  }
  const std::int64_t tiles = gridDim.y;
  write_partial<Fp8>(state, shared, marks, args.partials[(blockIdx.z * tiles + blockIdx.y) * args.splits + blockIdx.x]);
}

__global__ void __launch_bounds__(128) attend_sparse_merge_sm80(const __grid_constant__ AttendArgs args) {
  wait_for_previous();
  const int token = args.first_token + static_cast<int>(blockIdx.y);
  const int sequence = live_sequence(args.batch, token);
  if (sequence < 0 || kv_page(args.batch, sequence, args.batch.positions[token] / page_tokens) < 0) return;
  const std::int64_t at = std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  merge_partials(args, token, static_cast<int>(blockIdx.x), args.partials + at * args.splits, args.splits);
}

}  // namespace

cudaError_t launch_attend_sparse(const AttendCall& call, cudaStream_t stream) {
  AttendArgs args{call.batch,
                  call.q,
                  call.q_stride,
                  call.pages.k,
                  call.pages.v,
                  0,
                  0,
                  call.args.query_heads,
                  call.args.kv_heads,
                  0,
                  call.block_ids,
                  call.args.topk,
                  0,
                  0,
                  nullptr,
                  call.out,
                  call.out_stride};
  const bool fp8 = call.pages.k.dtype == DType::f8_e4m3;
  args.scale = call.args.scale * (fp8 ? call.pages.k_scale : 1.0f) * log2_e;
  args.v_scale = fp8 ? call.pages.v_scale : 1.0f;
  args.splits = (args.topk + attend_warps - 1) / attend_warps;
  args.partials = static_cast<Partial*>(call.workspace);
  const int tiles = args.kv_heads * row_tiles(args.query_heads, args.kv_heads);
  const std::int64_t token_bytes = std::int64_t{tiles} * args.splits * static_cast<std::int64_t>(sizeof(Partial));
  const auto most = std::min<std::int64_t>(call.workspace_bytes / token_bytes, 32768);
  if (most < 1) return cudaErrorInvalidValue;
  for (int first = 0; first < args.batch.tokens; first += static_cast<int>(most)) {
    const auto count = static_cast<unsigned>(std::min<std::int64_t>(most, args.batch.tokens - first));
    args.first_token = first;
    const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(tiles), count);
    if (fp8) {
      launch(attend_sparse_partial_sm80<true>, grid, 128, 0, stream, args);
    } else {
      launch(attend_sparse_partial_sm80<false>, grid, 128, 0, stream, args);
    }
    launch(attend_sparse_merge_sm80, dim3(static_cast<unsigned>(tiles), count), 128, 0, stream, args);
  }
  return cudaGetLastError();
}

}  // namespace m3::ops::cuda
