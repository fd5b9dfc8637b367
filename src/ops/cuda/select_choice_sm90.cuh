// select_blocks for few tokens a sequence on Hopper: how warps choose a row's blocks from its scores (the kernel:
// select_decode_sm90.cuh). Device code.
#pragma once

#include "src/ops/cuda/select_prefill_sm90.cuh"

namespace m3::ops::cuda {

// Up to 64 blocks of one row and their keys, ascending by block.
inline constexpr int list_room = 64;
struct ShortList {
  alignas(16) std::uint32_t keys[list_room];
  int ids[list_room];
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
    if (take && place < list_room) list.keys[place] = key, list.ids[place] = id;
    count += __popc(taken);
  }
};

// Nothing here is unrolled far: one block of threads of a launch chooses, mostly, and its multiprocessor has to fetch the
// code first. That took longer than the choice.

// How many of 4 · Fours keys are above each of `own`.
template <int Fours, int Count>
__device__ __forceinline__ void count_above(const std::uint32_t* keys, const std::uint32_t (&own)[Count],
                                            int (&above)[Count]) {
#pragma unroll 2
  for (int i = 0; i < Fours; ++i) {
    const uint4 others = reinterpret_cast<const uint4*>(keys)[i];
#pragma unroll
    for (int c = 0; c < Count; ++c) {
      above[c] += (others.x > own[c] ? 1 : 0) + (others.y > own[c] ? 1 : 0) + (others.z > own[c] ? 1 : 0) +
                  (others.w > own[c] ? 1 : 0);
    }
  }
}

// At least `wanted` (1 … 32) lanes hold something as high as this, or all that hold anything; at least 1.
__device__ __forceinline__ std::uint32_t least_of_lanes(std::uint32_t own, int wanted, ShortList& list, int lane) {
  list.keys[lane] = own;
  __syncwarp();
  const std::uint32_t owns[1] = {own};
  int above[1] = {0};
  count_above<warp_size / 4>(list.keys, owns, above);
  __syncwarp();  // the list is free again
  return max(1u, __reduce_min_sync(all_lanes, above[0] < wanted ? own : 0xffffffffu));
}

// Which of 64 keys are the `wanted` best, ties to the first, by lanes of either half. A lane has keys `lane` and
// `32 + lane` (0: none); `shared` has room for all.
__device__ __forceinline__ void find_best(const std::uint32_t (&keys)[2], std::uint32_t* shared, int wanted, int lane,
                                          unsigned (&best)[2]) {
  shared[lane] = keys[0], shared[warp_size + lane] = keys[1];
  __syncwarp();
  int above[2] = {0, 0};
  count_above<64 / 4>(shared, keys, above);
  std::uint32_t lowest = 0xffffffffu;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (keys[h] != 0 && above[h] < wanted) lowest = min(lowest, keys[h]);
  }
  lowest = __reduce_min_sync(all_lanes, lowest);
  unsigned equal[2];
  int left = wanted;  // for those that tie with the lowest
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    equal[h] = __ballot_sync(all_lanes, keys[h] == lowest);
    left -= __popc(__ballot_sync(all_lanes, keys[h] > lowest));
  }
  const unsigned below = (1u << lane) - 1;
  best[0] = __ballot_sync(all_lanes, keys[0] > lowest || (keys[0] == lowest && __popc(equal[0] & below) < left));
  left -= __popc(equal[0]);
  best[1] = __ballot_sync(all_lanes, keys[1] > lowest || (keys[1] == lowest && __popc(equal[1] & below) < left));
  __syncwarp();  // `shared` is free again
}

// The `wanted` best of the list, still ascending by block, at its front. Returns how many.
__device__ __forceinline__ int keep_best(ShortList& list, int count, int wanted, int lane) {
  std::uint32_t keys[2];
  int ids[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = h * warp_size + lane;
    keys[h] = at < count ? list.keys[at] : 0;
    ids[h] = list.ids[at];
  }
  __syncwarp();  // all have read: the list is about to be written
  unsigned best[2];
  find_best(keys, list.keys, wanted, lane, best);
  int chosen = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int place = chosen + __popc(best[h] & ((1u << lane) - 1));
    if ((best[h] >> lane & 1) != 0) list.keys[place] = keys[h], list.ids[place] = ids[h];
    chosen += __popc(best[h]);
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
// ascending; by one warp. Returns how many. `dry`: whatever the scores are, quickly.
__device__ __forceinline__ int choose_of_run(const std::uint32_t* scores, int from, int to, int wanted, ShortList& list,
                                             int lane, bool dry) {
  constexpr int held = 8;
  constexpr int step = held * warp_size;
  std::uint32_t values[held];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
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
    for (int i = 0; i < held; ++i) own = max(own, values[i]);
    if (first == from) break;
  }
  Gathering gathering{least_of_lanes(own, wanted, list, lane), wanted, 0, 0};
#pragma unroll 1
  for (;;) {
#pragma unroll
    for (int i = 0; i < held; ++i) gathering.add(values[i], first + i * warp_size + lane, list, lane);
    first += step;
    if (first >= to) break;
    load(first);
  }
  __syncwarp();
  if (gathering.count > list_room) return dry ? 0 : choose_slowly(scores, from, to, wanted, list, lane);
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

// As choose_of_run, over notes [from_note, to_note): most scores are not looked at. scores[i]: of the sequence's unit i;
// those from `limit` on are none of the row's candidates.
__device__ __forceinline__ int choose_by_notes(const std::uint32_t* scores, const std::uint32_t* notes,
                                               const Contributors& contributors, int from_note, int to_note, int limit,
                                               int wanted, ShortList& list, int lane, bool dry) {
  constexpr std::uint32_t unknown = 0xffffffffu;  // the note holds more than candidates: its scores are looked at
  constexpr int held = 4;
  constexpr int step = held * warp_size;
  std::uint32_t values[held];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int at = first + i * warp_size + lane;
      values[i] = at < to_note ? __ldcg(notes + at) : 0;
    }
#pragma unroll
    for (int i = 0; i < held; ++i) {
      int from, to;
      contributors.run(min(first + i * warp_size + lane, to_note - 1), from, to);
      values[i] = values[i] == 0 || from >= to || from >= limit ? 0 : to > limit ? unknown : values[i];
    }
  };
  std::uint32_t own = 0;
  int first = from_note + (to_note - from_note - 1) / step * step;
#pragma unroll 1
  for (;; first -= step) {
    load(first);
#pragma unroll
    for (int i = 0; i < held; ++i) own = max(own, values[i] == unknown ? 0 : values[i]);
    if (first == from_note) break;
  }
  const std::uint32_t least = least_of_lanes(own, wanted, list, lane);
  Gathering of_notes{least, 1 << 30, 0, 0};
#pragma unroll 1
  for (;;) {
#pragma unroll
    for (int i = 0; i < held; ++i) of_notes.add(values[i], first + i * warp_size + lane, list, lane);
    first += step;
    if (first >= to_note) break;
    load(first);
  }
  __syncwarp();
  int low, high, unused;
  contributors.run(from_note, low, unused);
  contributors.run(to_note - 1, unused, high);
  high = min(high, limit);
  if (of_notes.count > list_room) return dry ? 0 : choose_slowly(scores, low, high, wanted, list, lane);
  // What the notes stand for moves to registers: the list is about to be written.
  int begins[2], ends[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int which = h * warp_size + lane;
    begins[h] = ends[h] = 0;
    if (which < of_notes.count) {
      contributors.run(list.ids[which], begins[h], ends[h]);
      ends[h] = min(ends[h], limit);
    }
  }
  __syncwarp();
  Gathering gathering{least, wanted, 0, 0};
  constexpr int batch = 8;
#pragma unroll 1
  for (int base = 0; base < of_notes.count; base += batch) {
    std::uint32_t keys[batch];
    int ids[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int which = base + i;  // batches lie within a half
      const int from = __shfl_sync(all_lanes, base < warp_size ? begins[0] : begins[1], which % warp_size);
      const int to = __shfl_sync(all_lanes, base < warp_size ? ends[0] : ends[1], which % warp_size);
      ids[i] = from + lane;
      keys[i] = ids[i] < to ? __ldcg(scores + ids[i]) : 0;
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) gathering.add(keys[i], ids[i], list, lane);
  }
  __syncwarp();
  if (gathering.count > list_room) return dry ? 0 : choose_slowly(scores, low, high, wanted, list, lane);
  return keep_best(list, gathering.count, wanted, lane);
}

// A row's candidates are scores[0, candidates); `notes` of them (0: none were made) begin at `noted`. One of `split`
// (1, 2, 4) warps brings the best of its part into its list. Returns how many.
__device__ __noinline__ int choose_part(const std::uint32_t* scores, const std::uint32_t* noted,
                                        Contributors contributors, int candidates, int notes, int part, int split,
                                        int wanted, ShortList& list, bool dry) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int all = notes > 0 ? notes : candidates;
  const int from = all * part / split, to = all * (part + 1) / split;
  if (from >= to) return 0;
  return notes > 0 ? choose_by_notes(scores, noted, contributors, from, to, candidates, wanted, list, lane, dry)
                   : choose_of_run(scores, from, to, wanted, list, lane, dry);
}

// By one warp: a row's ids from the lists of its warps (16 of each at most), or from up to 64 scores (lists: one, to
// work in). `choice`: of the row's token.
__device__ __noinline__ void write_row(const std::uint32_t* scores, ShortList* lists, const int* counts, int split,
                                       int candidates, Choice choice, int init_blocks, int topk, std::int32_t* ids) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  std::uint32_t keys[2];
  int blocks[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = h * warp_size + lane;
    keys[h] = 0, blocks[h] = at;
    if (scores != nullptr) {
      if (at < candidates) keys[h] = __ldcg(scores + at);
    } else if (at / list_length < split && at % list_length < counts[at / list_length]) {
      keys[h] = lists[at / list_length].keys[at % list_length];
      blocks[h] = lists[at / list_length].ids[at % list_length];
    }
  }
  __syncwarp();  // all have read
  unsigned best[2] = {0, 0};
  if (choice.slots > 0) find_best(keys, lists[0].keys, choice.slots, lane, best);
  const int first = __popc(best[0]), chosen = first + __popc(best[1]);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int place = choice.leading + (h == 0 ? 0 : first) + __popc(best[h] & ((1u << lane) - 1));
    if ((best[h] >> lane & 1) != 0) ids[place] = init_blocks + blocks[h];
  }
  for (int i = lane; i < topk; i += warp_size) {
    if (i < choice.leading) {
      ids[i] = i;
    } else if (i >= choice.leading + chosen) {
      const int at = i - choice.leading - chosen;
      ids[i] = at < choice.trailing ? choice.local_begin + at : -1;
    }
  }
  __syncwarp();  // the lists are free again
}

}  // namespace m3::ops::cuda
