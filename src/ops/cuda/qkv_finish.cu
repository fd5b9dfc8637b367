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

// The same where eight dimensions lie together everywhere: half a warp a head, lane l of it dimensions 8 l … 8 l + 7; a
// warp takes several pairs of heads of a token and reads the next pair while it works on one.
constexpr int finish_warps = 4;

__global__ void __launch_bounds__(finish_warps* warp_size)
    qkv_finish_heads_sm80(const __grid_constant__ QkvFinishArgs args, int heads, int blocks_a_token) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int token = static_cast<int>(blockIdx.x) / blocks_a_token;
  const int first =
      (static_cast<int>(blockIdx.x) % blocks_a_token * finish_warps + static_cast<int>(threadIdx.x) / warp_size) * 2 +
      static_cast<int>(threadIdx.x) % warp_size / 16;
  const int step = blocks_a_token * finish_warps * 2;
  const int first_key = args.query_heads, first_value = first_key + args.kv_heads,
            first_index = first_value + args.kv_heads, index_key = first_index + args.index_heads;
  const auto weights_of = [&](int head) {
    return head < first_key     ? args.q_norm
           : head < first_value ? args.k_norm
           : head < first_index ? nullptr
           : head < index_key   ? args.index_q_norm
                                : args.index_k_norm;
  };
  const int at = lane * 8;
  float weight[8];
  const float* weights = nullptr;
  const auto load_weights = [&](const float* from) {
    weights = from;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float w = from != nullptr ? from[at + i] : 0.0f;
      weight[i] = args.gemma ? 1.0f + w : w;
    }
  };
  load_weights(first < heads ? weights_of(first) : nullptr);
  // The batch stands since before the pass.
  const int sequence = live_sequence(args.batch, token);
  const int position = sequence >= 0 ? args.batch.positions[token] : 0;
  const int page = sequence >= 0 ? kv_page(args.batch, sequence, position / page_tokens) : -1;
  const int key_page = sequence >= 0 ? index_page(args.batch, sequence, position / page_tokens) : -1;
  wait_for_previous();
  if (page < 0) return;
  const int slot = position % page_tokens;
  const int half = args.rotary_dim / 2;
  const bool turns = at < args.rotary_dim, low = at < half;
  const int partner = (low ? lane + half / 8 : lane - half / 8) & 15;
  float cosine[8], sine[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 c = {1, 1, 1, 1}, s = {0, 0, 0, 0};
    if (turns) {
      const float* table = args.table + token * args.table_stride + (low ? at : at - half) + i;
      c = *reinterpret_cast<const float4*>(table);
      s = *reinterpret_cast<const float4*>(table + half);
    }
    cosine[i] = c.x, cosine[i + 1] = c.y, cosine[i + 2] = c.z, cosine[i + 3] = c.w;
    sine[i] = s.x, sine[i + 1] = s.y, sine[i + 2] = s.z, sine[i + 3] = s.w;
  }
  const std::uint16_t* packed = args.packed + token * args.packed_stride + at;
  uint4 next = {0, 0, 0, 0};
  const auto load = [&](int head) {
    if (head < heads) next = *reinterpret_cast<const uint4*>(packed + head * head_dim);
  };
  load(first);
  // Both halves of a warp go the same number of rounds: they exchange together.
  const int rounds = (heads - (first & ~1) + step - 1) / step;
  for (int round = 0; round < rounds; ++round) {
    const int head = first + round * step;
    const std::uint32_t in[4] = {next.x, next.y, next.z, next.w};
    load(head + step);
    float x[8];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[2 * i] = low_bf16(in[i]), x[2 * i + 1] = high_bf16(in[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
    for (int offset = 8; offset > 0; offset /= 2) squares += __shfl_xor_sync(all_lanes, squares, offset);
    const bool value = head >= first_value && head < first_index;
    if (round > 0 && head < heads && weights_of(head) != weights) load_weights(weights_of(head));
    if (!value && weights != nullptr) {
      const float r = inverse_root(squares / head_dim + args.eps);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = (x[i] * r) * weight[i];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float other = __shfl_sync(all_lanes, x[i], static_cast<int>(threadIdx.x) % warp_size / 16 * 16 + partner);
      if (turns && !value) x[i] = low ? x[i] * cosine[i] - other * sine[i] : x[i] * cosine[i] + other * sine[i];
    }
    if (head >= heads) continue;
    const uint4 rounded = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
    const auto cache = [&](const PagePart& part, int to_page, int to_head, float scale) {
      if (part.dtype == DType::f8_e4m3) {
        std::uint32_t codes[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          codes[i / 4] |= std::uint32_t{narrow_e4m3(scale == 1.0f ? x[i] : x[i] / scale)} << (i % 4 * 8);
        }
        *reinterpret_cast<uint2*>(page_run(part, to_page, to_head, 1) + slot * head_dim + at) =
            uint2{codes[0], codes[1]};
      } else {
        *reinterpret_cast<uint4*>(page_run(part, to_page, to_head, 2) + (slot * head_dim + at) * 2) = rounded;
      }
    };
    if (head < first_key) {
      *reinterpret_cast<uint4*>(args.q + token * args.q_stride + head * head_dim + at) = rounded;
    } else if (head < first_value) {
      cache(args.pages.k, page, head - first_key, args.pages.k_scale);
    } else if (head < first_index) {
      cache(args.pages.v, page, head - first_value, args.pages.v_scale);
    } else if (head < index_key) {
      *reinterpret_cast<uint4*>(args.index_q + token * args.index_q_stride + (head - first_index) * head_dim + at) =
          rounded;
    } else if (key_page >= 0) {
      cache(args.pages.index_k, key_page, 0, 1.0f);
    }
  }
}

// Whether everything that the kernel above touches stands on the multiples that it takes.
bool lies_in_eights(const QkvFinishArgs& args) {
  const auto aligned = [](const void* address, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && bytes % 16 == 0;
  };
  const auto part = [&](const PagePart& of) { return aligned(of.data, of.page_bytes); };
  return args.rotary_dim % 16 == 0 && args.rotary_dim > 0 && aligned(args.table, args.table_stride * 4) &&
         aligned(args.packed, args.packed_stride * 2) && aligned(args.q, args.q_stride * 2) &&
         aligned(args.index_q, args.index_q_stride * 2) && part(args.pages.k) && part(args.pages.v) &&
         part(args.pages.index_k);
}

}  // namespace

cudaError_t launch_qkv_finish(const QkvFinishArgs& args, cudaStream_t stream) {
  if (args.batch.tokens == 0) return cudaSuccess;
  const int heads = args.query_heads + 2 * args.kv_heads + args.index_heads + (args.index_heads > 0 ? 1 : 0);
  if (lies_in_eights(args)) {
    // Few tokens: half a warp a head; many: about ten heads.
    const int pairs = (heads + 1) / 2;
    const int blocks = args.batch.tokens >= 256 ? (pairs + 39) / 40 : (pairs + finish_warps - 1) / finish_warps;
    return launch(qkv_finish_heads_sm80, static_cast<unsigned>(args.batch.tokens * blocks), finish_warps * warp_size, 0,
                  stream, args, heads, blocks);
  }
  const dim3 grid(static_cast<unsigned>((heads + 3) / 4), static_cast<unsigned>(args.batch.tokens));
  return launch(qkv_finish_any_sm80, grid, 128, 0, stream, args, heads);
}

}  // namespace m3::ops::cuda
