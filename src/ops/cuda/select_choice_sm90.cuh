// select_blocks for few tokens a sequence on Hopper: how warps choose a row's blocks from its scores (the kernel:
// select_decode_sm90.cuh). Device code. Keys are scores as score_key has them; 0: none.
//
// Nothing here is unrolled far: one block of threads of a launch chooses, mostly, and its multiprocessor has to fetch the
// code first, which took longer than the choice. Nor is anything called: around each vote of a function that is not
// inlined warps are brought together, which took longer still.
#pragma once

#include "src/ops/cuda/select_prefill_sm90.cuh"

namespace m3::ops::cuda {

inline constexpr int list_room = 64;

// Of one warp: up to 64 blocks of a row and their keys, ascending by block.
struct ShortList {
  alignas(16) std::uint32_t keys[list_room];
  alignas(16) std::uint32_t work[list_room];
  int ids[list_room];
  int picks[list_length];
};

// How many of 4 · Fours keys are above each of `own`.
template <int Fours, int Count>
__device__ __forceinline__ void count_above(const std::uint32_t* keys, const std::uint32_t (&own)[Count],
                                            int (&above)[Count]) {
  int more[Count][4] = {};  // sums of their own: one would wait for itself
#pragma unroll(Fours / 4)
  for (int i = 0; i < Fours; ++i) {
    const uint4 others = reinterpret_cast<const uint4*>(keys)[i];
#pragma unroll
    for (int c = 0; c < Count; ++c) {
      more[c][0] += others.x > own[c] ? 1 : 0, more[c][1] += others.y > own[c] ? 1 : 0;
      more[c][2] += others.z > own[c] ? 1 : 0, more[c][3] += others.w > own[c] ? 1 : 0;
    }
  }
#pragma unroll
  for (int c = 0; c < Count; ++c) above[c] = more[c][0] + more[c][1] + more[c][2] + more[c][3];
}

// At least `wanted` (1 … 32) lanes hold something as high as this, or all that hold anything; at least 1.
__device__ __forceinline__ std::uint32_t least_of_lanes(std::uint32_t own, int wanted, ShortList& list, int lane) {
  list.work[lane] = own;
  __syncwarp();
  const std::uint32_t owns[1] = {own};
  int above[1] = {0};
  count_above<warp_size / 4>(list.work, owns, above);
  __syncwarp();  // `work` is free again
  return max(1u, __reduce_min_sync(all_lanes, above[0] < wanted ? own : 0xffffffffu));
}

// Which of 64 keys are the `wanted` best, ties to the first, by lanes of either half. A lane has keys `lane` and
// `32 + lane`.
__device__ __forceinline__ void find_best(const std::uint32_t (&keys)[2], ShortList& list, int wanted, int lane,
                                          unsigned (&best)[2]) {
  list.work[lane] = keys[0], list.work[warp_size + lane] = keys[1];
  __syncwarp();
  int above[2] = {0, 0};
  count_above<list_room / 4>(list.work, keys, above);
  __syncwarp();
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
}

// What a warp chooses from, 32 keys at a time: array[from … to), or, `ranged`, lane i's own range of at most 32 as the
// i-th 32. `dry`: any keys, without waiting for memory.
struct Candidates {
  const std::uint32_t* array;
  bool dry, ranged;
  int from, to, count;  // count: of the 32s

  // Of the i-th 32; all lanes.
  __device__ __forceinline__ int begin_of(int i) const {
    return ranged ? __shfl_sync(all_lanes, from, i) : from + i * warp_size;
  }
  // The 32s from `first` on.
  template <int Count>
  __device__ __forceinline__ void load(int first, int lane, std::uint32_t (&keys)[Count]) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const int id = begin_of(first + i) + lane;
      const int end = ranged ? __shfl_sync(all_lanes, to, first + i) : to;
      keys[i] = 0;
      if (first + i < count && id < end) {
        keys[i] = dry ? static_cast<std::uint32_t>(id) * 0x9e3779b1u | 1u : __ldcg(array + id);
      }
    }
  }
};

// As choose_of, where a list is too short for what is high: one after another.
__device__ __forceinline__ int choose_slowly(const Candidates& of, int wanted, ShortList& list, int lane) {
  std::uint32_t last_key = 0xffffffffu, mine_key = 0;
  int last_id = -1, mine_id = -1, chosen = 0;
#pragma unroll 1
  for (; chosen < wanted; ++chosen) {
    std::uint32_t best = 0;
    int best_id = 0x7fffffff;
#pragma unroll 1
    for (int i = 0; i < of.count; ++i) {
      std::uint32_t keys[1];
      of.load(i, lane, keys);
      const std::uint32_t key = keys[0];
      const int id = of.begin_of(i) + lane;
      const bool after = key < last_key || (key == last_key && id > last_id);
      if (after && key > best) best = key, best_id = id;
    }
    last_key = __reduce_max_sync(all_lanes, best);
    if (last_key == 0) break;
    last_id =
        static_cast<int>(__reduce_min_sync(all_lanes, best == last_key ? static_cast<unsigned>(best_id) : 0xffffffffu));
    if (lane == chosen) mine_key = last_key, mine_id = last_id;
  }
  int smaller = 0;
#pragma unroll 1
  for (int i = 0; i < chosen; ++i) smaller += __shfl_sync(all_lanes, mine_id, i) < mine_id ? 1 : 0;
  if (lane < chosen) list.keys[smaller] = mine_key, list.ids[smaller] = mine_id;
  __syncwarp();
  return chosen;
}

// The `wanted` (1 … 16) best, ties to the first, into the front of `list`, in their order. Returns how many.
__device__ __forceinline__ int choose_of(const Candidates& of, int wanted, ShortList& list, int lane) {
  constexpr int held = 8;
  std::uint32_t keys[held];
  std::uint32_t own = 0;
  int first = max(of.count - 1, 0) / held * held;
#pragma unroll 1
  for (;; first -= held) {  // backwards, so that the first ones are held when they are wanted again
    of.load(first, lane, keys);
#pragma unroll
    for (int i = 0; i < held; ++i) own = max(own, keys[i]);
    if (first == 0) break;
  }
  const std::uint32_t least = least_of_lanes(own, wanted, list, lane);
  int gathered = 0;
#pragma unroll 1
  for (;;) {
    unsigned taken[held];
#pragma unroll
    for (int i = 0; i < held; ++i) taken[i] = __ballot_sync(all_lanes, keys[i] >= least);
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int place = gathered + __popc(taken[i] & ((1u << lane) - 1));
      const int id = of.begin_of(first + i) + lane;
      if (keys[i] >= least && place < list_room) list.keys[place] = keys[i], list.ids[place] = id;
      gathered += __popc(taken[i]);
    }
    first += held;
    if (first >= of.count) break;
    of.load(first, lane, keys);
  }
  __syncwarp();
  if (gathered > list_room) return of.dry ? 0 : choose_slowly(of, wanted, list, lane);
  std::uint32_t listed[2];
  int blocks[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = h * warp_size + lane;
    listed[h] = at < gathered ? list.keys[at] : 0;
    blocks[h] = list.ids[at];
  }
  unsigned best[2];
  find_best(listed, list, wanted, lane, best);  // behind its barriers the list may be written
  int chosen = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int place = chosen + __popc(best[h] & ((1u << lane) - 1));
    if ((best[h] >> lane & 1) != 0) list.keys[place] = listed[h], list.ids[place] = blocks[h];
    chosen += __popc(best[h]);
  }
  __syncwarp();
  return chosen;
}

// What `split` warps have chosen of a row, 16 each at most: two a lane.
__device__ __forceinline__ void merge_lists(const ShortList* lists, const int* counts, int split, int lane,
                                            std::uint32_t (&keys)[2], int (&ids)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int list = h * 2 + lane / list_length, at = lane % list_length;
    const bool there = list < split && at < counts[list < split ? list : 0];
    keys[h] = there ? lists[list].keys[at] : 0;
    ids[h] = there ? lists[list].ids[at] : 0;
  }
}

// A sequence's scores came from several blocks of threads, `first` … of the run; each noted the highest of every 32 that
// it had. `a_group`: such notes of one of them, those that stand for nothing being 0.
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

// By one warp: a row's ids, from what was chosen of its candidates. `choice`: of the row's token.
__device__ __forceinline__ void write_ids(const unsigned (&best)[2], const int (&blocks)[2], const Choice& choice,
                                          int init_blocks, int topk, std::int32_t* ids, int lane) {
  const int first = __popc(best[0]), chosen = first + __popc(best[1]);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int place = choice.leading + (h == 0 ? 0 : first) + __popc(best[h] & ((1u << lane) - 1));
    if ((best[h] >> lane & 1) != 0) ids[place] = init_blocks + blocks[h];
  }
#pragma unroll 1
  for (int i = lane; i < topk; i += warp_size) {
    if (i < choice.leading) {
      ids[i] = i;
    } else if (i >= choice.leading + chosen) {
      const int at = i - choice.leading - chosen;
      ids[i] = at < choice.trailing ? choice.local_begin + at : -1;
    }
  }
}

}  // namespace m3::ops::cuda
