// For attend_sparse of prompts on Hopper: of each KV head and block the list of the queries that chose it. Three small
// kernels count, place and fill them. For attend_sparse_sm90.cu alone.
#pragma once

#include "src/ops/cuda/batch.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

inline constexpr int group_heads = 16;    // query heads of a KV head; the only shape taken
inline constexpr int tile_tokens = 4;     // of a warpgroup
inline constexpr int item_tokens = 192;   // of a list that one block of threads takes at most
inline constexpr int consumers = 3;       // warpgroups
inline constexpr int query_stages = 2;    // a warpgroup
inline constexpr int shared_bins = 8192;  // counted in shared memory
inline constexpr int entries_a_block = 4096;
inline constexpr int entry_values = group_heads * head_dim;  // fp16

// Queries of one block of K and V.
struct Item {
  std::int32_t page, head;
  std::int32_t first_key, readable;  // the block's first position; how many of its keys are written
  std::int32_t begin, count;         // of the head's list
  std::int32_t unused[2];
};

struct SparseArgs {
  Batch batch;
  const std::uint16_t* q;
  std::int64_t q_stride;
  PagePart k, v;
  float scale, v_scale;
  int kv_heads, topk;
  int blocks, bins;               // of a sequence; of a head: sequences · blocks
  const std::int32_t* block_ids;  // [tokens of the batch, kv_heads, topk]
  int first_token, tokens;        // of this launch
  std::int32_t* counts;           // [kv_heads, bins]
  std::int32_t* totals;           // [kv_heads, 2]: lengths of list and items; behind counts
  std::int32_t* begins;           // [kv_heads, bins]
  std::int32_t* ranks;  // [tokens, kv_heads, topk]: place in its bin, -1 = not attended; later its unit: a float
  std::int32_t* lists;  // [kv_heads, tokens · topk]: token · topk + slot
  Item* items;          // [kv_heads, most_items]
  int most_items;
  float2* marks;  // [tokens, kv_heads, topk, 16]: highest score, unscaled; sum of weights, in units
  uint4* values;  // [tokens, kv_heads, topk, 16, 128] fp16 in units, in the order of `store_tile`
  std::uint16_t* out;
  std::int64_t out_stride;
};

// The bin of a token's slot, or -1.
__device__ inline int bin_of(const SparseArgs& args, int token, int head, int slot) {
  const int sequence = live_sequence(args.batch, token);
  if (sequence < 0) return -1;
  const int position = args.batch.positions[token];
  if (kv_page(args.batch, sequence, position / page_tokens) < 0) return -1;
  const int block = args.block_ids[(std::int64_t{token} * args.kv_heads + head) * args.topk + slot];
  if (block < 0 || block * page_tokens > position || kv_page(args.batch, sequence, block) < 0) return -1;
  return sequence * args.blocks + block;
}

// Counts each bin's queries and gives each its rank there. Block (x, head) takes `entries_a_block` entries.
__global__ void __launch_bounds__(256) attend_sparse_count_sm90(const __grid_constant__ SparseArgs args) {
  wait_for_previous();
  extern __shared__ int counted[];
  constexpr int own = entries_a_block / 256;
  const int head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const bool in_shared = args.bins <= shared_bins;
  std::int32_t* totals = args.counts + std::int64_t{head} * args.bins;
  if (in_shared) {
    for (int i = thread; i < args.bins; i += 256) counted[i] = 0;
    __syncthreads();
  }
  int bin[own], rank[own];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const std::int64_t entry = std::int64_t{blockIdx.x} * entries_a_block + i * 256 + thread;
    const auto token = static_cast<int>(entry / args.topk);
    bin[i] =
        token < args.tokens ? bin_of(args, args.first_token + token, head, static_cast<int>(entry % args.topk)) : -1;
    rank[i] = bin[i] < 0 ? -1 : atomicAdd(in_shared ? &counted[bin[i]] : &totals[bin[i]], 1);
  }
  if (in_shared) {
    __syncthreads();
    for (int i = thread; i < args.bins; i += 256) {
      if (counted[i] > 0) counted[i] = atomicAdd(&totals[i], counted[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const std::int64_t entry = std::int64_t{blockIdx.x} * entries_a_block + i * 256 + thread;
    const std::int64_t token = entry / args.topk;
    if (token >= args.tokens) continue;
    if (in_shared && bin[i] >= 0) rank[i] += counted[bin[i]];
    args.ranks[(token * args.kv_heads + head) * args.topk + entry % args.topk] = rank[i];
  }
}

// Where each bin's list begins, and the items that walk through it. A thread a bin.
__global__ void __launch_bounds__(256) attend_sparse_plan_sm90(const __grid_constant__ SparseArgs args) {
  wait_for_previous();
  __shared__ int sums[2][8];
  __shared__ int bases[2];
  const int head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int bin = static_cast<int>(blockIdx.x) * 256 + thread;
  const int count = bin < args.bins ? args.counts[std::int64_t{head} * args.bins + bin] : 0;
  const int items = (count + item_tokens - 1) / item_tokens;
  int before[2] = {count, items};
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    for (int step = 1; step < warp_size; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, before[which], step);
      if (lane >= step) before[which] += other;
    }
    if (lane == warp_size - 1) sums[which][warp] = before[which];
  }
  __syncthreads();
  if (thread < 2) {
    int total = 0;
    for (int w = 0; w < 8; ++w) {
      const int next = total + sums[thread][w];
      sums[thread][w] = total;
      total = next;
    }
    bases[thread] = total > 0 ? atomicAdd(&args.totals[2 * head + thread], total) : 0;
  }
  __syncthreads();
  if (count == 0) return;
  int begin = bases[0] + sums[0][warp] + before[0] - count;
  const int first_item = bases[1] + sums[1][warp] + before[1] - items;
  args.begins[std::int64_t{head} * args.bins + bin] = begin;
  const int sequence = bin / args.blocks;
  const int block = bin % args.blocks;
  Item item = {};
  item.page = kv_page(args.batch, sequence, block);
  item.head = head;
  item.first_key = block * page_tokens;
  item.readable = min(page_tokens, args.batch.context_lengths[sequence] - item.first_key);
  const int each = ((count + items - 1) / items + tile_tokens - 1) / tile_tokens * tile_tokens;
  for (int i = 0, left = count; i < items; ++i) {
    item.begin = begin;
    item.count = min(each, left);
    args.items[std::int64_t{head} * args.most_items + first_item + i] = item;
    begin += item.count;
    left -= item.count;
  }
}

__global__ void __launch_bounds__(256) attend_sparse_fill_sm90(const __grid_constant__ SparseArgs args) {
  wait_for_previous();
  const std::int64_t at = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  const std::int64_t token = at / (args.kv_heads * args.topk);
  if (token >= args.tokens) return;
  const int rank = args.ranks[at];
  if (rank < 0) return;
  const auto head = static_cast<int>(at / args.topk % args.kv_heads);
  const auto slot = static_cast<int>(at % args.topk);
  const int row = args.first_token + static_cast<int>(token);
  const int sequence = args.batch.sequence_of_token[row];
  const int block = args.block_ids[(std::int64_t{row} * args.kv_heads + head) * args.topk + slot];
  const int begin = args.begins[std::int64_t{head} * args.bins + sequence * args.blocks + block];
  args.lists[std::int64_t{head} * args.tokens * args.topk + begin + rank] =
      static_cast<std::int32_t>(token) * args.topk + slot;
}

}  // namespace

}  // namespace m3::ops::cuda
