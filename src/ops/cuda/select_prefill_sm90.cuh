// select_blocks for prompts on Hopper: scores on wgmma that never leave the chip.
//
// A block of threads holds `Groups` warpgroups of `Tiles` tiles of 64 rows (a row is a token and a head) of index_q in
// shared memory, and one warpgroup that streams the index keys, 128 tokens a stage. A row's running list of the 16 best
// blocks lies sorted in the registers of the four lanes that share the row; nearly all later blocks fail the test
// against its last entry. As the own block is always chosen (local_blocks >= 1), all that is scored lies wholly before
// every token of the tile but for whole blocks at the end: nothing is masked by token.
//
// The work, tiles times their blocks, is dealt out evenly: a block of threads takes a run of it and leaves lists of what
// it saw of tiles that others share. Three launches: plan, lists, merge.
#pragma once

#include "src/ops/cuda/batch.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

inline constexpr int list_length = 16;
inline constexpr int most_plan_tiles = 8192;
inline constexpr int most_plan_sequences = 1023;
inline constexpr int key_block_bytes = page_tokens * head_dim * 2;  // as bf16

struct PlanTile {
  int first_token, tokens, sequence, unused;
};

// What a call keeps in its workspace.
struct SelectPlan {
  int* header;      // tiles, units (a tile's key block), blocks of threads
  int* unit_begin;  // [tiles + 1]
  PlanTile* tiles;  // [tiles]
  int* first_tile;  // [blocks of threads]
  uint4* keys;      // [blocks of threads, 2, rows of a tile, 4]
  uint4* ids;       // likewise
  int tile_tokens;
  int blocks_of_threads;
};

// Orders scores as integers above 0.
__device__ inline std::uint32_t score_key(float score) {
  const std::uint32_t bits = __float_as_uint(score + 0.0f);  // -0 ties with 0
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}

// Which blocks a token may choose from, and how many of them.
struct Choice {
  int blocks, leading, trailing, local_begin, slots;
  __device__ Choice(const SelectArgs& args, int position) {
    blocks = position / page_tokens + 1;
    local_begin = max(0, blocks - args.local_blocks);
    leading = min(min(args.init_blocks, local_begin), args.topk);
    trailing = min(blocks - local_begin, args.topk - leading);
    slots = args.topk - leading - trailing;
  }
  __device__ int candidates(int init_blocks) const { return max(0, local_begin - init_blocks); }
};

__device__ inline int block_exclusive_sum(int value, int* shared, int& total) {  // of 1024 threads
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  int sum = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(all_lanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int before = shared[lane];
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(all_lanes, before, offset);
    if (lane >= offset) before += other;
  }
  total = __shfl_sync(all_lanes, before, 31);
  const int of_warps = __shfl_sync(all_lanes, before, max(warp - 1, 0));
  return sum - value + (warp > 0 ? of_warps : 0);
}

// First of [0, count) whose begin[i + 1] > value.
__device__ inline int find_run(const int* begin, int count, int value) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (begin[middle + 1] > value) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// `units` dealt out to `groups`: where a group's begin, and whose one is.
__device__ inline int run_begin(int units, int group, int groups) {
  return units / groups * group + min(group, units % groups);
}
__device__ inline int run_of(int units, int unit, int groups) {
  const int least = units / groups, longer = units % groups;
  return unit < longer * (least + 1) ? unit / (least + 1) : longer + (unit - longer * (least + 1)) / least;
}

static __global__ void __launch_bounds__(1024)
    select_blocks_plan_sm90(const __grid_constant__ SelectArgs args, const __grid_constant__ SelectPlan plan) {
  __shared__ int sums[32];
  __shared__ int tile_begin[most_plan_sequences + 2];  // of each sequence; the last is what belongs to none
  __shared__ int unit_begin[most_plan_tiles + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int sequences = args.batch.sequences;
  // The batch stands since before the pass: only what others may still use waits for the kernel before.
  int first = 0, count = 0;
  if (thread < sequences) {
    first = args.batch.query_begin[thread];
    count = args.batch.query_begin[thread + 1] - first;
  } else if (thread == sequences) {
    first = sequences > 0 ? args.batch.query_begin[sequences] : 0;
    count = args.batch.tokens - first;
  }
  int tiles = 0;
  const int own = block_exclusive_sum((count + plan.tile_tokens - 1) / plan.tile_tokens, sums, tiles);
  if (thread <= sequences) tile_begin[thread] = own;
  if (thread == sequences) tile_begin[sequences + 1] = tiles;
  __syncthreads();
  tiles = min(tiles, most_plan_tiles);
  const auto place_of = [&](int tile) {
    const int sequence = find_run(tile_begin, sequences + 1, tile);
    const int begin = sequence < sequences ? args.batch.query_begin[sequence]
                      : sequences > 0      ? args.batch.query_begin[sequences]
                                           : 0;
    const int end = sequence < sequences ? args.batch.query_begin[sequence + 1] : args.batch.tokens;
    const int token = begin + (tile - tile_begin[sequence]) * plan.tile_tokens;
    return PlanTile{token, min(plan.tile_tokens, end - token), sequence < sequences ? sequence : -1, 0};
  };
  int units = 0;
  for (int base = 0; base < tiles; base += 1024) {
    const int tile = base + thread;
    int cost = 0;
    if (tile < tiles) {
      const PlanTile place = place_of(tile);
      const int last = place.first_token + place.tokens - 1;
      if (place.sequence >= 0 && live_sequence(args.batch, last) == place.sequence) {
        const Choice choice(args, args.batch.positions[last]);
        cost = choice.candidates(args.init_blocks);
        if (cost <= choice.slots) cost = 0;
      }
    }
    int sum = 0;
    const int before = block_exclusive_sum(cost, sums, sum);
    if (tile < tiles) unit_begin[tile] = units + before;
    units += sum;
  }
  if (thread == 0) unit_begin[tiles] = units;
  __syncthreads();
  const int groups = plan.blocks_of_threads;
  const int first_tile = thread < groups ? find_run(unit_begin, tiles, run_begin(units, thread, groups)) : 0;
  wait_for_previous();
  if (thread == 0) {
    plan.header[0] = tiles;
    plan.header[1] = units;
    plan.header[2] = groups;
  }
  if (thread < groups) plan.first_tile[thread] = first_tile;
  for (int tile = thread; tile <= tiles; tile += 1024) {
    plan.unit_begin[tile] = unit_begin[tile];
    if (tile < tiles) plan.tiles[tile] = place_of(tile);
  }
}

// A quarter of a row's list: entries 4 j … 4 j + 3, best first.
struct RowList {
  std::uint32_t key[4];
  int id[4];
  __device__ void clear() {
#pragma unroll
    for (int e = 0; e < 4; ++e) key[e] = 0, id[e] = -1;
  }
  // Blocks come in ascending order, so that ties stay behind. A key of 0 changes nothing.
  __device__ void offer(std::uint32_t with, int block, int j) {
    std::uint32_t above_key = __shfl_up_sync(all_lanes, key[3], 1, 4);
    int above_id = __shfl_up_sync(all_lanes, id[3], 1, 4);
    bool above = j == 0 || above_key >= with;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t own = key[e];
      const int own_id = id[e];
      const bool keep = own >= with;
      key[e] = keep ? own : (above ? with : above_key);
      id[e] = keep ? own_id : (above ? block : above_id);
      above = keep, above_key = own, above_id = own_id;
    }
  }
};

template <int Groups, int Tiles>
struct SelectShape {
  static constexpr int threads = (Groups + 1) * warpgroup_size;
  static constexpr int query_bytes = Groups * Tiles * 64 * head_dim * 2;
  static constexpr int stages = (227 * 1024 - 2048 - query_bytes) / key_block_bytes;
  static constexpr int shared_bytes = query_bytes + stages * key_block_bytes + 2048;
  // Registers a thread of the block's share of 65536, in steps of 8.
  static constexpr int even = 65536 / threads / 8 * 8 > 232 ? 232 : 65536 / threads / 8 * 8;
  static constexpr int producer = Groups >= 4 ? 32 : Groups == 3 ? 56 : 72;
  static constexpr int consumer = ((even * (Groups + 1) - producer) / Groups / 8 * 8) > 232
                                      ? 232
                                      : (even*(Groups + 1) - producer) / Groups / 8 * 8;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// One product: 64 rows of q by the 128 keys of a stage.
__device__ inline void score_tile(float (&acc)[64], std::uint64_t q, std::uint64_t k) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    wgmma<128>(acc, descriptor_at(q, step / 4 * 64 * 128 + step % 4 * 32),
               descriptor_at(k, step / 4 * 128 * 128 + step % 4 * 32), step > 0);
  }
  wgmma_commit();
#endif
}

// The rows g and g + 8 of a warp's 16 of a tile.
struct TileRows {
  RowList lists[2];
  int limits[2];  // blocks before these may be chosen
  __device__ void take(float (&acc)[64], int block, bool absent, int j) {
    float best[4] = {acc[0], acc[1], acc[2], acc[3]};
#pragma unroll
    for (int i = 1; i < 16; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) best[c] = fmaxf(best[c], acc[4 * i + c]);
    }
    float row[2] = {fmaxf(best[0], best[1]), fmaxf(best[2], best[3])};
    std::uint32_t keys[2];
    bool wanted = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = fmaxf(row[r], __shfl_xor_sync(all_lanes, row[r], 1));
      row[r] = fmaxf(row[r], __shfl_xor_sync(all_lanes, row[r], 2));
      row[r] = absent ? -__builtin_huge_valf() : fmaxf(row[r], -__builtin_huge_valf());  // NaN is the lowest
      keys[r] = block < limits[r] ? score_key(row[r]) : 0;
      wanted = wanted || keys[r] > lists[r].key[3];
    }
    if (__any_sync(all_lanes, wanted && j == 3)) {
      lists[0].offer(keys[0], block, j);
      lists[1].offer(keys[1], block, j);
    }
  }
};

// Of a token: where its own blocks begin, or -1 where it gets none.
__device__ inline int limit_of(const SelectArgs& args, int token, int sequence) {
  const int owner = args.batch.sequence_of_token[token], position = args.batch.positions[token];
  if (sequence < 0 || owner != sequence || position < 0 || position >= args.batch.context_lengths[sequence]) return -1;
  const Choice choice(args, position);
  return index_page(args.batch, sequence, choice.blocks - 1) >= 0 ? choice.local_begin : -1;
}

// ids of one row from its list, spread over four lanes. limit: as limit_of; token -1: nothing is written.
__device__ inline void finish_row(const SelectArgs& args, const RowList& list, int token, int head, int limit, int j) {
  const Choice choice(args, limit >= 0 ? args.batch.positions[token] : 0);
  int smaller[4] = {}, count = 0;
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t key = __shfl_sync(all_lanes, list.key[e], lane, 4);
      const int id = __shfl_sync(all_lanes, list.id[e], lane, 4);
      const bool valid = key != 0 && lane * 4 + e < choice.slots;
      count += valid ? 1 : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) smaller[i] += valid && id < list.id[i] ? 1 : 0;
    }
  }
  if (token < 0) return;
  std::int32_t* ids = args.block_ids + (std::int64_t{token} * args.heads + head) * args.topk;
  const int known = limit >= 0 ? choice.leading + count + choice.trailing : 0;
  for (int i = known + j; i < args.topk; i += 4) ids[i] = -1;
  if (limit < 0) return;
  for (int i = j; i < choice.leading; i += 4) ids[i] = i;
  for (int i = j; i < choice.trailing; i += 4) ids[choice.leading + count + i] = choice.local_begin + i;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (list.key[e] != 0 && 4 * j + e < choice.slots) ids[choice.leading + smaller[e]] = list.id[e];
  }
}

#endif

template <bool Fp8, int Groups, int Tiles>
__global__ void __launch_bounds__((Groups + 1) * warpgroup_size, 1)
    select_blocks_lists_sm90(const __grid_constant__ SelectArgs args, const __grid_constant__ SelectPlan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = SelectShape<Groups, Tiles>;
  constexpr int stages = Shape::stages;
  extern __shared__ __align__(128) std::byte unaligned[];
  std::byte* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  std::byte* const queries = memory;                    // [tile][2 halves of k][64][64]
  std::byte* const keys = memory + Shape::query_bytes;  // [stage][2 halves of k][128][64]
  __shared__ std::uint64_t full[stages], empty[stages];
  __shared__ int absent[stages];
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / warpgroup_size;
  if (thread == 0) {
    for (int s = 0; s < stages; ++s) {
      barrier_init(&full[s], 4);
      barrier_init(&empty[s], Groups * 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous();
  const int units = plan.header[1], groups = plan.header[2];
  const int me = static_cast<int>(blockIdx.x);
  if (me >= groups) return;
  int unit = run_begin(units, me, groups);
  const int first_unit = unit;
  const int last_unit = run_begin(units, me + 1, groups);
  if (unit >= last_unit) return;
  int tile = plan.first_tile[me];
  int stage = 0;
  unsigned phase = 0;  // of the stages' rounds

  if (group == Groups) {
    give_registers<Shape::producer>();
    const int t = thread % warpgroup_size;
    const int lane = t % warp_size;
    // Thread t copies 16 bytes of row t / 16 of every eight.
    const unsigned piece = static_cast<unsigned>(t) % 16;
    const unsigned row8 = static_cast<unsigned>(t) / 16;
    const unsigned to = piece / 8 * (128 * 128) + row8 * 128 + ((piece % 8) ^ row8) * 16;
    constexpr int lag = 2;  // stages on their way before one is waited for
    int pending = 0, pending_stage = 0;
    while (unit < last_unit) {
      const int begin = plan.unit_begin[tile], end = plan.unit_begin[tile + 1];
      const int count = min(end, last_unit) - unit;
      const int block = args.init_blocks + unit - begin;
      const PlanTile place = plan.tiles[tile];
      int pages = -1;
      for (int i = 0; i < count; ++i) {
        if (i % warp_size == 0) {
          pages = i + lane < count ? index_page(args.batch, place.sequence, block + i + lane) : -1;
        }
        const int page = __shfl_sync(all_lanes, pages, i % warp_size);
        barrier_wait(&empty[stage], phase ^ 1);
        std::byte* const at = keys + stage * key_block_bytes;
        if constexpr (Fp8) {
          if (page >= 0) {
            const std::byte* from = page_run(args.index_k, page, 0, 1) + t * 16;
            uint4 codes[8];
#pragma unroll
            for (int r = 0; r < 8; ++r) codes[r] = __ldg(reinterpret_cast<const uint4*>(from + r * 2048));
#pragma unroll
            for (int r = 0; r < 8; ++r) {
              const int row = r * 16 + t / 8;
              const int p = t % 8 * 2;  // of 16 pieces
              uint4 low, high;
              widen_e4m3x4(codes[r].x, low.x, low.y);
              widen_e4m3x4(codes[r].y, low.z, low.w);
              widen_e4m3x4(codes[r].z, high.x, high.y);
              widen_e4m3x4(codes[r].w, high.z, high.w);
              std::byte* const half = at + p / 8 * (128 * 128) + row * 128;
              *reinterpret_cast<uint4*>(half + (((p % 8) ^ (row % 8)) * 16)) = low;
              *reinterpret_cast<uint4*>(half + (((p % 8 + 1) ^ (row % 8)) * 16)) = high;
            }
          }
          if (t == 0) absent[stage] = page < 0 ? 1 : 0;
          fence_async_proxy();
          __syncwarp();
          if (lane == 0) barrier_arrive(&full[stage]);
        } else {
          if (page >= 0) {
            const std::byte* from = page_run(args.index_k, page, 0, 2) + t * 16;
#pragma unroll
            for (int r = 0; r < 16; ++r) copy_async_16(at + to + r * 1024, from + r * 2048);
          }
          if (t == 0) absent[stage] = page < 0 ? 1 : 0;
          commit_copies();
          if (++pending > lag) {
            wait_copies<lag>();
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) barrier_arrive(&full[pending_stage]);
            pending_stage = pending_stage + 1 == stages ? 0 : pending_stage + 1;
            --pending;
          }
        }
        if (++stage == stages) stage = 0, phase ^= 1;
      }
      unit += count;
      ++tile;
      while (unit < last_unit && plan.unit_begin[tile + 1] == unit) ++tile;  // tiles of no work
    }
    if constexpr (!Fp8) {
      wait_copies<0>();
      fence_async_proxy();
      __syncwarp();
      for (; pending > 0; --pending) {
        if (lane == 0) barrier_arrive(&full[pending_stage]);
        pending_stage = pending_stage + 1 == stages ? 0 : pending_stage + 1;
      }
    }
    return;
  }

  take_registers<Shape::consumer>();
  const int t = thread % warpgroup_size;
  const int lane = t % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int warp = t / warp_size;
  std::byte* const own_queries = queries + group * Tiles * (64 * 256);
  std::uint64_t q[Tiles];
#pragma unroll
  for (int i = 0; i < Tiles; ++i) q[i] = tile_descriptor<128>(own_queries + i * (64 * 256), 1024);
  const std::uint64_t first_key = tile_descriptor<128>(keys, 1024);

  while (unit < last_unit) {
    const int begin = plan.unit_begin[tile], end = plan.unit_begin[tile + 1];
    const int count = min(end, last_unit) - unit;
    const int block = args.init_blocks + unit - begin;
    const PlanTile place = plan.tiles[tile];
    uint4 rows_of_q[Tiles * 8];
#pragma unroll
    for (int i = 0; i < Tiles * 8; ++i) {
      const int row = i * 8 + t / 16;  // of Tiles · 64
      const int local = (group * Tiles * 64 + row) / args.heads;
      rows_of_q[i] = {0, 0, 0, 0};
      if (local < place.tokens) {
        rows_of_q[i] =
            *reinterpret_cast<const uint4*>(args.index_q + (std::int64_t{place.first_token} + local) * args.stride +
                                            row % args.heads * head_dim + t % 16 * 8);
      }
    }
    TileRows rows[Tiles];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows[i].lists[r].clear();
        const int local = ((group * Tiles + i) * 64 + warp * 16 + g + 8 * r) / args.heads;
        rows[i].limits[r] = local < place.tokens ? limit_of(args, place.first_token + local, place.sequence) : -1;
      }
    }
    sync_threads_of(1 + group, warpgroup_size);  // all have done with the tile before
#pragma unroll
    for (int i = 0; i < Tiles * 8; ++i) {
      const int row = i * 8 + t / 16;
      const int piece = t % 16;
      uint4 value = rows_of_q[i];
      if constexpr (Fp8) {
        std::uint32_t pairs[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          pairs[k] =
              pack_bf16(widen_e4m3(narrow_e4m3(low_bf16(pairs[k]))), widen_e4m3(narrow_e4m3(high_bf16(pairs[k]))));
        }
        value = {pairs[0], pairs[1], pairs[2], pairs[3]};
      }
      *reinterpret_cast<uint4*>(own_queries + row / 64 * (64 * 256) + piece / 8 * (64 * 128) + row % 64 * 128 +
                                ((piece % 8) ^ (row % 8)) * 16) = value;
    }
    fence_async_proxy();
    sync_threads_of(1 + group, warpgroup_size);

    const auto key_of_stage = [&](int s) {
      return descriptor_at(first_key, static_cast<unsigned>(s * key_block_bytes));
    };
    const auto release = [&](int s) {
      if (lane == 0) barrier_arrive(&empty[s]);
    };
    const auto advance = [&] {
      if (++stage == stages) stage = 0, phase ^= 1;
    };
    if (group * Tiles * 64 >= place.tokens * args.heads) {  // no rows of its own
      for (int i = 0; i < count; ++i) {
        barrier_wait(&full[stage], phase);
        release(stage);
        advance();
      }
    } else if constexpr (Tiles == 1) {
      float acc[64];
      for (int i = 0; i < count; ++i) {
        barrier_wait(&full[stage], phase);
        const bool gone = absent[stage] != 0;
        score_tile(acc, q[0], key_of_stage(stage));
        wgmma_wait<0>();
        pin(acc);
        release(stage);
        advance();
        rows[0].take(acc, block + i, gone, j);
      }
    } else {
      // The first tile's maxima are taken while the second's product runs, the second's while another warpgroup's does.
      float even[64], odd[64];
      for (int i = 0; i < count; ++i) {
        barrier_wait(&full[stage], phase);
        const bool gone = absent[stage] != 0;
        score_tile(even, q[0], key_of_stage(stage));
        score_tile(odd, q[1], key_of_stage(stage));
        wgmma_wait<1>();
        pin(even);
        rows[0].take(even, block + i, gone, j);
        wgmma_wait<0>();
        pin(odd);
        release(stage);
        advance();
        rows[1].take(odd, block + i, gone, j);
      }
    }

    const bool whole = unit == begin && unit + count == end;
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = (group * Tiles + i) * 64 + warp * 16 + g + 8 * r;
        const RowList& list = rows[i].lists[r];
        if (whole) {
          const int token = row / args.heads < place.tokens ? place.first_token + row / args.heads : -1;
          finish_row(args, list, token, row % args.heads, rows[i].limits[r], j);
        } else {
          const int which = unit == first_unit ? 0 : 1;
          const std::int64_t at = ((std::int64_t{me} * 2 + which) * (Groups * Tiles * 64) + row) * 4 + j;
          plan.keys[at] = {list.key[0], list.key[1], list.key[2], list.key[3]};
          plan.ids[at] = {static_cast<unsigned>(list.id[0]), static_cast<unsigned>(list.id[1]),
                          static_cast<unsigned>(list.id[2]), static_cast<unsigned>(list.id[3])};
        }
      }
    }
    unit += count;
    ++tile;
    while (unit < last_unit && plan.unit_begin[tile + 1] == unit) ++tile;
  }
#endif
}

// Rows of tiles that were shared or needed no scores: eight rows a warp, four lanes a row; 64 rows a block of threads.
static __global__ void __launch_bounds__(256)
    select_blocks_merge_sm90(const __grid_constant__ SelectArgs args, const __grid_constant__ SelectPlan plan,
                             int blocks_a_tile) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_previous();
  const int tile = static_cast<int>(blockIdx.x) / blocks_a_tile;
  const int tiles = plan.header[0], units = plan.header[1], groups = plan.header[2];
  if (tile >= tiles) return;
  const int begin = plan.unit_begin[tile], end = plan.unit_begin[tile + 1];
  const PlanTile place = plan.tiles[tile];
  int first = 0, last = -1;
  if (end > begin) {
    first = run_of(units, begin, groups);
    last = run_of(units, end - 1, groups);
    if (first == last) return;  // written already
  }
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int j = lane % 4;
  const int rows = plan.tile_tokens * args.heads;
  const int row = static_cast<int>(blockIdx.x) % blocks_a_tile * 64 + static_cast<int>(threadIdx.x) / 4;
  const int local = row / args.heads;
  const int token = local < place.tokens && row < rows ? place.first_token + local : -1;
  const int limit = token >= 0 ? limit_of(args, token, place.sequence) : -1;
  if (last < first) {  // all of them
    if (token < 0) return;
    const Choice choice(args, limit >= 0 ? args.batch.positions[token] : 0);
    const int count = choice.candidates(args.init_blocks);
    std::int32_t* ids = args.block_ids + (std::int64_t{token} * args.heads + row % args.heads) * args.topk;
    for (int i = j; i < args.topk; i += 4) {
      ids[i] = limit < 0                                      ? -1
               : i < choice.leading                           ? i
               : i < choice.leading + count                   ? args.init_blocks + i - choice.leading
               : i < choice.leading + count + choice.trailing ? choice.local_begin + i - choice.leading - count
                                                              : -1;
    }
    return;
  }
  uint4 keys, ids;
  const auto load = [&](int group) {
    const int which = run_begin(units, group, groups) >= begin ? 0 : 1;
    const std::int64_t at = ((std::int64_t{group} * 2 + which) * rows + min(row, rows - 1)) * 4 + j;
    keys = plan.keys[at];
    ids = plan.ids[at];
  };
  RowList list;
  load(first);
  list.key[0] = keys.x, list.key[1] = keys.y, list.key[2] = keys.z, list.key[3] = keys.w;
  list.id[0] = static_cast<int>(ids.x), list.id[1] = static_cast<int>(ids.y);
  list.id[2] = static_cast<int>(ids.z), list.id[3] = static_cast<int>(ids.w);
  load(first + 1);
  for (int group = first + 1; group <= last; ++group) {
    const std::uint32_t key[4] = {keys.x, keys.y, keys.z, keys.w};
    const std::uint32_t id[4] = {ids.x, ids.y, ids.z, ids.w};
    if (group < last) load(group + 1);
    // Best first: once no row wants one, none wants the rest.
    bool wanted = true;
#pragma unroll
    for (int e = 0; e < list_length; ++e) {
      if (!wanted) break;
      const std::uint32_t with = __shfl_sync(all_lanes, key[e % 4], e / 4, 4);
      const int block = static_cast<int>(__shfl_sync(all_lanes, id[e % 4], e / 4, 4));
      wanted = __any_sync(all_lanes, j == 3 && with > list.key[3]) != 0;
      if (wanted) list.offer(with, block, j);
    }
  }
  finish_row(args, list, token, row % args.heads, limit, j);
#endif
}

// The workspace of a call, cut up; its size where `memory` is null.
inline std::int64_t lay_out_select_plan(std::byte* memory, std::int64_t tokens, std::int64_t sequences, int heads,
                                        int tile_tokens, int blocks_of_threads, SelectPlan& plan) {
  std::int64_t used = 0;
  const auto take = [&](std::int64_t bytes) {
    std::byte* at = memory == nullptr ? nullptr : memory + used;
    used += (bytes + 255) / 256 * 256;
    return at;
  };
  const std::int64_t tiles = (tokens + tile_tokens - 1) / tile_tokens + sequences + 1;
  plan.tile_tokens = tile_tokens;
  plan.blocks_of_threads = blocks_of_threads;
  plan.header = reinterpret_cast<int*>(take(64));
  plan.unit_begin = reinterpret_cast<int*>(take((tiles + 1) * 4));
  plan.tiles = reinterpret_cast<PlanTile*>(take(tiles * 16));
  plan.first_tile = reinterpret_cast<int*>(take(blocks_of_threads * 4));
  const std::int64_t lists = std::int64_t{blocks_of_threads} * 2 * tile_tokens * heads * list_length * 4;
  plan.keys = reinterpret_cast<uint4*>(take(lists));
  plan.ids = reinterpret_cast<uint4*>(take(lists));
  return used;
}

}  // namespace m3::ops::cuda
