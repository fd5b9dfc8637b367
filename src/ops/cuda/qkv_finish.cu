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

// The same where four dimensions lie together everywhere: a warp takes several heads of a token, lane l dimensions 4 l …
// 4 l + 3, and reads the next head while it works on one.
constexpr int finish_warps = 4;

__global__ void __launch_bounds__(finish_warps* warp_size)
    qkv_finish_heads_sm80(const __grid_constant__ QkvFinishArgs args, int heads, int blocks_a_token) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int token = static_cast<int>(blockIdx.x) / blocks_a_token;
  const int first =
      static_cast<int>(blockIdx.x) % blocks_a_token * finish_warps + static_cast<int>(threadIdx.x) / warp_size;
  const int step = blocks_a_token * finish_warps;
  const int first_key = args.query_heads, first_value = first_key + args.kv_heads,
            first_index = first_value + args.kv_heads, index_key = first_index + args.index_heads;
  const auto weights_of = [&](int head) {
    return head < first_key     ? args.q_norm
           : head < first_value ? args.k_norm
           : head < first_index ? nullptr
           : head < index_key   ? args.index_q_norm
                                : args.index_k_norm;
  };
  float weight[4];
  const float* weights = first < heads ? weights_of(first) : nullptr;
  for (int i = 0; i < 4; ++i) weight[i] = weights != nullptr ? weights[lane * 4 + i] : 0.0f;
  // The batch stands since before the pass.
  const int sequence = live_sequence(args.batch, token);
  const int position = sequence >= 0 ? args.batch.positions[token] : 0;
  const int page = sequence >= 0 ? kv_page(args.batch, sequence, position / page_tokens) : -1;
  const int key_page = sequence >= 0 ? index_page(args.batch, sequence, position / page_tokens) : -1;
  wait_for_previous();
  if (page < 0) return;
  const int slot = position % page_tokens;
  const int half = args.rotary_dim / 2;
  const int at = lane * 4;
  const bool turns = at < args.rotary_dim, low = at < half;
  const int partner = low ? lane + half / 4 : lane - half / 4;
  float4 cosine = {1, 1, 1, 1}, sine = {0, 0, 0, 0};
  if (turns) {
    const float* table = args.table + token * args.table_stride + (low ? at : at - half);
    cosine = *reinterpret_cast<const float4*>(table);
    sine = *reinterpret_cast<const float4*>(table + half);
  }
  if (low) sine = float4{-sine.x, -sine.y, -sine.z, -sine.w};
  const std::uint16_t* packed = args.packed + token * args.packed_stride + at;
  uint2 next = {0, 0};
  if (first < heads) next = *reinterpret_cast<const uint2*>(packed + first * head_dim);
  for (int head = first; head < heads; head += step) {
    const uint2 in = next;
    if (head + step < heads) next = *reinterpret_cast<const uint2*>(packed + (head + step) * head_dim);
    float x[4] = {low_bf16(in.x), high_bf16(in.x), low_bf16(in.y), high_bf16(in.y)};
    const bool value = head >= first_value && head < first_index;
    if (head != first && weights_of(head) != weights) {
      weights = weights_of(head);
      for (int i = 0; i < 4; ++i) weight[i] = weights != nullptr ? weights[lane * 4 + i] : 0.0f;
    }
    if (!value) {
      if (weights != nullptr) {
        const float squares = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
        const float r = inverse_root(squares / head_dim + args.eps);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = (x[i] * r) * (args.gemma ? 1.0f + weight[i] : weight[i]);
      }
      float other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) other[i] = __shfl_sync(all_lanes, x[i], partner & 31);
      if (turns) {
        x[0] = x[0] * cosine.x + other[0] * sine.x;
        x[1] = x[1] * cosine.y + other[1] * sine.y;
        x[2] = x[2] * cosine.z + other[2] * sine.z;
        x[3] = x[3] * cosine.w + other[3] * sine.w;
      }
    }
    const uint2 rounded = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
    const auto cache = [&](const PagePart& part, int to_page, int to_head, float scale) {
      if (part.dtype == DType::f8_e4m3) {
        std::uint32_t codes = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          codes |= std::uint32_t{narrow_e4m3(scale == 1.0f ? x[i] : x[i] / scale)} << (8 * i);
        }
        *reinterpret_cast<std::uint32_t*>(page_run(part, to_page, to_head, 1) + slot * head_dim + at) = codes;
      } else {
        *reinterpret_cast<uint2*>(page_run(part, to_page, to_head, 2) + (slot * head_dim + at) * 2) = rounded;
      }
    };
    if (head < first_key) {
      *reinterpret_cast<uint2*>(args.q + token * args.q_stride + head * head_dim + at) = rounded;
    } else if (head < first_value) {
      cache(args.pages.k, page, head - first_key, args.pages.k_scale);
    } else if (head < first_index) {
      cache(args.pages.v, page, head - first_value, args.pages.v_scale);
    } else if (head < index_key) {
      *reinterpret_cast<uint2*>(args.index_q + token * args.index_q_stride + (head - first_index) * head_dim + at) =
          rounded;
    } else if (key_page >= 0) {
      cache(args.pages.index_k, key_page, 0, 1.0f);
    }
  }
}

// Whether everything that the kernel above touches stands on the multiples that it takes.
bool lies_in_fours(const QkvFinishArgs& args) {
  const auto aligned = [](const void* address, std::int64_t bytes, std::uintptr_t to) {
    return reinterpret_cast<std::uintptr_t>(address) % to == 0 && bytes % static_cast<std::int64_t>(to) == 0;
  };
  const auto part = [&](const PagePart& of) { return aligned(of.data, of.page_bytes, 8); };
  return args.rotary_dim % 8 == 0 && args.rotary_dim > 0 && aligned(args.table, args.table_stride * 4, 16) &&
         aligned(args.packed, args.packed_stride * 2, 8) && aligned(args.q, args.q_stride * 2, 8) &&
         aligned(args.index_q, args.index_q_stride * 2, 8) && part(args.pages.k) && part(args.pages.v) &&
         part(args.pages.index_k);
}

}  // namespace

cudaError_t launch_qkv_finish(const QkvFinishArgs& args, cudaStream_t stream) {
  if (args.batch.tokens == 0) return cudaSuccess;
  const int heads = args.query_heads + 2 * args.kv_heads + args.index_heads + (args.index_heads > 0 ? 1 : 0);
  if (lies_in_fours(args)) {
    // Few tokens: a warp a head; many: ten.
    const int blocks = args.batch.tokens >= 256 ? (heads + 39) / 40 : (heads + finish_warps - 1) / finish_warps;
    return launch(qkv_finish_heads_sm80, static_cast<unsigned>(args.batch.tokens * blocks), finish_warps * warp_size, 0,
                  stream, args, heads, blocks);
  }
  const dim3 grid(static_cast<unsigned>((heads + 3) / 4), static_cast<unsigned>(args.batch.tokens));
  return launch(qkv_finish_any_sm80, grid, 128, 0, stream, args, heads);
}

}  // namespace m3::ops::cuda
