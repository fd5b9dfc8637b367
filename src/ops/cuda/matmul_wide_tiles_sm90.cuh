// The products of matmul.h for many rows of x on Hopper: yᵀ = W · xᵀ with wgmma.
//
// A block of threads sums 256 rows of W by up to 152 items: two warpgroups of 128 rows (two products of 64 rows each),
// and a third of single warps: one keeps a ring of steps of 64 columns filled by tensor copies, one works out the tiles
// and what multiplies their results. Two blocks, a cluster, take the same rows of W with different items; each copies
// half of the weights to both. W is the operand from shared memory
// where it is bf16, else it is widened into registers, a k16 ahead of the tensor cores. Tiles of items are cut to what an
// expert has, in steps of 8.
#pragma once

#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/matmul_sm90.h"
#include "src/ops/cuda/wgmma_items.cuh"

namespace m3::ops::cuda {

// How results leave: rounded, rounded before and after gelu, as they are, or two parts through the activation.
enum class WideStore { halves, gelu, floats, activated };

struct WideArgs {
  TensorMap x_boxes[2];  // of 64 and of 8 rows
  WeightMaps weights[max_parts];
  MatmulArgs args;
  int row_tiles;   // of all parts
  int item_pairs;  // of a list without groups: tiles of items / blocks of a cluster
  int vector_stores;
};

inline constexpr int wide_threads = 3 * 128;
inline constexpr int wide_cluster = 2;  // blocks
inline constexpr int wide_octet = 8;    // steps that share a copy of scales

template <WeightFormat Format>
struct WideLayout {
  static constexpr bool in_shared = Format == WeightFormat::bf16;
  static constexpr int block_bytes = 64 * step_bytes(Format);  // of W, 64 rows
  static constexpr int weight_bytes = 4 * block_bytes;
  static constexpr int stage_bytes = weight_bytes + wide_items * 128;
  static constexpr int stages = Format == WeightFormat::bf16 ? 4 : step_bytes(Format) == 64 ? 5 : 6;
  static constexpr int scale_row = Format == WeightFormat::nvfp4 ? 32 : Codec<Format>::scaled ? 16 : 0;
  static constexpr int scale_bytes = wide_rows * scale_row;  // of an octet
  static constexpr int staging_bytes = 16 * (128 * 2 + 16);  // of a warpgroup, twice
  // A tile's table: rows of the result and factors of its items, factors of its rows of W, the place.
  static constexpr int token_rows = 0;
  static constexpr int token_factors = wide_items * 4;
  static constexpr int row_factors = 2 * wide_items * 4;
  static constexpr int place = row_factors + wide_rows * 4;
  static constexpr int table_bytes = place + 32;
  // Places.
  static constexpr int scales = stages * stage_bytes;
  static constexpr int staging = scales + 2 * scale_bytes;
  static constexpr int tables = staging + 4 * staging_bytes;
  static constexpr int barriers = tables + 2 * table_bytes;
  static constexpr int bytes = barriers + (2 * stages + 4) * 8 + 896;  // to align 128 bytes by to 1024
  static_assert(table_bytes % 16 == 0);
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
template <WideStore Kind>
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
        pairs = (items + wide_items * wide_cluster - 1) / (wide_items * wide_cluster);
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
    const int tiles = pairs * wide_cluster;
    const int index = pair * wide_cluster + rank;
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
};

// The block's shared memory, by its addresses there.
template <WeightFormat Format>
struct Shared {
  using Layout = WideLayout<Format>;
  std::uint32_t base;
  __device__ std::uint32_t weights(int stage) const { return base + stage * Layout::stage_bytes; }
  __device__ std::uint32_t x(int stage) const { return weights(stage) + Layout::weight_bytes; }
  __device__ std::uint32_t scales(int slot) const { return base + Layout::scales + slot * Layout::scale_bytes; }
  __device__ std::uint32_t staging(int group) const {
    return base + Layout::staging + group * 2 * Layout::staging_bytes;
  }
  __device__ std::uint32_t table(int turn) const { return base + Layout::tables + turn * Layout::table_bytes; }
  __device__ std::uint32_t full(int stage) const { return base + Layout::barriers + stage * 8; }
  __device__ std::uint32_t empty(int stage) const { return full(Layout::stages + stage); }
  __device__ std::uint32_t table_full(int turn) const { return full(2 * Layout::stages + turn); }
  __device__ std::uint32_t table_empty(int turn) const { return full(2 * Layout::stages + 2 + turn); }
};
inline constexpr int table_readers = 8 + 1;  // warps that multiply, and the copying one

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

// The same, but nothing that comes of it is computed ahead of here and kept: registers are short during the products.
__device__ inline int fresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// What a thread adds up: two blocks of 64 rows of W.
using Sums = float[2][wide_items / 2];

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
