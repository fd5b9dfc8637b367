// Sparse attention of prompts on Hopper, turned round: for each KV head and block the list of the queries that chose it.
// K and V of a block come to shared memory once; a warpgroup takes four of its queries at a time (64 rows: 16 heads
// each), and leaves their sums over this block in memory as fp16, whose range a power of two for each block keeps to; a
// second kernel joins a token's blocks.
// Nothing but the order of a list depends on the batch, and a query's sums do not depend on its place in the list.
#include <algorithm>

#include "src/ops/cuda/attend_lists_sm90.cuh"
#include "src/ops/cuda/attend_sm90.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

struct Shared {
  // K and V of two items.
  static constexpr int item_bytes = 2 * tile_bytes(tile_keys);
  static constexpr int query_bytes = tile_bytes(group_queries);
  static constexpr int queries = 2 * item_bytes;
  static constexpr int rest = queries + consumers * query_stages * query_bytes;

  std::uint64_t keys_full[2], values_full[2], item_empty[2];
  std::uint64_t queries_full[consumers][query_stages], queries_empty[consumers][query_stages];
  // Sums are of weights 2^(score - highest + room): as large as those over 128 values of this block may be in fp16.
  int room[2];
  int2 rows[consumers][query_stages][tile_tokens];  // entry of the launch, -1 = none; keys that it sees
};
constexpr int shared_bytes_of_block = Shared::rest + static_cast<int>(sizeof(Shared));
// Of the room, what weights take: those down to 2^-33 of the highest stay normal numbers. Sums take the rest.
constexpr int least_weight_room = -93;
constexpr int most_topk = 64;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline bool item_at(const SparseArgs& args, int index, Item& item) {
  for (int head = 0; head < args.kv_heads; ++head) {
    const int count = args.totals[2 * head + 1];
    if (index < count) {
      const auto* from = reinterpret_cast<const int4*>(args.items + std::int64_t{head} * args.most_items + index);
      const int4 a = from[0], b = from[1];
      item.page = a.x, item.head = a.y, item.first_key = a.z, item.readable = a.w, item.begin = b.x, item.count = b.y;
      return true;
    }
    index -= count;
  }
  return false;
}

// One warp: 128 rows of a page and head, 128 elements each, into a tile; rows past `readable` become zeros.
template <bool Fp8>
__device__ inline void load_rows(const std::byte* from, int readable, std::byte* tile, int lane) {
  if constexpr (Fp8) {
    // A lane: 16 elements of row 4 i + lane / 8.
    constexpr int batch = 8;
    for (int i = 0; i < 32; i += batch) {
      uint4 raw[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int row = 4 * (i + b) + lane / 8;
        raw[b] = uint4{0, 0, 0, 0};
        if (row < readable) raw[b] = *reinterpret_cast<const uint4*>(from + row * head_dim + lane % 8 * 16);
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int row = 4 * (i + b) + lane / 8;
        uint4 wide[2];
        widen_e4m3x4(raw[b].x, wide[0].x, wide[0].y);
        widen_e4m3x4(raw[b].y, wide[0].z, wide[0].w);
        widen_e4m3x4(raw[b].z, wide[1].x, wide[1].y);
        widen_e4m3x4(raw[b].w, wide[1].z, wide[1].w);
        *reinterpret_cast<uint4*>(tile + tile_piece<tile_keys>(row, lane % 8 * 2)) = wide[0];
        *reinterpret_cast<uint4*>(tile + tile_piece<tile_keys>(row, lane % 8 * 2 + 1)) = wide[1];
      }
    }
    fence_async_proxy();
  } else {
    const int piece = lane % 16;
#pragma unroll 8
    for (int i = 0; i < 64; ++i) {
      const int row = 2 * i + lane / 16;
      copy_async_16_or_zero(tile + tile_piece<tile_keys>(row, piece), from + i * 512 + lane * 16, row < readable);
    }
    commit_copies();
  }
}

// The largest |value| of what this lane has copied to a tile of bf16, as its bits.
__device__ inline std::uint32_t largest_copied(const std::byte* tile, int lane) {
  std::uint32_t most = 0;
#pragma unroll 8
  for (int i = 0; i < 64; ++i) {
    const uint4 v = *reinterpret_cast<const uint4*>(tile + tile_piece<tile_keys>(2 * i + lane / 16, lane % 16));
    most = __vmaxu2(most, __vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu));
    most = __vmaxu2(most, __vmaxu2(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu));
  }
  return max(most & 0xffffu, most >> 16);
}

// K and V of the items, two ahead.
template <bool Fp8>
__device__ inline void produce_items(const SparseArgs& args, Shared& shared, std::byte* tiles, int lane) {
  constexpr int element_bytes = Fp8 ? 1 : 2;
  Turn<2> turn;
  Item item;
  for (int i = static_cast<int>(blockIdx.x); item_at(args, i, item); i += static_cast<int>(gridDim.x), turn.next()) {
    std::byte* keys = tiles + turn.buffer * Shared::item_bytes;
    const std::byte* k = page_run(args.k, item.page, item.head, element_bytes);
    const std::byte* v = page_run(args.v, item.page, item.head, element_bytes);
    std::byte* values = keys + tile_bytes(tile_keys);
    std::uint64_t* keys_full = &shared.keys_full[turn.buffer];
    std::uint64_t* values_full = &shared.values_full[turn.buffer];
    barrier_wait(&shared.item_empty[turn.buffer], turn.parity ^ 1u);
    load_rows<Fp8>(k, item.readable, keys, lane);
    if constexpr (Fp8) {
      barrier_arrive(keys_full);
    } else {
      barrier_arrive_after_copies(keys_full);
    }
    load_rows<Fp8>(v, item.readable, values, lane);
    // |value| < 2^(exponent + 1), sums of 128 weights of at most 2^room: below 2^15.
    int exponent = 8;
    if constexpr (!Fp8) {
      wait_copies<0>();
      exponent = static_cast<int>(__reduce_max_sync(all_lanes, largest_copied(values, lane)) >> 7) - 127;
      fence_async_proxy();
    }
    if (lane == 0) shared.room[turn.buffer] = 7 - max(exponent, -100);
    barrier_arrive(values_full);
  }
}

// Queries for one warpgroup.
__device__ inline void produce_queries(const SparseArgs& args, Shared& shared, std::byte* tiles, int group, int lane) {
  Turn<query_stages> turn;
  std::byte* const queries = tiles + Shared::queries + group * query_stages * Shared::query_bytes;
  int offsets[4];  // of this lane's piece in rows 2 i + lane / 16, by i % 4
#pragma unroll
  for (int i = 0; i < 4; ++i) offsets[i] = tile_piece<group_queries>(2 * i + lane / 16, lane % 16) - i * 256;
  int behind = 0;  // tiles so far, modulo the consumers
  Item item;
  for (int i = static_cast<int>(blockIdx.x); item_at(args, i, item); i += static_cast<int>(gridDim.x)) {
    const std::int32_t* list = args.lists + std::int64_t{item.head} * args.tokens * args.topk + item.begin;
    const int first = (group - behind + consumers) % consumers;
    const auto entry_at = [&](int tile) {
      const int at = tile * tile_tokens + lane % tile_tokens;
      return at < item.count ? list[at] : -1;
    };
    int entry = entry_at(first);
    for (int tile = first; tile * tile_tokens < item.count; tile += consumers, turn.next()) {
      const int own = entry;
      entry = entry_at(tile + consumers);  // of the tile after
      const int token = own < 0 ? -1 : args.first_token + own / args.topk;
      const int position = token < 0 ? 0 : args.batch.positions[token];
      std::byte* to = queries + turn.buffer * Shared::query_bytes;
      barrier_wait(&shared.queries_empty[group][turn.buffer], turn.parity ^ 1u);
      if (lane < tile_tokens) {
        const int slot_entry =
            own < 0 ? -1 : ((token - args.first_token) * args.kv_heads + item.head) * args.topk + own % args.topk;
        shared.rows[group][turn.buffer][lane] = {slot_entry, min(page_tokens, position + 1 - item.first_key)};
      }
#pragma unroll
      for (int t = 0; t < tile_tokens; ++t) {
        const int row = __shfl_sync(all_lanes, token, t);
        if (row < 0) continue;
        const auto* from =
            reinterpret_cast<const std::byte*>(args.q + row * args.q_stride + item.head * entry_values) + lane * 16;
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          copy_async_16(to + (t * 8 + r) * 256 + offsets[r % 4], from + r * 512);
        }
      }
      barrier_arrive_after_copies(&shared.queries_full[group][turn.buffer]);
      barrier_arrive(&shared.queries_full[group][turn.buffer]);  // `rows`
    }
    behind = (behind + (item.count + tile_tokens - 1) / tile_tokens) % consumers;
  }
}

// 2^exponent, of a normal number.
__device__ inline float two_to(int exponent) { return __int_as_float((127 + exponent) << 23); }

__device__ inline std::uint32_t pack_f16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// A warp's 16 heads of one entry. Order of a head's 128 values: 16-byte piece 4 i + j holds dimensions 32 i + 8 a + 2 j,
// + 1 for a = 0 … 3.
__device__ inline void store_tile(const SparseArgs& args, std::int64_t entry, const float (&sums)[64],
                                  const float (&highest)[2], const float (&total)[2], float unit, int lane) {
  const int g = lane / 4;
  const int j = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint4* to = args.values + (entry * group_heads + g + 8 * r) * 16 + j;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const int n = 4 * (4 * i + a) + 2 * r;
        pairs[a] = pack_f16(sums[n], sums[n + 1]);
      }
      __stcs(to + 4 * i, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    }
    if (j == 0) args.marks[entry * group_heads + g + 8 * r] = {highest[r], total[r]};
  }
  if (lane == 0) args.ranks[entry] = __float_as_int(unit);
}

__device__ inline void consume(const SparseArgs& args, Shared& shared, const std::byte* tiles, int group, int thread) {
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int j = lane % 4;
  const std::byte* const queries = tiles + Shared::queries + group * query_stages * Shared::query_bytes;
  Turn<2> items;
  Turn<query_stages> turn;
  int behind = 0;
  Item item;
  for (int i = static_cast<int>(blockIdx.x); item_at(args, i, item); i += static_cast<int>(gridDim.x), items.next()) {
    barrier_wait(&shared.keys_full[items.buffer], items.parity);
    barrier_wait(&shared.values_full[items.buffer], items.parity);
    const std::byte* keys = tiles + items.buffer * Shared::item_bytes;
    const std::uint64_t k = key_descriptor(keys);
    const std::uint64_t v = value_descriptor(keys + tile_bytes(tile_keys));
    const int room = shared.room[items.buffer];
    const auto weight_room = static_cast<float>(max(room, least_weight_room));
    const int tile_count = (item.count + tile_tokens - 1) / tile_tokens;
    for (int tile = (group - behind + consumers) % consumers; tile < tile_count; tile += consumers, turn.next()) {
      barrier_wait(&shared.queries_full[group][turn.buffer], turn.parity);
      fence_async_proxy();
      float scores[64];
      start_scores<8>(scores, key_descriptor(queries + turn.buffer * Shared::query_bytes),
                      half_tile_bytes(group_queries), k);
      const int2 row = shared.rows[group][turn.buffer][warp];
      wgmma_wait<0>();
      pin(scores);
      barrier_arrive(&shared.queries_empty[group][turn.buffer]);
      if (row.y < page_tokens) {
        hide(scores, j, 0, 0, row.y);
        hide(scores, j, 1, 0, row.y);
      }
      const float highest[2] = {quad_max(row_max(scores, 0)), quad_max(row_max(scores, 1))};
      float shift[2] = {highest[0] * args.scale - weight_room, highest[1] * args.scale - weight_room};
      if (any_rounded(shift[0], shift[1])) {
        lower(scores, highest[0], highest[1]);
        shift[0] = shift[1] = -weight_room;
      }
      float total[2] = {0, 0};
      std::uint32_t p[32];
      weigh(scores, args.scale, shift[0], shift[1], total[0], total[1], p);
      float sums[64];
      start_values<head_dim>(sums, p, v, false);
      total[0] = quad_sum(total[0]);
      total[1] = quad_sum(total[1]);
      wgmma_wait<0>();
      pin(sums);
      if (room < least_weight_room) {
        const float rest = two_to(room - least_weight_room);
#pragma unroll
        for (float& value : sums) value *= rest;
        total[0] *= rest, total[1] *= rest;
      }
      if (row.x >= 0) store_tile(args, row.x, sums, highest, total, two_to(-room), lane);
    }
    behind = (behind + tile_count) % consumers;
    barrier_arrive(&shared.item_empty[items.buffer]);
  }
}

#endif

// Warps 0 … 2 bring queries, each for one of the warpgroups behind, warp 3 K and V.
template <bool Fp8>
__global__ void __launch_bounds__((consumers + 1) * 128, 1)
    attend_sparse_sm90(const __grid_constant__ SparseArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  std::byte* const tiles = tile_memory();
  Shared& shared = *reinterpret_cast<Shared*>(tiles + Shared::rest);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(&shared.keys_full[i], warp_size);
      barrier_init(&shared.values_full[i], warp_size);
      barrier_init(&shared.item_empty[i], consumers * warpgroup_size);
    }
    for (int c = 0; c < consumers; ++c) {
      for (int i = 0; i < query_stages; ++i) {
        barrier_init(&shared.queries_full[c][i], 2 * warp_size);
        barrier_init(&shared.queries_empty[c][i], warpgroup_size);
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous();
  if (thread < warpgroup_size) {
    give_registers<56>();
    const int warp = thread / warp_size;
    if (warp < consumers) {
      produce_queries(args, shared, tiles, warp, thread % warp_size);
    } else {
      produce_items<Fp8>(args, shared, tiles, thread % warp_size);
    }
  } else {
    take_registers<152>();
    consume(args, shared, tiles, thread / warpgroup_size - 1, thread % warpgroup_size);
  }
#endif
}

// Joins the blocks of a token and KV head: block (head, token), a thread 8 values of a head.
__global__ void __launch_bounds__(256, 4) attend_sparse_join_sm90(const __grid_constant__ SparseArgs args) {
  wait_for_previous();
  extern __shared__ float2 marks[];  // [topk, 16]
  __shared__ float units[most_topk];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t token = blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t first = (token * args.kv_heads + kv_head) * args.topk;
  const std::int32_t* ranks = args.ranks + first;
  for (int i = thread; i < args.topk * group_heads; i += 256) {
    const int unit = ranks[i / group_heads];
    marks[i] = unit < 0 ? float2{no_score, 0} : __ldcs(args.marks + first * group_heads + i);
    if (i % group_heads == 0) units[i / group_heads] = unit < 0 ? 0.0f : __int_as_float(unit);
  }
  __syncthreads();
  const int head = thread / 16;
  const int piece = thread % 16;
  float highest = no_score;
  for (int s = 0; s < args.topk; ++s) highest = fmaxf(highest, marks[s * group_heads + head].x);
  if (highest == no_score) highest = 0;
  float total = 0;
  float sums[8] = {};
  const uint4* from = args.values + first * entry_values / 8 + thread;
  constexpr int ahead = 8;  // loads under way
  for (int base = 0; base < args.topk; base += ahead) {
    uint4 parts[ahead];
    float factors[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int s = base + i;
      const float2 mark = s < args.topk ? marks[s * group_heads + head] : float2{no_score, 0};
      parts[i] = __ldcs(from + std::int64_t{min(s, args.topk - 1)} * (entry_values / 8));
      if (mark.x == no_score) parts[i] = uint4{0, 0, 0, 0};  // never written
      factors[i] = exp2f((mark.x - highest) * args.scale) * units[min(s, args.topk - 1)];
      total += mark.y * factors[i];
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const std::uint32_t pairs[4] = {parts[i].x, parts[i].y, parts[i].z, parts[i].w};
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        sums[2 * a] += widen_f16(static_cast<std::uint16_t>(pairs[a])) * factors[i];
        sums[2 * a + 1] += widen_f16(static_cast<std::uint16_t>(pairs[a] >> 16)) * factors[i];
      }
    }
  }
  if (total == 0) return;  // no key at all: nothing is written
  const float factor = args.v_scale / total;
  std::uint16_t* to = args.out + (args.first_token + token) * args.out_stride +
                      (kv_head * group_heads + head) * head_dim + piece / 4 * 32 + piece % 4 * 2;
#pragma unroll
  for (int a = 0; a < 4; ++a) {
    *reinterpret_cast<std::uint32_t*>(to + 8 * a) = pack_bf16(sums[2 * a] * factor, sums[2 * a + 1] * factor);
  }
}

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Bytes of workspace: for bins of all heads, and for each token.
std::int64_t bin_bytes(std::int64_t kv_heads, std::int64_t bins) {
  return rounded_up((bins + 2) * kv_heads * 4) + rounded_up(bins * kv_heads * 4) +
         rounded_up(bins * kv_heads * static_cast<std::int64_t>(sizeof(Item)));
}
constexpr std::int64_t gaps = 4096;  // between arrays

std::int64_t token_bytes(std::int64_t kv_heads, std::int64_t topk) {
  const std::int64_t entries = kv_heads * topk;
  return entries * (8 + 8 * group_heads + 2 * entry_values) +
         entries * static_cast<std::int64_t>(sizeof(Item)) / item_tokens + 256;
}

constexpr std::int64_t most_bins = 1 << 20;

std::int64_t bins_of(const AttendCall& call, std::int64_t& blocks) {
  blocks = (std::int64_t{call.batch.longest_context} + page_tokens - 1) / page_tokens;
  return blocks * call.batch.sequences;
}

}  // namespace

std::int64_t attend_sparse_sm90_bytes(std::int64_t tokens, std::int64_t kv_heads, std::int64_t topk,
                                      std::int64_t sequences, std::int64_t context) {
  if (topk == 0 || kv_heads == 0 || tokens < prompt_tokens || !runs_on_hopper()) return 0;
  const std::int64_t blocks = (context + page_tokens - 1) / page_tokens;
  const std::int64_t bins = std::min(most_bins, std::max<std::int64_t>(sequences, 1) * blocks);
  return bin_bytes(kv_heads, bins) + std::min<std::int64_t>(tokens, 8192) * token_bytes(kv_heads, topk) + gaps;
}

bool attend_sparse_takes_sm90(const AttendCall& call) {
  std::int64_t blocks = 0;
  const std::int64_t bins = bins_of(call, blocks);
  const Attention& args = call.args;
  return runs_on_hopper() && !call.deterministic && args.query_heads == group_heads * args.kv_heads &&
         args.topk <= most_topk && bins <= most_bins && call.q_stride % 8 == 0 && call.out_stride % 2 == 0 &&
         call.workspace_bytes >= bin_bytes(args.kv_heads, bins) + 64 * token_bytes(args.kv_heads, args.topk) + gaps;
}

cudaError_t launch_attend_sparse_sm90(const AttendCall& call, cudaStream_t stream) {
  std::int64_t blocks = 0;
  const std::int64_t bins = bins_of(call, blocks);
  const std::int64_t kv_heads = call.args.kv_heads;
  const std::int64_t topk = call.args.topk;
  const bool fp8 = call.pages.k.dtype == DType::f8_e4m3;
  SparseArgs args = {};
  args.batch = call.batch;
  args.q = call.q;
  args.q_stride = call.q_stride;
  args.k = call.pages.k;
  args.v = call.pages.v;
  args.scale = call.args.scale * (fp8 ? call.pages.k_scale : 1.0f) * log2_e;
  args.v_scale = fp8 ? call.pages.v_scale : 1.0f;
  args.kv_heads = call.args.kv_heads;
  args.topk = call.args.topk;
  args.blocks = static_cast<int>(blocks);
  args.bins = static_cast<int>(bins);
  args.block_ids = call.block_ids;
  args.out = call.out;
  args.out_stride = call.out_stride;
  const std::int64_t room = call.workspace_bytes - bin_bytes(kv_heads, bins) - gaps;
  const std::int64_t most = std::min<std::int64_t>(room / token_bytes(kv_heads, topk), call.batch.tokens);
  if (most < 1) return cudaErrorInvalidValue;
  // Equal launches.
  const std::int64_t launches = (call.batch.tokens + most - 1) / most;
  const std::int64_t each = (call.batch.tokens + launches - 1) / launches;
  auto* at = static_cast<std::byte*>(call.workspace);
  const auto take = [&](std::int64_t bytes) {
    std::byte* begin = at;
    at += rounded_up(bytes);
    return begin;
  };
  args.counts = reinterpret_cast<std::int32_t*>(take((bins + 2) * kv_heads * 4));
  args.totals = args.counts + bins * kv_heads;
  args.begins = reinterpret_cast<std::int32_t*>(take(bins * kv_heads * 4));
  args.most_items = static_cast<int>(std::min(bins, each * topk) + each * topk / item_tokens);
  args.items = reinterpret_cast<Item*>(take(args.most_items * kv_heads * static_cast<std::int64_t>(sizeof(Item))));
  args.ranks = reinterpret_cast<std::int32_t*>(take(each * kv_heads * topk * 4));
  args.lists = reinterpret_cast<std::int32_t*>(take(each * kv_heads * topk * 4));
  args.marks = reinterpret_cast<float2*>(take(each * kv_heads * topk * group_heads * 8));
  args.values = reinterpret_cast<uint4*>(take(each * kv_heads * topk * entry_values * 2));

  const int counted_bytes = bins <= shared_bins ? static_cast<int>(bins) * 4 : 0;
  static int allowed[2] = {0, 0};
  const auto kernel = fp8 ? attend_sparse_sm90<true> : attend_sparse_sm90<false>;
  constexpr int bytes = shared_bytes_of_block;
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed[fp8 ? 1 : 0]); error != cudaSuccess) return error;
  for (std::int64_t first = 0; first < call.batch.tokens; first += each) {
    args.first_token = static_cast<int>(first);
    args.tokens = static_cast<int>(std::min(each, call.batch.tokens - first));
    cudaError_t error = cudaMemsetAsync(args.counts, 0, static_cast<std::size_t>((bins + 2) * kv_heads) * 4, stream);
    if (error != cudaSuccess) return error;
    const auto heads = static_cast<unsigned>(kv_heads);
    const auto parts = [](std::int64_t count, std::int64_t size) {
      return static_cast<unsigned>((count + size - 1) / size);
    };
    error = launch(attend_sparse_count_sm90, dim3(parts(args.tokens * topk, entries_a_block), heads), 256,
                   static_cast<std::size_t>(counted_bytes), stream, args);
    if (error != cudaSuccess) return error;
    error = launch(attend_sparse_plan_sm90, dim3(parts(bins, 256), heads), 256, 0, stream, args);
    if (error != cudaSuccess) return error;
    error = launch(attend_sparse_fill_sm90, dim3(parts(args.tokens * kv_heads * topk, 256)), 256, 0, stream, args);
    if (error != cudaSuccess) return error;
    error = launch(kernel, dim3(static_cast<unsigned>(multiprocessors())), (consumers + 1) * 128, bytes, stream, args);
    if (error != cudaSuccess) return error;
    error = launch(attend_sparse_join_sm90, dim3(static_cast<unsigned>(args.tokens), heads), 256,
                   static_cast<std::size_t>(topk) * group_heads * sizeof(float2), stream, args);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace m3::ops::cuda
