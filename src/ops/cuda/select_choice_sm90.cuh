// select_blocks for few tokens a sequence on Hopper: how warps choose a row's blocks from its scores (the kernel:
// select_decode_sm90.cuh). Device code.
#pragma once

#include "src/ops/cuda/select_prefill_sm90.cuh"

namespace m3::ops::cuda {

// Up to 64 blocks of one row and their keys, ascending by block.
struct ShortList {
  std::uint32_t keys[64];
  int ids[64];
};

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
    if (take && place < 64) list.keys[place] = key, list.ids[place] = id;
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

// The same of scores[from, to) where the list is too short for what is high: one after another.
__device__ __noinline__ int choose_slowly(const std::uint32_t* scores, int from, int to, int wanted, ShortList& list,
                                          int lane) {
  std::uint32_t last_key = 0xffffffffu, mine_key = 0;
  int last_id = -1, mine_id = -1, chosen = 0;
  for (; chosen < wanted; ++chosen) {
    std::uint32_t best = 0;
    int best_id = 0x7fffffff;
    for (int at = from + lane; at < to; at += warp_size) {
      const std::uint32_t value = __ldcg(scores + at);
      const bool after = value < last_key || (value == last_key && at > last_id);
      if (after && value > best) best = value, best_id = at;
    }
    last_key = __reduce_max_sync(all_lanes, best);
    if (last_key == 0) break;
    last_id =
        static_cast<int>(__reduce_min_sync(all_lanes, best == last_key ? static_cast<unsigned>(best_id) : 0xffffffffu));
    if (lane == chosen) mine_key = last_key, mine_id = last_id;
  }
  int smaller = 0;
  for (int i = 0; i < chosen; ++i) smaller += __shfl_sync(all_lanes, mine_id, i) < mine_id ? 1 : 0;
  if (lane < chosen) list.keys[smaller] = mine_key, list.ids[smaller] = mine_id;
  __syncwarp();
  return chosen;
}

// Of scores[from, to), at least one, the `wanted` (1 … 16) best, ties to the lower block, into the front of `list`,
// ascending; by one warp, 32 · Held at a time. Returns how many.
template <int Held>
__device__ __forceinline__ int choose_of_run(const std::uint32_t* scores, int from, int to, int wanted, ShortList& list,
                                             int lane) {
  constexpr int step = Held * warp_size;
  std::uint32_t values[Held];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      const int at = first + i * warp_size + lane;
      values[i] = at < to ? __ldcg(scores + at) : 0;
    }
  };
  std::uint32_t own = 0;
  int first = from + (to - from - 1) / step * step;
#pragma unroll 1
  for (;; first -= step) {  // backwards, so that the first ones are held when they are wanted again
    load(first);
#pragma unroll
    for (int i = 0; i < Held; ++i) own = max(own, values[i]);
    if (first == from) break;
  }
  Gathering gathering{least_of_lanes(own, wanted, lane), wanted, 0, 0};
#pragma unroll 1
  for (;;) {
#pragma unroll
    for (int i = 0; i < Held; ++i) gathering.add(values[i], first + i * warp_size + lane, list, lane);
    first += step;
    if (first >= to) break;
    load(first);
  }
  __syncwarp();
  if (gathering.count > 64) return choose_slowly(scores, from, to, wanted, list, lane);
  return keep_best(list, gathering.count, wanted, lane);
}

// A sequence's scores came from several blocks of threads, `first` … `last` of the run; each noted the highest of every
// 32 that it had. `a_group`: such notes of one of them.
struct Contributors {
  int units, groups;  // of the whole call
  int begin, end;     // the sequence's units
  int first, a_group;
  // Scores that note `i` stands for, counted from `begin`.
  __device__ void run(int i, int& from, int& to) const {
    const int group = first + i / a_group;
    const int last = min(run_begin(units, group + 1, groups), end) - begin;
    from = min(max(run_begin(units, group, groups), begin) - begin + i % a_group * warp_size, last);
    to = min(last, from + warp_size);
  }
};

// As choose_of_run, over notes [from_note, to_note), at most 32 · notes_by_lane: most scores are not looked at. scores[i]:
// of the sequence's unit i; those from `limit` on are none of the row's candidates.
inline constexpr int notes_by_lane = 24;

__device__ __forceinline__ int choose_by_notes(const std::uint32_t* scores, const std::uint32_t* notes,
                                               const Contributors& contributors, int from_note, int to_note, int limit,
                                               int wanted, ShortList& list, int lane) {
  constexpr std::uint32_t unknown = 0xffffffffu;  // the note holds more than candidates: its scores are looked at
  std::uint32_t values[notes_by_lane];
  std::uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < notes_by_lane; ++i) {
    const int at = from_note + i * warp_size + lane;
    values[i] = 0;
    if (at < to_note) {
      int from, to;
      contributors.run(at, from, to);
      if (from < to && from < limit) values[i] = to > limit ? unknown : __ldcg(notes + at);
    }
  }
#pragma unroll
  for (int i = 0; i < notes_by_lane; ++i) own = max(own, values[i] == unknown ? 0 : values[i]);
  const std::uint32_t least = least_of_lanes(own, wanted, lane);
  Gathering of_notes{least, 1 << 30, 0, 0};
#pragma unroll
  for (int i = 0; i < notes_by_lane; ++i) of_notes.add(values[i], from_note + i * warp_size + lane, list, lane);
  __syncwarp();
  int low, high, unused;
  contributors.run(from_note, low, unused);
  contributors.run(to_note - 1, unused, high);
  high = min(high, limit);
  if (of_notes.count > 64) return choose_slowly(scores, low, high, wanted, list, lane);
  // The notes move to registers: the list is about to be written.
  const int noted[2] = {list.ids[lane], list.ids[warp_size + lane]};
  __syncwarp();
  Gathering gathering{least, wanted, 0, 0};
  constexpr int batch = 8;
  for (int base = 0; base < of_notes.count; base += batch) {
    std::uint32_t keys[batch];
    int ids[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int which = base + i;
      const int note = __shfl_sync(all_lanes, which < warp_size ? noted[0] : noted[1], which % warp_size);
      int from = 0, to = 0;
      if (which < of_notes.count) contributors.run(note, from, to);
      ids[i] = from + lane;
      keys[i] = ids[i] < min(to, limit) ? __ldcg(scores + ids[i]) : 0;
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) gathering.add(keys[i], ids[i], list, lane);
  }
  __syncwarp();
  if (gathering.count > 64) return choose_slowly(scores, low, high, wanted, list, lane);
  return keep_best(list, gathering.count, wanted, lane);
}

}  // namespace m3::ops::cuda
