#include "src/ops/cuda/batch.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// A warp a head: lane l holds dimensions l, l + 32, l + 64 and l + 96.
struct Head {
  float x[4];
};

__device__ Head load_head(const std::uint16_t* from, int lane) {
  Head head;
  for (int i = 0; i < 4; ++i) head.x[i] = widen_bf16(from[i * 32 + lane]);
  return head;
}

// Norm over the 128 elements, then rotation of the first `rotary_dim` in pairs (i, i + half).
__device__ void norm_and_rotate(const QkvFinishArgs& args, const float* weight, const float* table, int lane,
                                Head& head) {
  if (weight != nullptr) {
    const float squares =
        warp_sum(head.x[0] * head.x[0] + head.x[1] * head.x[1] + head.x[2] * head.x[2] + head.x[3] * head.x[3]);
    const float r = inverse_root(squares / head_dim + args.eps);
    for (int i = 0; i < 4; ++i) {
      const float w = weight[i * 32 + lane];
      head.x[i] = (head.x[i] * r) * (args.gemma ? 1.0f + w : w);
    }
  }
  const int half = args.rotary_dim / 2;
  if (half % 32 == 0) {  // pairs lie in one lane
    const int step = half / 32;
    for (int i = 0; i < 2; ++i) {
      if (i >= step) break;
      const int at = i * 32 + lane;
      const float a = head.x[i];
      const float b = step == 1 ? head.x[1] : head.x[i + 2];
      const float rotated_a = a * table[at] - b * table[half + at];
      const float rotated_b = b * table[at] + a * table[half + at];
      head.x[i] = rotated_a;
      if (step == 1) {
        head.x[1] = rotated_b;
      } else {
        head.x[i + 2] = rotated_b;
      }
    }
    return;
  }
  // Any other width: the partner's value is fetched from its lane.
  float rotated[4];
  for (int i = 0; i < 4; ++i) {
    const int at = i * 32 + lane;
    const bool first = at < half;
    const int partner = first ? at + half : at - half;
    float other = 0;
    for (int source = 0; source < 4; ++source) {
      const float value = __shfl_sync(all_lanes, head.x[source], partner & 31);
      if (source == (partner >> 5)) other = value;
    }
    rotated[i] = head.x[i];
    if (first) rotated[i] = head.x[i] * table[at] - other * table[half + at];
    if (!first && at < 2 * half) rotated[i] = head.x[i] * table[at - half] + other * table[at];
  }
  for (int i = 0; i < 4; ++i) head.x[i] = rotated[i];
}

__device__ void store_row(std::uint16_t* to, int lane, const Head& head) {
  for (int i = 0; i < 4; ++i) to[i * 32 + lane] = narrow_bf16(head.x[i]);
}

// fp8 is cast from the fp32 row at once.
__device__ void store_cache(const PagePart& part, int page, int head, int slot, float scale, int lane,
                            const Head& row) {
  if (part.dtype == DType::f8_e4m3) {
    auto* to = reinterpret_cast<std::uint8_t*>(page_run(part, page, head, 1)) + slot * head_dim;
    for (int i = 0; i < 4; ++i) to[i * 32 + lane] = narrow_e4m3(row.x[i] / scale);
  } else {
    store_row(reinterpret_cast<std::uint16_t*>(page_run(part, page, head, 2)) + slot * head_dim, lane, row);
  }
}

__global__ void __launch_bounds__(128) qkv_finish_any_sm80(const __grid_constant__ QkvFinishArgs args, int heads) {
  wait_for_previous();
  const int token = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  int head = static_cast<int>(blockIdx.x) * 4 + static_cast<int>(threadIdx.x) / warp_size;
  if (head >= heads) return;
  const int sequence = live_sequence(args.batch, token);
  if (sequence < 0) return;
  const int block = args.batch.positions[token] / page_tokens;
  const int slot = args.batch.positions[token] % page_tokens;
  const int page = kv_page(args.batch, sequence, block);
  if (page < 0) return;
  Head row = load_head(args.packed + token * args.packed_stride + head * head_dim, lane);
  const float* table = args.table + token * args.table_stride;
  if (head < args.query_heads) {
    norm_and_rotate(args, args.q_norm, table, lane, row);
    store_row(args.q + token * args.q_stride + head * head_dim, lane, row);
    return;
  }
  head -= args.query_heads;
  if (head < args.kv_heads) {
    norm_and_rotate(args, args.k_norm, table, lane, row);
    store_cache(args.pages.k, page, head, slot, args.pages.k_scale, lane, row);
    return;
  }
  head -= args.kv_heads;
  if (head < args.kv_heads) {
    store_cache(args.pages.v, page, head, slot, args.pages.v_scale, lane, row);
    return;
  }
  head -= args.kv_heads;
  if (head < args.index_heads) {
    norm_and_rotate(args, args.index_q_norm, table, lane, row);
    store_row(args.index_q + token * args.index_q_stride + head * head_dim, lane, row);
    return;
  }
  const int key_page = index_page(args.batch, sequence, block);
  if (key_page < 0) return;
  norm_and_rotate(args, args.index_k_norm, table, lane, row);
  store_cache(args.pages.index_k, key_page, 0, slot, 1.0f, lane, row);
}

}  // namespace

cudaError_t launch_qkv_finish(const QkvFinishArgs& args, cudaStream_t stream) {
  if (args.batch.tokens == 0) return cudaSuccess;
  const int heads = args.query_heads + 2 * args.kv_heads + args.index_heads + (args.index_heads > 0 ? 1 : 0);
  const dim3 grid(static_cast<unsigned>((heads + 3) / 4), static_cast<unsigned>(args.batch.tokens));
  return launch(qkv_finish_any_sm80, grid, 128, 0, stream, args, heads);
}

}  // namespace m3::ops::cuda
