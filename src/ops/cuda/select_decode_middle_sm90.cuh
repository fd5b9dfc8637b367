// select_blocks for few tokens a sequence on Hopper where the longest context has 513 to 1024 blocks. As select_decode_sm90.cuh
// has it, but for what made that one slower here: four stages of keys and not six, since the copies of another such kernel
// behind are ahead of the scores that this one's last block of threads reads; two warps a row choose, by unrolled code. On
// an H200 one token of 128K: 13.4 us, and 17.3 there; 16 of them 127.4 and 129.0.
#pragma once

#include "src/ops/cuda/select_choice_sm90.cuh"
#include "src/ops/cuda/select_run_sm90.cuh"

namespace m3::ops::cuda::middle {

inline constexpr int least_blocks = 512;  // of 64 x 64K both took 246 us

// A warp's gathering of what is at least as high as `least`: all above it, and of those that tie with it the first
// `wanted`.
struct Gathering {
  std::uint32_t least;
  int wanted, count, ties;
  __device__ void add(std::uint32_t key, int id, ShortList& list, int lane) {
    const unsigned below = (1u << lane) - 1;
    const unsigned equal = __ballot_sync(all_lanes, key == least);
    const bool take = key > least || (key == least && ties + __popc(equal & below) < wanted);
    ties += __popc(equal);
    const unsigned taken = __ballot_sync(all_lanes, take);
    const int place = count + __popc(taken & below);
    if (take && place < list_room) list.keys[place] = key, list.ids[place] = id;
    count += __popc(taken);
  }
};

// At least `wanted` lanes hold something as high as the wanted-th highest lane's: that, and at least 1.
__device__ __forceinline__ std::uint32_t least_of_lanes(std::uint32_t own, int wanted, int lane) {
  int rank = 0;
#pragma unroll
  for (int i = 0; i < warp_size; ++i) {
    const std::uint32_t other = __shfl_sync(all_lanes, own, i);
    rank += other > own || (other == own && i < lane) ? 1 : 0;
  }
  const unsigned holder = __ballot_sync(all_lanes, rank == wanted - 1);
  return max(1u, __shfl_sync(all_lanes, own, __ffs(static_cast<int>(holder)) - 1));
}

// The `wanted` best of the list, still ascending by block, at its front. Returns how many.
__device__ __forceinline__ int keep_best(ShortList& list, int count, int wanted, int lane) {
  std::uint32_t key[2];
  int id[2], rank[2] = {0, 0};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = h * warp_size + lane;
    key[h] = at < count ? list.keys[at] : 0;
    id[h] = list.ids[at];
  }
  __syncwarp();  // all have read: the front is about to be written
#pragma unroll
  for (int i = 0; i < warp_size; ++i) {
    const std::uint32_t other = __shfl_sync(all_lanes, key[0], i);
    rank[0] += other > key[0] || (other == key[0] && i < lane) ? 1 : 0;
    rank[1] += other >= key[1] ? 1 : 0;
  }
  if (count > warp_size) {
#pragma unroll
    for (int i = 0; i < warp_size; ++i) {
      const std::uint32_t other = __shfl_sync(all_lanes, key[1], i);
      rank[0] += other > key[0] ? 1 : 0;
      rank[1] += other > key[1] || (other == key[1] && i < lane) ? 1 : 0;
    }
  }
  int chosen = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool take = key[h] != 0 && rank[h] < wanted;
    const unsigned taken = __ballot_sync(all_lanes, take);
    const int place = chosen + __popc(taken & ((1u << lane) - 1));
    if (take) list.keys[place] = key[h], list.ids[place] = id[h];
    chosen += __popc(taken);
  }
  __syncwarp();
  return chosen;
}

// Of scores[from, to), to - from <= 32 · Held, the `wanted` (at most 16) best, ties to the lower block, into the front of
// `list`, ascending; by one warp. Returns how many.
template <int Held>
__device__ __forceinline__ int choose_of_run(const std::uint32_t* scores, int from, int to, int wanted, ShortList& list,
                                             int lane) {
  std::uint32_t values[Held];
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    const int at = from + i * warp_size + lane;
    values[i] = at < to ? __ldcg(scores + at) : 0;
  }
  std::uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < Held; ++i) own = max(own, values[i]);
  Gathering gathering{least_of_lanes(own, wanted, lane), wanted, 0, 0};
#pragma unroll
  for (int i = 0; i < Held; ++i) gathering.add(values[i], from + i * warp_size + lane, list, lane);
  __syncwarp();
  if (gathering.count > list_room) {
    return choose_slowly({scores, false, false, from, to, (to - from + warp_size - 1) / warp_size}, wanted, list, lane);
  }
  return keep_best(list, gathering.count, wanted, lane);
}

// The last warp copies.
template <bool Fp8, int Sets, int Stages>
__global__ void __launch_bounds__(DecodeShape<Fp8, Sets, Stages, 1>::threads, 1)
    select_blocks_decode_middle_sm90(const __grid_constant__ SelectArgs args, const __grid_constant__ DecodeCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Row = CacheRow<Fp8>;
  using Shape = DecodeShape<Fp8, Sets, Stages, 1>;
  constexpr int warps = Shape::warps;
  constexpr int workers = warps * warp_size;
  constexpr int columns = 8;  // the tokens of a sequence times heads
  constexpr int held = 128;   // key blocks whose scores are kept before they are written out
  std::byte* const ring = dynamic_shared();
  __shared__ std::uint64_t full[Stages], empty[Stages];
  __shared__ int absent[Stages];
  __shared__ int unit_begin[most_decode_sequences + 1];
  __shared__ std::uint32_t best[columns][held + 1];
  __shared__ ShortList lists[warps];
  __shared__ int list_count[warps];
  __shared__ int is_last;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int sequences = args.batch.sequences;
  const int me = static_cast<int>(blockIdx.x), groups = static_cast<int>(gridDim.x);
  asm volatile("griddepcontrol.launch_dependents;");
  if (thread == 0) {
    for (int s = 0; s < Stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 8 * warp_size);
    }
    fence_barrier_init();
  }
  for (int s = thread; s < sequences; s += Shape::threads) unit_begin[s + 1] = SequenceWork(args, s).units;
  for (int i = thread; i < (held + 1) * columns; i += Shape::threads) (&best[0][0])[i] = 0;
  if (thread == 0) unit_begin[0] = 0;
  __syncthreads();
  sum_units(unit_begin, sequences, warp, lane);
  const int units = unit_begin[sequences];
  int unit = run_begin(units, me, groups);
  const int last_unit = run_begin(units, me + 1, groups);
  int sequence = unit < last_unit ? find_run(unit_begin, sequences, unit) : sequences;

  if (warp == warps) {
    copy_run<Fp8, Shape>(args, ring, full, empty, absent, unit_begin, unit, last_unit, sequence, lane);
    return;
  }

  // Of the first row that this warp would choose for: read ahead of its use.
  const int heads = args.heads;
  const auto limit_of_row = [&](int of_sequence, int row) {
    const int first = args.batch.query_begin[of_sequence];
    const bool there = row < (args.batch.query_begin[of_sequence + 1] - first) * heads;
    return there ? limit_of(args, first + row / heads, of_sequence) : -1;
  };
  const auto split_of = [&](int rows) { return rows * 2 <= warps ? 2 : 1; };  // warps a row
  const auto own_row = [&](int of_sequence) {
    return warp / split_of((args.batch.query_begin[of_sequence + 1] - args.batch.query_begin[of_sequence]) * heads);
  };
  int own_limit = unit < last_unit ? limit_of_row(sequence, own_row(sequence)) : -1;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (units == 0 || sequences > 1 || args.batch.tokens > 1) {
    const auto begin_of = [&](int s) { return sequences > 0 ? args.batch.query_begin[s] : 0; };
    write_unscored(args, unit_begin, begin_of, warp, warps, lane);
  }

  const int g = lane / 4;
  const int j = lane % 4;
  const int set = warp / 8;
  int next = 0;  // blocks seen so far
  const auto sync_workers = [] { sync_threads_of(1, workers); };
  auto* const scores = reinterpret_cast<std::uint32_t*>(args.scores);
  const auto cast = [](std::uint32_t pair) { return as_stored<Fp8>(pair); };
  while (unit < last_unit) {
    const int begin = unit_begin[sequence], end = unit_begin[sequence + 1];
    const int count = min(end, last_unit) - unit;
    const int first_token = args.batch.query_begin[sequence];
    const int rows = (args.batch.query_begin[sequence + 1] - first_token) * heads;
    const std::int64_t first_row = std::int64_t{first_token} * heads;
    std::uint32_t q[4][4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint4 v = {0, 0, 0, 0};
      if (g < rows) {
        v = *reinterpret_cast<const uint4*>(args.index_q + std::int64_t{first_token + g / heads} * args.stride +
                                            g % heads * head_dim + Row::k_dimension(c, j));
      }
      q[c][0] = cast(v.x), q[c][1] = cast(v.y), q[c][2] = cast(v.z), q[c][3] = cast(v.w);
    }
    for (int done = 0; done < count; done += held) {
      const int n = min(held, count - done);
      for (int i = 0; i < n; ++i, ++next) {
        if (Sets > 1 && next % Sets != set) continue;
        const int stage = next % Stages;
        barrier_wait(&full[stage], static_cast<unsigned>(next / Stages) & 1);
        const bool gone = absent[stage] != 0;
        std::uint32_t k0[16], k1[16];
        const std::byte* from =
            ring + stage * Shape::stage_bytes + (warp % 8 * 16 + g) * (head_dim * Row::element_bytes);
        Row::load_k(from, j, k0);
        Row::load_k(from + 8 * head_dim * Row::element_bytes, j, k1);
        const auto offer = [&](const float(&s)[2][4], int first_column) {
          offer_scores(s, gone, lane, [&](int column) -> std::uint32_t& { return best[first_column + column][i]; });
        };
        float s[2][4] = {};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          mma_bf16(s[0], k0[4 * c], k1[4 * c], k0[4 * c + 1], k1[4 * c + 1], q[c][0], q[c][1]);
          mma_bf16(s[1], k0[4 * c + 2], k1[4 * c + 2], k0[4 * c + 3], k1[4 * c + 3], q[c][2], q[c][3]);
        }
        barrier_arrive(&empty[stage]);
        offer(s, 0);
      }
      sync_workers();
      // A warp a row: out, and cleared.
      for (int row = warp; row < columns; row += warps) {
        for (int base = 0; base < n; base += warp_size) {
          const int i = base + lane;
          const std::uint32_t key = i < n ? best[row][i] : 0;
          if (i < n) best[row][i] = 0;
          if (row >= rows) continue;
          if (i < n) __stcg(&scores[(first_row + row) * call.blocks + unit - begin + done + i], key);
        }
      }
      if (done + held < count) sync_workers();
    }
    const bool alone = count == end - begin;
    sync_workers();
    if (!alone) {
      if (thread == 0) {
        const unsigned before = add_in_order(&call.counters[sequence], static_cast<unsigned>(count));
        const bool last = before + static_cast<unsigned>(count) == static_cast<unsigned>(end - begin);
        if (last) call.counters[sequence] = 0;
        is_last = last ? 1 : 0;
      }
      sync_workers();
    }
    if (alone || is_last != 0) {
      const int split = split_of(rows);
      for (int first = 0; first < rows; first += warps / split) {
        const int row = first + warp / split;
        const int token = first_token + row / heads;
        const int limit = first == 0 ? own_limit : limit_of_row(sequence, row);
        const Choice choice(args, limit >= 0 ? args.batch.positions[token] : 0);
        const int half = split == 2 ? warp % 2 : 0;
        if (limit >= 0) {
          const int candidates = choice.candidates(args.init_blocks);
          const int middle = split == 2 ? (candidates + 1) / 2 : candidates;
          const int from = half == 0 ? 0 : middle, to = half == 0 ? middle : candidates;
          const std::uint32_t* of_row = scores + (first_row + row) * call.blocks;
          ShortList& list = lists[warp];
          int chosen = 0;
          if (choice.slots > 0 && to > from) {
            if (to - from <= 4 * warp_size) {
              chosen = choose_of_run<4>(of_row, from, to, choice.slots, list, lane);
            } else {
              chosen = choose_of_run<16>(of_row, from, to, choice.slots, list, lane);
            }
          }
          if (lane == 0) list_count[warp] = chosen;
        } else if (lane == 0) {
          list_count[warp] = 0;
        }
        if (split == 2) {
          sync_workers();
        } else {
          __syncwarp();
        }
        if (row < rows && half == 0) {
          std::int32_t* ids = args.block_ids + (first_row + row) * args.topk;
          const int from = warp + lane / list_length;
          const bool there = lane < list_length * split && lane % list_length < list_count[from];
          const std::uint32_t key = there ? lists[from].keys[lane % list_length] : 0;
          const int id = there ? args.init_blocks + lists[from].ids[lane % list_length] : -1;
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
            if (limit < 0) {
              ids[i] = -1;
            } else if (i < choice.leading) {
              ids[i] = i;
            } else if (i >= choice.leading + chosen) {
              const int at = i - choice.leading - chosen;
              ids[i] = at < choice.trailing ? choice.local_begin + at : -1;
            }
          }
        }
        if (split == 2) {  // the lists have been read
          sync_workers();
        } else {
          __syncwarp();
        }
      }
    }
    unit += count;
    ++sequence;
    while (unit < last_unit && unit_begin[sequence + 1] == unit) ++sequence;
    if (unit < last_unit) own_limit = limit_of_row(sequence, own_row(sequence));
  }
#endif
}

}  // namespace m3::ops::cuda::middle
