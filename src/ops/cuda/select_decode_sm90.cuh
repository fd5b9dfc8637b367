// select_blocks for few tokens a sequence on Hopper: one launch that reads the index keys once, by bulk copies into a ring
// of stages, as fast as the memory gives them.
//
// The work, all sequences' key blocks in a row, is dealt out evenly over the blocks of threads. As the own block is always
// chosen (local_blocks >= 1), every scored block lies wholly before the tokens; those that lie before the sequence's first
// token of this step were written in earlier ones, so that their copies begin ahead of the kernel before. Whoever adds the
// last of a sequence's scores chooses its blocks.
#pragma once

#include "src/ops/cuda/attention.cuh"
#include "src/ops/cuda/select_prefill_sm90.cuh"

namespace m3::ops::cuda {

inline constexpr int most_decode_sequences = 1023;

struct DecodeCall {
  int blocks;         // of a row of scores
  unsigned* counters;  // [sequences], zero between calls
};

// What the block wrote before (behind a barrier of its threads) is seen by whoever adds later, and the other way round.
__device__ inline unsigned add_in_order(unsigned* counter, unsigned value) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// Of scores[from, to) the `wanted` (at most 16) best, ascending by block, ties to the lower; by one warp. Returns how
// many; entries lie in `keys` and `ids` [16]. `scratch` [64] of each.
__device__ __forceinline__ int choose_of_run(const std::uint32_t* scores, int from, int to, int wanted, std::uint32_t* keys,
                                    int* ids, std::uint32_t* list_keys, int* list_ids, int lane) {
  constexpr int held = 16;
  constexpr int run = held * warp_size;
  if (wanted <= 0 || to <= from) return 0;
  std::uint32_t values[held];
  std::uint32_t own = 0;
  for (int base = from; base < to; base += run) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int at = base + i * warp_size + lane;
      values[i] = at < to ? __ldcg(scores + at) : 0;
    }
#pragma unroll
    for (int i = 0; i < held; ++i) own = max(own, values[i]);
  }
  // At least `wanted` lanes hold something as high as the wanted-th highest lane.
  int rank = 0;
#pragma unroll
  for (int i = 0; i < warp_size; ++i) {
    const std::uint32_t other = __shfl_sync(all_lanes, own, i);
    rank += other > own || (other == own && i < lane) ? 1 : 0;
  }
  const unsigned holder = __ballot_sync(all_lanes, rank == wanted - 1);
  const std::uint32_t least = max(1u, __shfl_sync(all_lanes, own, __ffs(static_cast<int>(holder)) - 1));
  // All above it, and as many of those that tie with it as may be wanted.
  int count = 0, ties = 0;
  bool fits = true;
  const unsigned below = (1u << lane) - 1;
  for (int base = from; base < to; base += run) {
    if (to - from > run) {
#pragma unroll
      for (int i = 0; i < held; ++i) {
        const int at = base + i * warp_size + lane;
        values[i] = at < to ? __ldcg(scores + at) : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < held; ++i) {
      if (base + i * warp_size >= to) break;
      bool take = values[i] > least;
      const unsigned equal = __ballot_sync(all_lanes, values[i] == least);
      if (values[i] == least) take = ties + __popc(equal & below) < wanted;
      ties += __popc(equal);
      const unsigned taken = __ballot_sync(all_lanes, take);
      const int place = count + __popc(taken & below);
      if (take && place < 64) list_keys[place] = values[i], list_ids[place] = base + i * warp_size + lane;
      count += __popc(taken);
    }
  }
  fits = count <= 64;
  __syncwarp();
  int chosen = 0;
  if (fits) {
    std::uint32_t key[2];
    int id[2], ranks[2] = {0, 0};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = h * warp_size + lane;
      key[h] = at < count ? list_keys[at] : 0;
      id[h] = at < count ? list_ids[at] : -1;
    }
    for (int i = 0; i < count; ++i) {
      const std::uint32_t other = list_keys[i];
#pragma unroll
      for (int h = 0; h < 2; ++h) ranks[h] += other > key[h] || (other == key[h] && i < h * warp_size + lane) ? 1 : 0;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool take = key[h] != 0 && ranks[h] < wanted;
      const unsigned taken = __ballot_sync(all_lanes, take);
      const int place = chosen + __popc(taken & below);
      if (take) keys[place] = key[h], ids[place] = id[h];
      chosen += __popc(taken);
    }
  } else {
    // Many blocks high above the others, all in a few lanes: one after another.
    std::uint32_t last_key = 0xffffffffu;
    int last_id = -1;
    std::uint32_t mine_key = 0;
    int mine_id = -1;
    for (int round = 0; round < wanted; ++round) {
      std::uint32_t best = 0;
      int best_id = 0x7fffffff;
      for (int at = from + lane; at < to; at += warp_size) {
        const std::uint32_t value = __ldcg(scores + at);
        const bool after = value < last_key || (value == last_key && at > last_id);
        if (after && value > best) best = value, best_id = at;
      }
      const std::uint32_t highest = __reduce_max_sync(all_lanes, best);
      if (highest == 0) break;
      last_id = static_cast<int>(
          __reduce_min_sync(all_lanes, best == highest ? static_cast<unsigned>(best_id) : 0xffffffffu));
      last_key = highest;
      if (lane == round) mine_key = last_key, mine_id = last_id;
      ++chosen;
    }
    int smaller = 0;
    for (int i = 0; i < chosen; ++i) smaller += __shfl_sync(all_lanes, mine_id, i) < mine_id ? 1 : 0;
    if (lane < chosen) keys[smaller] = mine_key, ids[smaller] = mine_id;
  }
  __syncwarp();
  return chosen;
}

// One row's ids where nothing had to be scored: none, or all.
__device__ __forceinline__ void write_unscored_row(const SelectArgs& args, int token, int head, int lane) {
  std::int32_t* ids = args.block_ids + (std::int64_t{token} * args.heads + head) * args.topk;
  const int sequence = live_sequence(args.batch, token);
  const Choice choice(args, sequence >= 0 ? args.batch.positions[token] : 0);
  const bool live = sequence >= 0 && index_page(args.batch, sequence, choice.blocks - 1) >= 0;
  const int count = live ? min(choice.candidates(args.init_blocks), choice.slots) : 0;
  for (int i = lane; i < args.topk; i += warp_size) {
    ids[i] = !live                                          ? -1
             : i < choice.leading                           ? i
             : i < choice.leading + count                   ? args.init_blocks + i - choice.leading
             : i < choice.leading + count + choice.trailing ? choice.local_begin + i - choice.leading - count
                                                            : -1;
  }
}

template <bool Fp8, int Warps, int Stages>
struct DecodeShape {
  static constexpr int threads = (Warps + 1) * warp_size;
  static constexpr int stage_keys = Warps * 16;
  static constexpr int stage_bytes = stage_keys * head_dim * (Fp8 ? 1 : 2);
  static constexpr int shared_bytes = Stages * stage_bytes;
};

// 8 · ColumnTiles columns: the tokens of a sequence times heads. Block of threads: `Warps` that take 16 keys of a stage
// each, and one that copies.
template <bool Fp8, int Warps, int Stages, int ColumnTiles>
__global__ void __launch_bounds__((Warps + 1) * warp_size, 2)
    select_blocks_decode_sm90(const __grid_constant__ SelectArgs args, const __grid_constant__ DecodeCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Row = CacheRow<Fp8>;
  using Shape = DecodeShape<Fp8, Warps, Stages>;
  constexpr int parts = page_tokens / Shape::stage_keys;  // stages of a key block
  constexpr int columns = 8 * ColumnTiles;
  constexpr int held = ColumnTiles == 1 ? 256 : 32;  // key blocks whose scores are kept before they are written out
  std::byte* const ring = dynamic_shared();
  __shared__ std::uint64_t full[Stages], empty[Stages];
  __shared__ int absent[Stages];
  __shared__ int unit_begin[most_decode_sequences + 1];
  __shared__ std::uint32_t best[held][columns];
  __shared__ std::uint32_t list_keys[Warps][64], part_keys[Warps][list_length];
  __shared__ int list_ids[Warps][64], part_ids[Warps][list_length], part_count[Warps];
  __shared__ int is_last;
  __shared__ __align__(16) std::uint16_t queries[ColumnTiles == 1 ? 1 : columns][head_dim + 8];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int sequences = args.batch.sequences;
  const int me = static_cast<int>(blockIdx.x), groups = static_cast<int>(gridDim.x);
  asm volatile("griddepcontrol.launch_dependents;");
  if (thread == 0) {
    for (int s = 0; s < Stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], Warps);
    }
    fence_barrier_init();
  }
  // Positions and page tables stand since before the pass.
  for (int s = thread; s < sequences; s += Shape::threads) {
    const int last = args.batch.query_begin[s + 1] - 1;
    int cost = 0;
    if (last >= args.batch.query_begin[s] && live_sequence(args.batch, last) == s) {
      const Choice choice(args, args.batch.positions[last]);
      cost = choice.candidates(args.init_blocks);
      if (cost <= choice.slots) cost = 0;
    }
    unit_begin[s + 1] = cost;
  }
  for (int i = thread; i < held * columns; i += Shape::threads) best[i / columns][i % columns] = 0;
  __syncthreads();
  if (warp == 0) {
    int sum = 0;
    if (lane == 0) unit_begin[0] = 0;
    for (int base = 0; base < sequences; base += warp_size) {
      int value = base + lane < sequences ? unit_begin[base + lane + 1] : 0;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(all_lanes, value, offset);
        if (lane >= offset) value += other;
      }
      if (base + lane < sequences) unit_begin[base + lane + 1] = sum + value;
      sum += __shfl_sync(all_lanes, value, 31);
    }
  }
  __syncthreads();
  const int units = unit_begin[sequences];
  int unit = run_begin(units, me, groups);
  const int last_unit = run_begin(units, me + 1, groups);
  int sequence = unit < last_unit ? find_run(unit_begin, sequences, unit) : sequences;

  if (warp == Warps) {
    int stage = 0;
    unsigned phase = 1;
    bool waited = false;
    while (unit < last_unit) {
      const int begin = unit_begin[sequence];
      const int count = min(unit_begin[sequence + 1], last_unit) - unit;
      const int block = args.init_blocks + unit - begin;
      const int written = args.batch.positions[args.batch.query_begin[sequence]] / page_tokens;  // before this step
      int pages = -1;
      for (int i = 0; i < count; ++i) {
        if (i % warp_size == 0) {
          pages = i + lane < count ? index_page(args.batch, sequence, block + i + lane) : -1;
        }
        const int page = __shfl_sync(all_lanes, pages, i % warp_size);
        if (!waited && block + i >= written) {
          asm volatile("griddepcontrol.wait;" ::: "memory");
          waited = true;
        }
#pragma unroll
        for (int part = 0; part < parts; ++part) {
          barrier_wait(&empty[stage], phase);
          if (lane == 0) {
            absent[stage] = page < 0 ? 1 : 0;
            if (page < 0) {
              barrier_arrive(&full[stage]);
            } else {
              barrier_expect(&full[stage], Shape::stage_bytes);
              copy_bulk_once(ring + stage * Shape::stage_bytes,
                             page_run(args.index_k, page, 0, Row::element_bytes) + part * Shape::stage_bytes,
                             Shape::stage_bytes, &full[stage]);
            }
          }
          if (++stage == Stages) stage = 0, phase ^= 1;
        }
      }
      unit += count;
      ++sequence;
      while (unit < last_unit && unit_begin[sequence + 1] == unit) ++sequence;
    }
    return;
  }

  asm volatile("griddepcontrol.wait;" ::: "memory");
  // Sequences of no work, and rows that belong to none.
  const int heads = args.heads;
  for (int s = me; s < sequences; s += groups) {
    if (unit_begin[s + 1] != unit_begin[s]) continue;
    const int first = args.batch.query_begin[s] * heads, end = args.batch.query_begin[s + 1] * heads;
    for (int row = first + warp; row < end; row += Warps) write_unscored_row(args, row / heads, row % heads, lane);
  }
  if (me == groups - 1) {
    const int first = sequences > 0 ? args.batch.query_begin[sequences] : 0;
    for (int row = first * heads + warp; row < args.batch.tokens * heads; row += Warps) {
      write_unscored_row(args, row / heads, row % heads, lane);
    }
  }

  const int g = lane / 4;
  const int j = lane % 4;
  int stage = 0;
  unsigned phase = 0;
  auto* const scores = reinterpret_cast<std::uint32_t*>(args.scores);
  const auto cast = [](std::uint32_t pair) {
    if constexpr (!Fp8) return pair;
    return pack_bf16(widen_e4m3(narrow_e4m3(low_bf16(pair))), widen_e4m3(narrow_e4m3(high_bf16(pair))));
  };
  while (unit < last_unit) {
    const int begin = unit_begin[sequence], end = unit_begin[sequence + 1];
    const int count = min(end, last_unit) - unit;
    const int block = args.init_blocks + unit - begin;
    const int first_token = args.batch.query_begin[sequence];
    const int rows = (args.batch.query_begin[sequence + 1] - first_token) * heads;
    std::uint32_t q[4][4];
    if constexpr (ColumnTiles == 1) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        uint4 v = {0, 0, 0, 0};
        if (g < rows) {
          v = *reinterpret_cast<const uint4*>(args.index_q + std::int64_t{first_token + g / heads} * args.stride +
                                              g % heads * head_dim + Row::k_dimension(c, j));
        }
        q[c][0] = cast(v.x), q[c][1] = cast(v.y), q[c][2] = cast(v.z), q[c][3] = cast(v.w);
      }
    } else {
      sync_threads_of(1, Warps * warp_size);
      for (int i = thread; i < columns * 16; i += Warps * warp_size) {
        const int column = i / 16;
        uint4 v = {0, 0, 0, 0};
        if (column < rows) {
          v = *reinterpret_cast<const uint4*>(args.index_q + std::int64_t{first_token + column / heads} * args.stride +
                                              column % heads * head_dim + i % 16 * 8);
        }
        *reinterpret_cast<uint4*>(&queries[column][i % 16 * 8]) = {cast(v.x), cast(v.y), cast(v.z), cast(v.w)};
      }
      sync_threads_of(1, Warps * warp_size);
    }
    for (int done = 0; done < count; done += held) {
      const int n = min(held, count - done);
      for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int part = 0; part < parts; ++part) {
          barrier_wait(&full[stage], phase);
          const bool gone = absent[stage] != 0;
          std::uint32_t k0[16], k1[16];
          const std::byte* from = ring + stage * Shape::stage_bytes + (warp * 16 + g) * (head_dim * Row::element_bytes);
          Row::load_k(from, j, k0);
          Row::load_k(from + 8 * head_dim * Row::element_bytes, j, k1);
          if constexpr (ColumnTiles == 1) {
            float s[2][4] = {};
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              mma_bf16(s[0], k0[4 * c], k1[4 * c], k0[4 * c + 1], k1[4 * c + 1], q[c][0], q[c][1]);
              mma_bf16(s[1], k0[4 * c + 2], k1[4 * c + 2], k0[4 * c + 3], k1[4 * c + 3], q[c][2], q[c][3]);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[stage]);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float high = fmaxf(fmaxf(s[0][c] + s[1][c], s[0][c + 2] + s[1][c + 2]), no_score);
              for (int offset = 4; offset < 32; offset *= 2) {
                high = fmaxf(high, __shfl_xor_sync(all_lanes, high, offset));
              }
              if (g == 0) atomicMax(&best[i][2 * j + c], score_key(gone ? no_score : high));
            }
          } else {
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[stage]);
            for (int t = 0; t * 8 < rows; ++t) {
              float s[2][4] = {};
#pragma unroll
              for (int c = 0; c < 4; ++c) {
                const uint4 v = *reinterpret_cast<const uint4*>(&queries[t * 8 + g][Row::k_dimension(c, j)]);
                mma_bf16(s[0], k0[4 * c], k1[4 * c], k0[4 * c + 1], k1[4 * c + 1], v.x, v.y);
                mma_bf16(s[1], k0[4 * c + 2], k1[4 * c + 2], k0[4 * c + 3], k1[4 * c + 3], v.z, v.w);
              }
#pragma unroll
              for (int c = 0; c < 2; ++c) {
                float high = fmaxf(fmaxf(s[0][c] + s[1][c], s[0][c + 2] + s[1][c + 2]), no_score);
                for (int offset = 4; offset < 32; offset *= 2) {
                  high = fmaxf(high, __shfl_xor_sync(all_lanes, high, offset));
                }
                if (g == 0) atomicMax(&best[i][t * 8 + 2 * j + c], score_key(gone ? no_score : high));
              }
            }
          }
          if (++stage == Stages) stage = 0, phase ^= 1;
        }
      }
      sync_threads_of(1, Warps * warp_size);
      for (int x = thread; x < n * rows; x += Warps * warp_size) {
        const int row = x / n, i = x % n;
        __stcg(&scores[(std::int64_t{first_token} * heads + row) * call.blocks + block + done + i], best[i][row]);
        best[i][row] = 0;
      }
      for (int x = thread; rows < columns && x < n * (columns - rows); x += Warps * warp_size) {
        best[x / (columns - rows)][rows + x % (columns - rows)] = 0;
      }
      if (done + held < count) sync_threads_of(1, Warps * warp_size);
    }
    const bool alone = count == end - begin;
    sync_threads_of(1, Warps * warp_size);
    if (!alone) {
      if (thread == 0) {
        const unsigned before = add_in_order(&call.counters[sequence], static_cast<unsigned>(count));
        const bool last = before + static_cast<unsigned>(count) == static_cast<unsigned>(end - begin);
        if (last) call.counters[sequence] = 0;
        is_last = last ? 1 : 0;
      }
      sync_threads_of(1, Warps * warp_size);
    }
    if (alone || is_last != 0) {
      // Two warps a row where there are enough.
      const int split = rows * 2 <= Warps ? 2 : 1;
      for (int first = 0; first < rows; first += Warps / split) {
        const int row = first + warp / split;
        const int token = first_token + row / heads;
        bool live = row < rows && live_sequence(args.batch, token) == sequence;
        const Choice choice(args, live ? args.batch.positions[token] : 0);
        live = live && index_page(args.batch, sequence, choice.blocks - 1) >= 0;
        if (live) {
          const int candidates = choice.candidates(args.init_blocks);
          const int middle = (candidates + 1) / 2;
          const int from = args.init_blocks + (split == 2 && warp % 2 == 1 ? middle : 0);
          const int to = args.init_blocks + (split == 2 && warp % 2 == 0 ? middle : candidates);
          const int chosen =
              choose_of_run(scores + (std::int64_t{first_token} * heads + row) * call.blocks, from, to, choice.slots,
                            part_keys[warp], part_ids[warp], list_keys[warp], list_ids[warp], lane);
          if (lane == 0) part_count[warp] = chosen;
        } else if (row < rows) {
          if (lane == 0) part_count[warp] = 0;
        }
        if (split == 2) {
          sync_threads_of(1, Warps * warp_size);
        } else {
          __syncwarp();
        }
        if (row < rows && warp % split == 0) {
          std::int32_t* ids = args.block_ids + (std::int64_t{token} * heads + row % heads) * args.topk;
          const int half = warp + lane / list_length;
          const bool there = lane < list_length * split && lane % list_length < part_count[half];
          const std::uint32_t key = there ? part_keys[half][lane % list_length] : 0;
          const int id = there ? part_ids[half][lane % list_length] : -1;
          int rank = 0;
#pragma unroll
          for (int i = 0; i < warp_size; ++i) {
            const std::uint32_t other = __shfl_sync(all_lanes, key, i);
            rank += other > key || (other == key && i < lane) ? 1 : 0;
          }
          const unsigned taken = __ballot_sync(all_lanes, there && rank < choice.slots);
          const int chosen = __popc(taken);
          if (there && rank < choice.slots) ids[choice.leading + __popc(taken & ((1u << lane) - 1))] = id;
          for (int i = lane; i < args.topk; i += warp_size) {
            if (!live) {
              ids[i] = -1;
            } else if (i < choice.leading) {
              ids[i] = i;
            } else if (i >= choice.leading + chosen) {
              const int at = i - choice.leading - chosen;
              ids[i] = at < choice.trailing ? choice.local_begin + at : -1;
            }
          }
        }
        if (split == 2) sync_threads_of(1, Warps * warp_size);
      }
    }
    unit += count;
    ++sequence;
    while (unit < last_unit && unit_begin[sequence + 1] == unit) ++sequence;
  }
#endif
}

}  // namespace m3::ops::cuda
