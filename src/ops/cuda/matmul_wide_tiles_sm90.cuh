// The products of matmul.h for many rows of x on Hopper: yᵀ = W · xᵀ with wgmma.
//
// Two blocks of threads, a cluster, sum 256 rows of W by tiles of items. Each block has two warpgroups that multiply and a
// third of single warps: some keep rings of columns filled by tensor copies, one works out the tiles and what multiplies
// their results. Tiles of items are cut to what an expert has, in steps of 8.
//   One list with bf16 (matmul_sm90.cuh): W is the operand from shared memory. The blocks take the same rows of W with
//     half of the items each, up to 152, and each copies half of the weights to both. A warpgroup has 128 rows, two
//     products of 64.
//   Others (matmul_widened_sm90.cuh): W is widened into registers, or merely loaded, a k16 ahead of the tensor cores. The
//     blocks take the same items with 128 rows of W each, so that a weight is widened once for all of them, and each
//     copies half of the items to both. A warpgroup has 64 rows.
// This file: what both have in common, the tiles and their tables.
#pragma once

#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/matmul_sm90.h"
#include "src/ops/cuda/wgmma_items.cuh"

namespace m3::ops::cuda {

// How results leave: rounded, rounded before and after gelu, as they are, or two parts through the activation.
enum class WideStore { halves, gelu, floats, activated };

inline constexpr int wide_boxes = 19;

struct WideArgs {
  // Of 8, 16, … 152 rows: a box costs 75 ns whatever it brings, so that a step of x is one. A launch has those of the
  // widths that it copies, least_eights … most_eights.
  TensorMap x_boxes[wide_boxes];
  int least_eights, most_eights;
  WeightMaps weights[max_parts];
  MatmulArgs args;
  int row_tiles;   // of all parts
  int item_pairs;  // of a list without groups: tiles of items / blocks of a cluster
  int vector_stores;
};

inline constexpr int wide_threads = 3 * 128;
inline constexpr int wide_cluster = 2;  // blocks

// A tile's table: rows of the result and factors of its items, factors of its rows of W, the place.
template <int Items, int Rows>
struct TileTable {
  static constexpr int token_rows = 0;
  static constexpr int token_factors = Items * 4;
  static constexpr int row_factors = 2 * Items * 4;
  static constexpr int place = row_factors + Rows * 4;
  static constexpr int bytes = place + 32;
  static_assert(bytes % 16 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// One tile: rows of W of a part of a group, and the items of this block.
struct Place {
  int group, part, row;  // activated: rows of both parts
  int begin, count;
  int copied;  // items rounded up to whole boxes of 8
};

// The tiles of this block's cluster, in an order in which the clusters that run at a time share W and x in the L2.
// Layout::by_rows: what the blocks of a cluster divide, rows of W or items.
template <typename Layout, WideStore Kind>
class Walk {
 public:
  __device__ Walk() : unit_(static_cast<int>(blockIdx.x) / wide_cluster) {}
  __device__ bool next(const WideArgs& wide, int rank, Place& place) {
    const MatmulArgs& args = wide.args;
    int items = args.items, pairs = wide.item_pairs, pair = 0, tile = 0;
    place.group = 0;
    place.begin = 0;
    if (args.groups > 0) {
      for (;; ++group_) {
        if (group_ == args.groups) return false;
        place.begin = args.group_begin[group_];
        items = args.group_begin[group_ + 1] - place.begin;
        pairs = (items + Layout::cluster_items - 1) / Layout::cluster_items;
        if (unit_ < first_ + pairs * wide.row_tiles) break;
        first_ += pairs * wide.row_tiles;
      }
      tile = (unit_ - first_) / pairs;
      pair = (unit_ - first_) % pairs;
      place.group = group_;
    } else {
      if (unit_ >= pairs * wide.row_tiles) return false;
      constexpr int band = 8;
      const int first = unit_ / (band * wide.row_tiles) * band;
      const int wide_band = min(band, pairs - first);
      const int inside = unit_ % (band * wide.row_tiles);
      tile = inside / wide_band;
      pair = first + inside % wide_band;
    }
    // The items' eights are spread evenly over the tiles.
    const int eights = (items + 7) / 8;
    const int tiles = Layout::by_rows ? pairs : pairs * wide_cluster;
    const int index = Layout::by_rows ? pair : pair * wide_cluster + rank;
    const int each = eights / tiles;
    const int more = eights % tiles;
    const int start = 8 * (index * each + min(index, more));
    place.begin += start;
    place.copied = 8 * (each + (index < more ? 1 : 0));
    place.count = max(0, min(place.copied, items - start));
    place.part = 0;
    if constexpr (Kind == WideStore::activated) {
      place.row = tile * (wide_rows / 2);
    } else {
      for (; place.part + 1 < args.parts; ++place.part) {
        const int of_part = (args.inline_parts[place.part].rows + wide_rows - 1) / wide_rows;
        if (tile < of_part) break;
        tile -= of_part;
      }
      place.row = tile * wide_rows;
    }
    if constexpr (Layout::by_rows) place.row += rank * (Kind == WideStore::activated ? 64 : 128);
    unit_ += static_cast<int>(gridDim.x) / wide_cluster;
    return true;
  }

 private:
  int unit_, group_ = 0, first_ = 0;
};

// A tile's blocks of 64 rows of W: of one part, or gate and up in turn.
template <WideStore Kind>
__device__ inline int part_of_block(int block, int part) {
  return Kind == WideStore::activated ? block % 2 : part;
}
template <WideStore Kind>
__device__ inline int row_of_block(int block, int row) {
  return row + 64 * (Kind == WideStore::activated ? block / 2 : block);
}
__device__ inline const WeightPart* part_in(const MatmulArgs& args, int group, int part) {
  return args.groups > 0 ? args.table + group * args.parts + part : args.inline_parts + part;
}

template <int Stages>
struct Ring {
  int stage = 0;
  unsigned phase = 0;
  __device__ void step() {
    if (++stage == Stages) stage = 0, phase ^= 1;
  }
  __device__ static int before(int stage) { return (stage == 0 ? Stages : stage) - 1; }
};

__device__ inline void write_place(std::uint32_t at, const Place& place, bool more) {
  const int words[] = {place.group, place.part, place.row, place.begin, place.count, place.copied, more ? 1 : 0};
#pragma unroll
  for (int i = 0; i < 7; ++i) store_word(at + i * 4, static_cast<std::uint32_t>(words[i]));
}
// False behind the last tile.
__device__ inline bool read_place(std::uint32_t at, Place& place) {
  const uint4 first = load_words4(at);
  place.group = static_cast<int>(first.x);
  place.part = static_cast<int>(first.y);
  place.row = static_cast<int>(first.z);
  place.begin = static_cast<int>(first.w);
  const uint4 second = load_words4(at + 16);
  place.count = static_cast<int>(second.x);
  place.copied = static_cast<int>(second.y);
  return second.z != 0;
}

inline constexpr int multiplying_warps = 8;  // the third warpgroup's follow

// The same, but nothing that comes of it is computed ahead of here and kept: registers are short during the products.
__device__ inline int fresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The block's shared memory, by its addresses there: a layout's own places, then what all layouts have.
template <typename Layout>
struct Shared {
  std::uint32_t base;
  __device__ std::uint32_t at(int place) const { return base + place; }
  __device__ std::uint32_t staging(int group) const { return at(Layout::staging + group * 2 * Layout::staging_bytes); }
  __device__ std::uint32_t table(int turn) const { return at(Layout::tables + turn * Layout::Table::bytes); }
  __device__ std::uint32_t barrier(int index) const { return at(Layout::barriers + index * 8); }
  __device__ std::uint32_t table_full(int turn) const { return barrier(turn); }
  __device__ std::uint32_t table_empty(int turn) const { return barrier(2 + turn); }
};

// The tables are read by the threads that multiply and by those that copy.
template <typename Layout>
__device__ inline void init_tables(const Shared<Layout>& shared, unsigned copying) {
  for (int turn = 0; turn < 2; ++turn) {
    init_barrier(shared.table_full(turn), warp_size);
    init_barrier(shared.table_empty(turn), multiplying_warps * warp_size + copying);
  }
}

// One warp works out the tiles: two at a time are ready. `extra`: a factor of all results.
template <typename Layout, WideStore Kind>
__device__ inline void schedule(const WideArgs& wide, const Shared<Layout>& shared, unsigned rank, float extra) {
  using Table = typename Layout::Table;
  const MatmulArgs& args = wide.args;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const bool weighted = args.store == Store::weighted || args.store == Store::weighted_halves;
  Walk<Layout, Kind> walk;
  for (int turn = 0;; ++turn) {
    Place place = {};
    const bool more = walk.next(wide, static_cast<int>(rank), place);
    const std::uint32_t table = shared.table(turn % 2);
    wait_for(shared.table_empty(turn % 2), (turn / 2 % 2) ^ 1);
    if (lane == 0) write_place(table + Table::place, place, more);
    if (more) {
#pragma unroll
      for (int i = lane; i < Layout::items; i += warp_size) {
        const int item = place.begin + i;
        if (i < place.count) {
          const int row = args.result_by_list ? args.list[item] : item;
          float factor = weighted ? args.scaling * args.pair_weights[row] : 1.0f;
          if (args.token_scales != nullptr) factor *= args.token_scales[item];
          store_word(table + Table::token_rows + i * 4, static_cast<std::uint32_t>(row));
          store_float(table + Table::token_factors + i * 4, factor);
        }
      }
      const int rows = args.inline_parts[place.part].rows;
#pragma unroll
      for (int block = 0; block < Layout::blocks; ++block) {
        const WeightPart* weight = part_in(args, place.group, part_of_block<Kind>(block, place.part));
        const float scale = weight->tensor_scale;
        const float* row_scales = weight->row_scales;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = min(row_of_block<Kind>(block, place.row) + lane + i * warp_size, rows - 1);
          store_float(table + Table::row_factors + (block * 64 + lane + i * warp_size) * 4,
                      extra * (row_scales != nullptr ? scale * row_scales[row] : scale));
        }
      }
    }
    arrive(shared.table_full(turn % 2));
    if (!more) break;
  }
}

// What copies boxes of `rows` rows of x, whole eights.
__device__ inline const TensorMap* x_box(const WideArgs& wide, int rows) { return wide.x_boxes + rows / 8 - 1; }
__device__ inline void prefetch_boxes(const WideArgs& wide) {
  for (int eights = wide.least_eights; eights <= wide.most_eights; ++eights) prefetch_map(x_box(wide, 8 * eights));
}

// This warp is done with a stage: told to both blocks, which copy into it.
__device__ inline void release(std::uint32_t empty, unsigned rank) {
  if (threadIdx.x % warp_size == 0) {
    arrive(empty);
    arrive_there(empty, rank ^ 1);
  }
}

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
