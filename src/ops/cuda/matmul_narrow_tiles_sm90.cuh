// Tiles of matmul_narrow_sm90.cuh: shared memory, who has which tile, and what becomes of its sums.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/matmul_narrow_sm90.h"
#include "src/ops/cuda/matmul_wide_results_sm90.cuh"
#include "src/ops/cuda/widened_rows_sm90.cuh"

namespace m3::ops::cuda {

inline constexpr int narrow_workers = 128 * narrow_groups_of_warps;  // threads that widen and multiply
inline constexpr int narrow_threads = narrow_workers + 128;          // and single warps
inline constexpr int narrow_half = narrow_rows / 2;
inline constexpr int narrow_boxes = narrow_items / 8;
inline constexpr int narrow_most_stages = 6;
inline constexpr int narrow_shared = 227 << 10;

static_assert(sizeof(WeightMaps) == 2 * sizeof(TensorMap));

enum class NarrowStore { halves, floats, activated };

struct NarrowArgs {
  TensorMap x[narrow_boxes];  // boxes of 8, 16, … 64 rows by a stage's columns; one list: the last alone
  TensorMap values[narrow_parts], scales[narrow_parts];
  MatmulArgs args;
  NarrowShape shape;  // of groups: of one of them, `blocks` of all
  int capacity;       // items of a tile, in sixteens
  int ring;           // stages of it
};

// A stage: 128 bytes of 256 rows of W, then the same columns of x in steps of 64, each of as many rows as a tile has items.
template <WeightFormat Format>
struct NarrowLayout {
  static constexpr int steps = 128 / step_bytes(Format);
  static constexpr int weight_bytes = narrow_rows * 128;
  static constexpr int scale_row = scale_row_bytes<Format>;
  static constexpr int scale_bytes = narrow_rows * scale_row;  // of an octet of steps
  static constexpr int octet_stages = wide_octet / steps;
  __host__ __device__ static constexpr int stage_bytes(int capacity) { return weight_bytes + steps * capacity * 128; }
  // Behind the stages: scales, an octet a stage (each octet has one at least), tables, barriers.
  static constexpr int token_rows = 0;
  static constexpr int token_factors = narrow_items * 4;
  static constexpr int row_factors = 2 * narrow_items * 4;
  static constexpr int segment = row_factors + narrow_rows * 4;
  static constexpr int table_bytes = segment + 48;
  static constexpr int fixed_bytes = 2 * table_bytes + (4 + 2 * narrow_most_stages) * 8 + narrow_groups_of_warps * 4;
  static int ring(int capacity) {
    const int fit = (narrow_shared - 1024 - fixed_bytes) / (stage_bytes(capacity) + scale_bytes);
    return fit < narrow_most_stages ? fit : narrow_most_stages;
  }
  static int bytes(int capacity) { return 1024 + fixed_bytes + ring(capacity) * (stage_bytes(capacity) + scale_bytes); }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace narrow {

template <WeightFormat Format>
struct Places {
  using Layout = NarrowLayout<Format>;
  std::uint32_t base;
  int stage_bytes, ring;
  __device__ std::uint32_t weights(int stage) const { return base + stage * stage_bytes; }
  __device__ std::uint32_t x(int stage) const { return weights(stage) + Layout::weight_bytes; }
  __device__ std::uint32_t scales(int slot) const { return weights(ring) + slot * Layout::scale_bytes; }
  __device__ std::uint32_t table(int turn) const { return scales(ring) + turn * Layout::table_bytes; }
  __device__ std::uint32_t barrier(int index) const { return table(2) + index * 8; }
  __device__ std::uint32_t table_full(int turn) const { return barrier(turn); }
  __device__ std::uint32_t table_empty(int turn) const { return barrier(2 + turn); }
  __device__ std::uint32_t full(int stage) const { return barrier(4 + stage); }
  __device__ std::uint32_t empty(int stage) const { return barrier(4 + narrow_most_stages + stage); }
  __device__ std::uint32_t flag(int group) const { return barrier(4 + 2 * narrow_most_stages) + group * 4; }
};

struct RingPlace {
  int stage = 0;
  unsigned phase = 0;
  __device__ void step(int ring) {
    if (++stage == ring) stage = 0, phase ^= 1;
  }
};

// A tile's part that is a block's: of a group, items begin … begin + count - 1, stages first … last - 1.
struct Segment {
  int group, part, row, rows;
  int begin, count, copied;  // items; copied: in eights
  int tile, first, last;
};

// A block's segments. Each warp that needs them walks by itself.
class Walk {
 public:
  __device__ explicit Walk(const NarrowArgs& narrow) {
    if (narrow.args.groups > 0) {
      at_ = static_cast<int>(blockIdx.x);
    } else {
      const auto block = static_cast<int>(blockIdx.x);
      at_ = narrow_share(narrow.shape, block);
      end_ = narrow_share(narrow.shape, block + 1);
    }
  }
  __device__ bool next(const NarrowArgs& narrow, Segment& segment) {
    const MatmulArgs& args = narrow.args;
    segment.group = segment.begin = 0;
    if (args.groups == 0) {
      if (at_ >= end_) return false;
      const NarrowSegment of = narrow_segment(narrow.shape, at_, end_);
      const NarrowPlace place = narrow_place(narrow.shape, of.tile);
      segment.part = place.part, segment.row = place.row, segment.rows = place.rows;
      segment.tile = of.tile, segment.first = of.first, segment.last = of.last;
      segment.count = args.items;
      segment.copied = (args.items + 7) / 8 * 8;
      at_ += of.last - of.first;
      return true;
    }
    // Units are tiles of rows by tiles of items, group after group; those of the same rows lie together.
    const int row_tiles = narrow_tiles(narrow.shape, 0);
    int items = 0, tiles = 0;
    for (;; ++group_) {
      if (group_ == args.groups) return false;
      segment.begin = args.group_begin[group_];
      items = args.group_begin[group_ + 1] - segment.begin;
      tiles = (items + narrow.capacity - 1) / narrow.capacity;
      if (at_ < first_ + tiles * row_tiles) break;
      first_ += tiles * row_tiles;
    }
    const int unit = at_ - first_;
    const NarrowPlace place = narrow_place(narrow.shape, unit / tiles);
    segment.group = group_;
    segment.part = 0, segment.row = place.row, segment.rows = place.rows;
    segment.tile = 0, segment.first = 0, segment.last = narrow.shape.stages;
    // Eights of items are spread evenly.
    const int eights = (items + 7) / 8;
    const int each = eights / tiles;
    const int more = eights % tiles;
    const int index = unit % tiles;
    const int start = 8 * (index * each + min(index, more));
    segment.begin += start;
    segment.copied = 8 * (each + (index < more ? 1 : 0));
    segment.count = min(segment.copied, items - start);
    at_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  int at_, end_ = 0;
  int group_ = 0, first_ = 0;
};

// Of a table's words, the ones that are read again.
inline constexpr int segment_part = 1, segment_row = 2, segment_rows = 3, segment_count = 5, segment_copied = 6,
                     segment_tile = 7, segment_first = 8, segment_last = 9, segment_more = 10;

__device__ inline void write_segment(std::uint32_t at, const Segment& segment, bool more) {
  const int words[] = {segment.group,  segment.part, segment.row,   segment.rows, segment.begin, segment.count,
                       segment.copied, segment.tile, segment.first, segment.last, more ? 1 : 0};
#pragma unroll
  for (int i = 0; i < 11; ++i) store_word(at + i * 4, static_cast<std::uint32_t>(words[i]));
}

// Which weight the rows of half `half` of a tile belong to, and the first of them there.
template <bool Activated>
__device__ inline int part_of_half(const Segment& segment, int half, int& row) {
  row = segment.row + (Activated ? 0 : half * narrow_half);
  return Activated ? half : segment.part;
}

// One warp: tables of what multiplies results and where they go, two at a time ahead. `extra`: a factor of all.
template <WeightFormat Format, bool Activated>
__device__ inline void schedule(const NarrowArgs& narrow, const Places<Format>& places, float extra) {
  using Layout = NarrowLayout<Format>;
  const MatmulArgs& args = narrow.args;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const bool weighted = args.store == Store::weighted || args.store == Store::weighted_halves;
  Walk walk(narrow);
  for (int turn = 0;; ++turn) {
    Segment segment = {};
    const bool more = walk.next(narrow, segment);
    const std::uint32_t table = places.table(turn % 2);
    wait_for(places.table_empty(turn % 2), (turn / 2 % 2) ^ 1);
    if (lane == 0) write_segment(table + Layout::segment, segment, more);
    if (more) {
      for (int i = lane; i < segment.count; i += warp_size) {
        const int item = segment.begin + i;
        const int row = args.result_by_list ? args.list[item] : item;
        float factor = weighted ? args.scaling * args.pair_weights[row] : 1.0f;
        if (args.token_scales != nullptr) factor *= args.token_scales[item];
        store_word(table + Layout::token_rows + i * 4, static_cast<std::uint32_t>(row));
        store_float(table + Layout::token_factors + i * 4, factor);
      }
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        int row = 0;
        const int part = part_of_half<Activated>(segment, half, row);
        const WeightPart* weight =
            args.groups > 0 ? args.table + segment.group * args.parts + part : args.inline_parts + part;
        const float scale = weight->tensor_scale;
        const float* row_scales = weight->row_scales;
        for (int i = lane; i < narrow_half; i += warp_size) {
          const int of = min(row + i, args.inline_parts[part].rows - 1);
          store_float(table + Layout::row_factors + (half * narrow_half + i) * 4,
                      extra * (row_scales != nullptr ? scale * row_scales[of] : scale));
        }
      }
    }
    arrive(places.table_full(turn % 2));
    if (!more) break;
  }
}

// The sums of a tile that other blocks have parts of, by one group of warps: true for the last that comes, which has them
// all, added in the order of K.
template <WeightFormat Format>
__device__ inline bool join(float (&sums)[narrow_items / 2], const NarrowArgs& narrow, const Places<Format>& places,
                            const NarrowSegment& segment) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const auto block = static_cast<int>(blockIdx.x);
  const int eights = narrow.capacity / 8;
  const auto slot_of = [&](int slot) {
    return reinterpret_cast<float4*>(narrow.args.partials) +
           ((std::int64_t{slot} * narrow_groups_of_warps + group) * eights) * 128 + thread;
  };
  float4* const mine = slot_of(narrow_slot(block, segment.first == 0));
#pragma unroll
  for (int i = 0; i < narrow_items / 8; ++i) {
    if (i >= eights) break;
    mine[i * 128] = float4{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  }
  __threadfence();
  sync_threads_of(1 + group, 128);
  const int first = narrow_first_block(narrow.shape, block, segment.tile);
  const int last = narrow_last_block(narrow.shape, block, segment.tile);
  if (thread == 0) {
    unsigned* const counter = narrow.args.counters + first * narrow_groups_of_warps + group;
    const bool all = atomicAdd(counter, 1u) == static_cast<unsigned>(last - first);
    if (all) *counter = 0;  // for the next kernel
    store_word(places.flag(group), all ? 1 : 0);
  }
  sync_threads_of(1 + group, 128);
  if (load_word(places.flag(group)) == 0) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < narrow_items / 2; ++i) sums[i] = 0;
#pragma unroll 1
  for (int other = first; other <= last; ++other) {  // its own, too, which take no registers then
    const float4* const from = slot_of(narrow_slot(other, other == first));
#pragma unroll
    for (int i = 0; i < narrow_items / 8; ++i) {
      if (i >= eights) break;
      const float4 part = load_fresh(from + i * 128);
      sums[4 * i] += part.x, sums[4 * i + 1] += part.y, sums[4 * i + 2] += part.z, sums[4 * i + 3] += part.w;
    }
  }
  return true;
}

// Results of one thread: two rows of W by two items of each eight.
template <WeightFormat Format, NarrowStore Kind, bool Arranged>
__device__ inline void store(const float (&sums)[narrow_items / 2], const NarrowArgs& narrow, std::uint32_t table) {
  using Layout = NarrowLayout<Format>;
  constexpr bool activated = Kind == NarrowStore::activated;
  const MatmulArgs& args = narrow.args;
  const int thread = wide::fresh(static_cast<int>(threadIdx.x));
  const int j = thread % 4;
  const int local = narrow_first_row(activated, thread);
  const auto word = [&](int at) { return static_cast<int>(load_word(table + Layout::segment + at * 4)); };
  const int count = word(segment_count);
  float factors[2], bias[2] = {};
  int columns[2];
  bool there[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = local + r * (activated ? narrow_half : 8);  // of the tile
    factors[r] = load_float(table + Layout::row_factors + row * 4);
    there[r] = (activated ? local : row) < word(segment_rows);
    columns[r] = args.inline_parts[word(segment_part)].first_column + word(segment_row) + (activated ? local : row);
    if (!activated && args.bias != nullptr && there[r]) bias[r] = args.bias[columns[r]];
  }
  if constexpr (Arranged && activated) columns[0] = narrow_arranged(columns[0]);
#pragma unroll
  for (int i = 0; i < narrow_items / 8; ++i) {
    if (i * 8 >= count) break;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int item = i * 8 + 2 * j + c;
      if (item >= count) continue;
      const float factor = load_float(table + Layout::token_factors + item * 4);
      const auto to = static_cast<std::int64_t>(load_word(table + Layout::token_rows + item * 4)) * args.out_stride;
      float values[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) values[r] = fmaf(sums[i * 4 + r * 2 + c], factors[r] * factor, bias[r]);
      if constexpr (activated) {
        if (there[0]) {
          static_cast<std::uint16_t*>(args.out)[to + columns[0]] = narrow_bf16(
              wide::activate_fast(round_bf16(values[0]), round_bf16(values[1]), args.alpha, args.limit, args.beta));
        }
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (!there[r]) continue;
          if constexpr (Kind == NarrowStore::floats) {
            static_cast<float*>(args.out)[to + columns[r]] = values[r];
          } else {
            static_cast<std::uint16_t*>(args.out)[to + columns[r]] = narrow_bf16(values[r]);
          }
        }
      }
    }
  }
}

}  // namespace narrow

#endif

}  // namespace m3::ops::cuda
