// Attention over chosen blocks, one token and KV head at a time, through shared memory.
//
// A block of eight warps takes one slot or four. Of each slot K and V (64 KiB as bf16) are copied to shared memory at
// once. Scores: a warp takes 16 keys. The warps agree on each head's highest score, P goes to shared memory as bf16, and
// every warp multiplies all 128 keys with its own 16 dimensions of V, so that no sums cross warps.
//
// One order of summation for any batch: slots are summed apart; four slots make a group, joined in ascending order under
// the group's highest score; groups are joined likewise. Blocks of one slot leave slots' sums in memory, blocks of four
// the groups'; the last block of a token and head to end joins them.
#pragma once

#include "src/ops/cuda/attend.cuh"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

inline constexpr int group_slots = 4;

template <bool Fp8>
struct SlotMemory {
  static constexpr int element_bytes = Fp8 ? 1 : 2;
  static constexpr int row_bytes = head_dim * element_bytes;
  static constexpr int p_stride = page_tokens * 2 + 16;
  static constexpr int v_offset = page_tokens * row_bytes;
  static constexpr int p_offset = 2 * v_offset;
  static constexpr int bytes = p_offset + group_rows * p_stride;

  // Where chunk c (16 bytes) of a row lies: chunks are exchanged by row, so that the rows that a warp reads at once meet
  // different banks.
  __device__ static int k_chunk(int row, int c) { return row * row_bytes + (c ^ (row & 1) << 2) * 16; }
  __device__ static int v_chunk(int row, int c) { return row * row_bytes + (c ^ (row >> 1 & 3) << (Fp8 ? 0 : 1)) * 16; }

  // As CacheRow::load_k.
  __device__ static void load_k(const std::byte* rows, int row, int j, std::uint32_t (&pairs)[16]) {
    if constexpr (Fp8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v = *reinterpret_cast<const uint4*>(rows + k_chunk(row, half * 4 + j));
        widen_e4m3x4(v.x, pairs[half * 8 + 0], pairs[half * 8 + 1]);
        widen_e4m3x4(v.y, pairs[half * 8 + 2], pairs[half * 8 + 3]);
        widen_e4m3x4(v.z, pairs[half * 8 + 4], pairs[half * 8 + 5]);
        widen_e4m3x4(v.w, pairs[half * 8 + 6], pairs[half * 8 + 7]);
      }
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint4 v = *reinterpret_cast<const uint4*>(rows + k_chunk(row, c * 4 + j));
        pairs[c * 4] = v.x, pairs[c * 4 + 1] = v.y, pairs[c * 4 + 2] = v.z, pairs[c * 4 + 3] = v.w;
      }
    }
  }
};

// Joins `count` parts, each with a highest score and sums under it: the factor of part s, 0 for one without keys.
__device__ inline float part_factor(float highest, float sum, float all_highest) {
  return highest == no_score && sum == 0 ? 0.0f : exp2f(highest - all_highest);
}

template <bool Fp8, int Slots>
__global__ void __launch_bounds__(256, 2)
    attend_sparse_decode_sm80(const __grid_constant__ AttendArgs args, unsigned* counters) {
  using Memory = SlotMemory<Fp8>;
  __shared__ float warp_highest[8][group_rows];
  __shared__ float warp_sums[8][group_rows];
  __shared__ bool last_block;
  std::byte* const shared = dynamic_shared();
  wait_for_previous();

  const int token = args.first_token + static_cast<int>(blockIdx.z);
  const int tile = static_cast<int>(blockIdx.y);
  const int tiles = row_tiles(args.query_heads, args.kv_heads);
  const int kv_head = tile / tiles;
  const int sequence = live_sequence(args.batch, token);
  if (sequence < 0) return;
  const int position = args.batch.positions[token];
  if (kv_page(args.batch, sequence, position / page_tokens) < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;

  int pages[Slots], visible[Slots];
#pragma unroll
  for (int s = 0; s < Slots; ++s) {
    const int slot = static_cast<int>(blockIdx.x) * Slots + s;
    const int block =
        slot < args.topk ? args.block_ids[(std::int64_t{token} * args.kv_heads + kv_head) * args.topk + slot] : -1;
    pages[s] = block >= 0 ? kv_page(args.batch, sequence, block) : -1;
    visible[s] = min(page_tokens, position + 1 - block * page_tokens);
    if (pages[s] < 0) visible[s] = 0;
  }
  constexpr int chunks = Memory::row_bytes / 16;
  const auto copy_k = [&](int s) {
    const std::byte* from = page_run(args.k, max(pages[s], 0), kv_head, Memory::element_bytes);
    for (int i = thread; i < visible[s] * chunks; i += 256) {
      copy_async_16(shared + Memory::k_chunk(i / chunks, i % chunks), from + i * 16);
    }
    commit_copies();
  };
  const auto copy_v = [&](int s) {
    const std::byte* from = page_run(args.v, max(pages[s], 0), kv_head, Memory::element_bytes);
    for (int i = thread; i < visible[s] * chunks; i += 256) {
      copy_async_16(shared + Memory::v_offset + Memory::v_chunk(i / chunks, i % chunks), from + i * 16);
    }
    commit_copies();
  };
  copy_k(0);
  copy_v(0);

  float acc[Slots][2][4] = {};
  float highest[Slots][2], sum[Slots][2];
#pragma unroll
  for (int s = 0; s < Slots; ++s) {
    // Scores of this warp's 16 keys.
    std::uint32_t q[8][4];
    load_tile_queries<Fp8>(args, token, tile, lane, q);
    wait_copies<1>();
    __syncthreads();
    float scores[2][4] = {};
    const int readable = max(visible[s], 1) - 1;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      std::uint32_t k[16];
      Memory::load_k(shared, min(warp * 16 + n * 8 + g, readable), j, k);
#pragma unroll
      for (int i = 0; i < 8; ++i) mma_bf16(scores[n], q[i][0], q[i][1], q[i][2], q[i][3], k[2 * i], k[2 * i + 1]);
    }
    float own[2] = {no_score, no_score};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp * 16 + n * 8 + 2 * j + i % 2;
        scores[n][i] = key < visible[s] ? scores[n][i] * args.scale : no_score;
        own[i / 2] = fmaxf(own[i / 2], scores[n][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own[r] = fmaxf(own[r], __shfl_xor_sync(all_lanes, own[r], 1));
      own[r] = fmaxf(own[r], __shfl_xor_sync(all_lanes, own[r], 2));
      if (j == 0) warp_highest[warp][g + 8 * r] = own[r];
    }
    __syncthreads();  // K is read, too
    if (s + 1 < Slots) copy_k(s + 1);
    float part[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = no_score;
      for (int w = 0; w < 8; ++w) all = fmaxf(all, warp_highest[w][g + 8 * r]);
      highest[s][r] = all;
      const float shift = all == no_score ? 0.0f : all;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float p0 = exp2f(scores[n][2 * r] - shift);
        const float p1 = exp2f(scores[n][2 * r + 1] - shift);
        part[r] += p0 + p1;
        *reinterpret_cast<std::uint32_t*>(shared + Memory::p_offset + (g + 8 * r) * Memory::p_stride +
                                          (warp * 16 + n * 8 + 2 * j) * 2) = pack_bf16(p0, p1);
      }
      part[r] += __shfl_xor_sync(all_lanes, part[r], 1);
      part[r] += __shfl_xor_sync(all_lanes, part[r], 2);
      if (j == 0) warp_sums[warp][g + 8 * r] = part[r];
    }
    if (s + 1 < Slots) {
      wait_copies<1>();  // V of this slot; K of the next may be under way
    } else {
      wait_copies<0>();
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[s][r] = 0;
      for (int w = 0; w < 8; ++w) sum[s][r] += warp_sums[w][g + 8 * r];
    }
    // All keys by this warp's 16 dimensions: 16·warp + 2n, and + 1 for the second tile.
    const std::byte* v_rows = shared + Memory::v_offset;
    const int dimension = 16 * warp + 2 * g;
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      if (step * 16 >= visible[s]) continue;  // the same for all warps: P is zero there
      const std::byte* p_rows = shared + Memory::p_offset + (16 * step + 2 * j) * 2;
      std::uint32_t p[4];
      p[0] = *reinterpret_cast<const std::uint32_t*>(p_rows + g * Memory::p_stride);
      p[1] = *reinterpret_cast<const std::uint32_t*>(p_rows + (g + 8) * Memory::p_stride);
      p[2] = *reinterpret_cast<const std::uint32_t*>(p_rows + g * Memory::p_stride + 16);
      p[3] = *reinterpret_cast<const std::uint32_t*>(p_rows + (g + 8) * Memory::p_stride + 16);
      std::uint32_t v[4];  // keys 2j, 2j + 1, 8 + 2j, 8 + 2j + 1
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = min(16 * step + i / 2 * 8 + 2 * j + i % 2, readable);
        const int at_byte = dimension * Memory::element_bytes;
        const std::byte* at = v_rows + Memory::v_chunk(key, at_byte / 16) + at_byte % 16;
        if constexpr (Fp8) {
          std::uint32_t unused = 0;
          widen_e4m3x4(*reinterpret_cast<const std::uint16_t*>(at), v[i], unused);
        } else {
          v[i] = *reinterpret_cast<const std::uint32_t*>(at);
        }
      }
      mma_bf16(acc[s][0], p[0], p[1], p[2], p[3], __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410));
      mma_bf16(acc[s][1], p[0], p[1], p[2], p[3], __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632));
    }
    __syncthreads();  // V and P are read
    if (s + 1 < Slots) copy_v(s + 1);
  }

  // This block's part: of one slot as it is, of four joined. Lane: rows g and g + 8, dimensions 16·warp + 4j … + 3.
  const std::int64_t row = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  Partial& to = args.partials[row * args.splits + blockIdx.x];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float all = no_score, total = 0;
    float value[4] = {};
#pragma unroll
    for (int s = 0; s < Slots; ++s) all = fmaxf(all, highest[s][r]);
#pragma unroll
    for (int s = 0; s < Slots; ++s) {
      const float factor = Slots == 1 ? 1.0f : part_factor(highest[s][r], sum[s][r], all);
      total += sum[s][r] * factor;
      value[0] += acc[s][0][2 * r] * factor, value[1] += acc[s][1][2 * r] * factor;
      value[2] += acc[s][0][2 * r + 1] * factor, value[3] += acc[s][1][2 * r + 1] * factor;
    }
    for (int i = 0; i < 4; ++i) to.values[g + 8 * r][16 * warp + 4 * j + i] = value[i];
    if (warp == 0 && j == 0) to.highest[g + 8 * r] = all, to.sum[g + 8 * r] = total;
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) last_block = atomicInc(&counters[row], gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last_block) return;
  __threadfence();

  // Joins all parts: a thread a dimension, half of the heads each.
  const Partial* partials = args.partials + row * args.splits;
  const int group = args.query_heads / args.kv_heads;
  const int first_head = kv_head * group + tile % tiles * group_rows;
  const int heads = min(group_rows, group - tile % tiles * group_rows);
  const int column = thread % head_dim;
  for (int head = thread / head_dim; head < heads; head += 2) {
    float all = no_score;
    for (int p = 0; p < args.splits; ++p) all = fmaxf(all, load_fresh(&partials[p].highest[head]));
    float value = 0, total = 0;
    if constexpr (Slots == 1) {
      for (int first = 0; first < args.splits; first += group_slots) {
        const int end = min(first + group_slots, args.splits);
        float group_highest = no_score, group_value = 0, group_sum = 0;
        for (int p = first; p < end; ++p) group_highest = fmaxf(group_highest, load_fresh(&partials[p].highest[head]));
        for (int p = first; p < end; ++p) {
          const float part_sum = load_fresh(&partials[p].sum[head]);
          const float factor = part_factor(load_fresh(&partials[p].highest[head]), part_sum, group_highest);
          group_value += load_fresh(&partials[p].values[head][column]) * factor;
          group_sum += part_sum * factor;
        }
        const float factor = part_factor(group_highest, group_sum, all);
        value += group_value * factor;
        total += group_sum * factor;
      }
    } else {
      for (int p = 0; p < args.splits; ++p) {
        const float part_sum = load_fresh(&partials[p].sum[head]);
        const float factor = part_factor(load_fresh(&partials[p].highest[head]), part_sum, all);
        value += load_fresh(&partials[p].values[head][column]) * factor;
        total += part_sum * factor;
      }
    }
    if (total == 0) continue;  // no key at all: nothing is written
    args.out[token * args.out_stride + (first_head + head) * head_dim + column] =
        narrow_bf16(value / total * args.v_scale);
  }
}

}  // namespace m3::ops::cuda
