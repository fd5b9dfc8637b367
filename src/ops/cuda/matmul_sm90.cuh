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

// --- the warps of the third warpgroup --------------------------------------------------------------------------------

// Works out the tiles: two at a time are ready.
template <WeightFormat Format, WideStore Kind>
__device__ inline void schedule(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  const MatmulArgs& args = wide.args;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const bool weighted = args.store == Store::weighted || args.store == Store::weighted_halves;
  Walk<Kind> walk;
  for (int turn = 0;; ++turn) {
    Place place = {};
    const bool more = walk.next(wide, static_cast<int>(rank), place);
    const std::uint32_t table = shared.table(turn % 2);
    wait_for(shared.table_empty(turn % 2), (turn / 2 % 2) ^ 1);
    if (lane == 0) write_place(table + Layout::place, place, more);
    if (more) {
#pragma unroll
      for (int i = lane; i < wide_items; i += warp_size) {
        const int item = place.begin + i;
        if (i < place.count) {
          const int row = args.result_by_list ? args.list[item] : item;
          float factor = weighted ? args.scaling * args.pair_weights[row] : 1.0f;
          if (args.token_scales != nullptr) factor *= args.token_scales[item];
          store_word(table + Layout::token_rows + i * 4, static_cast<std::uint32_t>(row));
          store_float(table + Layout::token_factors + i * 4, factor);
        }
      }
      const int rows = args.inline_parts[place.part].rows;
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        const WeightPart* weight = part_in(args, place.group, part_of_block<Kind>(block, place.part));
        const float scale = weight->tensor_scale;
        const float* row_scales = weight->row_scales;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = min(row_of_block<Kind>(block, place.row) + lane + i * warp_size, rows - 1);
          store_float(table + Layout::row_factors + (block * 64 + lane + i * warp_size) * 4,
                      row_scales != nullptr ? scale * row_scales[row] : scale);
        }
      }
    }
    arrive(shared.table_full(turn % 2));
    if (!more) break;
  }
}

// One thread keeps the ring filled.
template <WeightFormat Format, WideStore Kind>
__device__ inline void produce(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  constexpr int step_elements = Format == WeightFormat::bf16 ? step_columns : step_bytes(Format);
  const MatmulArgs& args = wide.args;
  const int steps = args.columns / step_columns;
  const int first_block = static_cast<int>(rank) * 2;  // copied to both blocks of the cluster
  Place place;
  Ring<Layout::stages> ring;
  int octet = 0;
  prefetch_map(&wide.x_boxes[0]);
  prefetch_map(&wide.x_boxes[1]);
  for (int turn = 0;; ++turn) {
    wait_for(shared.table_full(turn % 2), turn / 2 % 2);
    if (!read_place(shared.table(turn % 2) + Layout::place, place)) break;
    arrive(shared.table_empty(turn % 2));
    const WeightMaps* maps[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int part = part_of_block<Kind>(i, place.part);
      maps[i] = args.groups > 0 ? args.maps + place.group * args.parts + part : wide.weights + part;
    }
    for (int step = 0; step < steps; ++step) {
      wait_for(shared.empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = shared.full(ring.stage);
      const bool scales_too = Layout::scale_row > 0 && step % wide_octet == 0;
      expect(full,
             static_cast<unsigned>(Layout::weight_bytes + place.copied * 128 + (scales_too ? Layout::scale_bytes : 0)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int block = first_block + i;
        const std::uint32_t to = shared.weights(ring.stage) + block * Layout::block_bytes;
        const int row = row_of_block<Kind>(block, place.row);
        copy_box_to(3, to, &maps[i % 2]->values, step * step_elements, row, full);
      }
      if constexpr (Layout::scale_row > 0) {
        if (scales_too) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int block = first_block + i;
            const std::uint32_t to = shared.scales(octet & 1) + block * 64 * Layout::scale_row;
            const int row = row_of_block<Kind>(block, place.row);
            const int column = step / wide_octet * Layout::scale_row;
            copy_box_to(3, to, &maps[i % 2]->scales, column, row, full);
          }
          ++octet;
        }
      }
      const std::uint32_t x = shared.x(ring.stage);
      int at = 0;
      for (; at + 64 <= place.copied; at += 64) {
        copy_box(x + at * 128, &wide.x_boxes[0], step * step_columns, place.begin + at, full);
      }
      for (; at < place.copied; at += 8) {
        copy_box(x + at * 128, &wide.x_boxes[1], step * step_columns, place.begin + at, full);
      }
      ring.step();
    }
  }
}

// --- the products ----------------------------------------------------------------------------------------------------

// This warp is done with a stage: told to all blocks that copy into it.
__device__ inline void release(std::uint32_t empty, unsigned rank) {
  if (threadIdx.x % warp_size == 0) {
    arrive(empty);
    arrive_there(empty, rank ^ 1);
  }
}

using Sums = float[2][wide_items / 2];

// W from shared memory.
template <int N, WeightFormat Format>
__device__ inline void multiply_shared(Sums& sums, const Shared<Format>& shared, Ring<WideLayout<Format>::stages>& ring,
                                       int steps, int group, unsigned rank) {
  using Layout = WideLayout<Format>;
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for(shared.full(ring.stage), ring.phase);
    const std::uint64_t x = rows_descriptor(shared.x(ring.stage));
    const std::uint64_t w = rows_descriptor(shared.weights(ring.stage) + group * 2 * Layout::block_bytes);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        WgmmaItems<N>::run(sums[m], descriptor_at(w, m * Layout::block_bytes + s * 32), descriptor_at(x, s * 32), 1);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release(shared.empty(last), rank);
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release(shared.empty(last), rank);
}

// What multiplies one row's numbers of a step. A code of e8m0 is a factor's exponent as it is: 0 stands for 0 then, not
// for 2^-127, and 255 for infinity.
template <WeightFormat Format>
struct RowScale {
  std::uint32_t factors[Format == WeightFormat::nvfp4 ? 2 : 1];  // pairs: of the k16s in turn, or of the step's halves

  __device__ void load(std::uint32_t row, int step) {
    const int at = step % wide_octet;
    if constexpr (Format == WeightFormat::nvfp4) {
      spread_e4m3(load_word(row + at * 4), factors[0], factors[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) factors[i] = multiply_bf16(factors[i], 0x7b807b80u);  // 2^120
    } else if constexpr (Codec<Format>::scaled) {
      factors[0] = __byte_perm(load_half(row + at * 2), 0, 0x4140) << 7;
    }
  }
  // Of columns 16 s … of the step.
  __device__ void apply(std::uint32_t& first, std::uint32_t& second, int s) const {
    if constexpr (step_bytes(Format) == 64) {
      first = multiply_bf16(first, 0x7b807b80u);  // what `spread_e4m3` leaves out
      second = multiply_bf16(second, 0x7b807b80u);
    }
    if constexpr (Codec<Format>::scaled) {
      const bool low = Format == WeightFormat::nvfp4 ? s % 2 == 0 : s < 2;
      const std::uint32_t factor =
          __byte_perm(factors[Format == WeightFormat::nvfp4 ? s / 2 : 0], 0, low ? 0x1010 : 0x3232);
      first = multiply_bf16(first, factor);
      second = multiply_bf16(second, factor);
    }
  }
};

// The bytes of one row with a lane's numbers of a k16: columns 16 s + 2 j, + 1, and + 8, + 9. `row`: for 8-bit formats
// with the lane's own offsets (see multiply_widened), swizzled; `offset`: in whole eights of rows.
template <WeightFormat Format>
__device__ inline uint2 load_row(std::uint32_t row, int s, int offset) {
  if constexpr (step_bytes(Format) == 64) {
    const std::uint32_t from = (row ^ (16u * static_cast<unsigned>(s))) + offset;
    return {load_word(from), load_word(from + 8)};
  } else {
    return load_words2(row + 8 * s + offset);
  }
}
// Those numbers, without scale; `pick` is pick_of(j).
template <WeightFormat Format>
__device__ inline unsigned pick_of(int j) {
  if (step_bytes(Format) == 64) return (j & 1) != 0 ? 0x7632 : 0x5410;
  return static_cast<unsigned>(j) * 0x11u + 0x40u;
}
template <WeightFormat Format>
__device__ inline void widen_row(const uint2& raw, unsigned pick, std::uint32_t& first, std::uint32_t& second) {
  const std::uint32_t codes = __byte_perm(raw.x, raw.y, pick);
  if constexpr (step_bytes(Format) == 64) {
    spread_e4m3(codes, first, second);
  } else {
    // Four e2m1 codes choose from tables of the halves of bf16: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    const std::uint32_t places = codes & 0x7777u;
    const std::uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, places);
    std::uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, places);
    // A code with its sign bit chooses the sign of a byte, eight times over: 0xff, others the byte, 0x80.
    high |= (choose_bytes(0x80808080u, codes) << 1) & 0x80808080u;
    first = __byte_perm(low, high, 0x5140);
    second = __byte_perm(low, high, 0x7362);
  }
}

// W widened into registers.
template <int N, WeightFormat Format>
__device__ inline void multiply_widened(Sums& sums, const Shared<Format>& shared,
                                        Ring<WideLayout<Format>::stages>& ring, int steps, unsigned rank, int& octet) {
  using Layout = WideLayout<Format>;
  constexpr int row_bytes = step_bytes(Format);
  const int thread = fresh(static_cast<int>(threadIdx.x));
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const std::uint32_t row = thread / 128 * 128 + thread % 128 / warp_size * 16 + g;
  // Pieces of 16 bytes of rows of 64 are swizzled by rows / 2 % 4 when copied.
  const std::uint32_t row_at = row * row_bytes + (row_bytes == 64 ? (g >> 1 & 3) * 16 + 4 * (j >> 1) : 0);
  const unsigned pick = pick_of<Format>(j);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    if (step % wide_octet == 0) ++octet;
    wait_for(shared.full(ring.stage), ring.phase);
    const std::uint32_t weights = shared.weights(ring.stage) + row_at;
    const std::uint64_t x = rows_descriptor(shared.x(ring.stage));
    RowScale<Format> scales[2][2];
    uint2 raw[2][2];
    const auto load = [&](int s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) raw[m][r] = load_row<Format>(weights, s, (m * 64 + r * 8) * row_bytes);
      }
    };
    load(0);
    if constexpr (Layout::scale_row > 0) {
      const std::uint32_t slot = shared.scales((octet - 1) & 1) + row * Layout::scale_row;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) scales[m][r].load(slot + (m * 64 + r * 8) * Layout::scale_row, step);
      }
    }
    std::uint32_t w[2][2][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          std::uint32_t(&to)[4] = w[s % 2][m];
          widen_row<Format>(raw[m][r], pick, to[r], to[2 + r]);
          scales[m][r].apply(to[r], to[2 + r], s);
        }
      }
      if (s < 3) load(s + 1);
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < 2; ++m) WgmmaItems<N>::run(sums[m], w[s % 2][m], descriptor_at(x, s * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (s == 0 && step > 0) release(shared.empty(last), rank);
    }
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release(shared.empty(last), rank);
}

// A tile without items of this block: stages go by.
template <WeightFormat Format>
__device__ inline void pass_by(const Shared<Format>& shared, Ring<WideLayout<Format>::stages>& ring, int steps,
                               unsigned rank, int& octet) {
  for (int step = 0; step < steps; ++step) {
    if (step % wide_octet == 0) ++octet;
    wait_for(shared.full(ring.stage), ring.phase);
    __syncwarp();
    release(shared.empty(ring.stage), rank);
    ring.step();
  }
}

// --- results ---------------------------------------------------------------------------------------------------------

// x · Φ(x), by a Chebyshev fit of erfc whose relative error stays under 2e-7 (bf16 comes of it), quicker than erfcf.
__device__ inline float gelu(float x) {
  const float z = fabsf(x) * 0.70710678f;
  const float t = __fdividef(1.0f, fmaf(0.5f, z, 1.0f));
  float fit = fmaf(t, 0.17087277f, -0.82215223f);
  fit = fmaf(t, fit, 1.48851587f);
  fit = fmaf(t, fit, -1.13520398f);
  fit = fmaf(t, fit, 0.27886807f);
  fit = fmaf(t, fit, -0.18628806f);
  fit = fmaf(t, fit, 0.09678418f);
  fit = fmaf(t, fit, 0.37409196f);
  fit = fmaf(t, fit, 1.00002368f);
  fit = fmaf(t, fit, -1.26551223f);
  const float tail = t * __expf(fmaf(-z, z, fit));  // erfc(z)
  return x * (0.5f * (x < 0 ? tail : 2.0f - tail));
}

// As `activate`, with the machine's own exponential and quotient: the result is rounded to bf16.
__device__ inline float activate_fast(float gate, float up, float alpha, float limit, float beta) {
  const float g = gate > limit ? limit : gate;  // NaN stays
  const float u = up < -limit ? -limit : (up > limit ? limit : up);
  return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + beta);
}

// The sums of 16 items at a time through shared memory, then whole runs of a result's row by 16 bytes.
template <WideStore Kind, WeightFormat Format>
__device__ inline void store(const Sums& sums, const WideArgs& wide, const Shared<Format>& shared, int turn) {
  using Layout = WideLayout<Format>;
  constexpr bool activated = Kind == WideStore::activated;
  constexpr int chunk = Kind == WideStore::floats ? 8 : 16;   // items
  constexpr int run = activated ? 64 : 128;                   // rows of W of a warpgroup's result
  constexpr int element = Kind == WideStore::floats ? 4 : 2;  // bytes
  constexpr int pitch = run * element + 16;
  constexpr int pieces = run * element / 16;
  const MatmulArgs& args = wide.args;
  const int block_thread = fresh(static_cast<int>(threadIdx.x));
  const int thread = block_thread % 128;
  const int group = block_thread / 128;
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const std::uint32_t table = shared.table(turn);
  Place place;
  read_place(table + Layout::place, place);
  const int first_row = place.row + group * run;
  const int rows = args.inline_parts[place.part].rows;
  const int column = args.inline_parts[place.part].first_column + first_row;
  float factors[2][2], bias[2][2] = {};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = m * 64 + warp * 16 + r * 8 + g;
      factors[m][r] = load_float(table + Layout::row_factors + (group * 128 + local) * 4);
      if (!activated && args.bias != nullptr && first_row + local < rows) bias[m][r] = args.bias[column + local];
    }
  }
  const std::uint32_t staging = shared.staging(group);
  // Where this lane writes: matrix `lane / 8` of four (or two), or its own numbers.
  const int matrix = lane / 8;
  const std::uint32_t to =
      staging + (Kind == WideStore::floats
                     ? 2 * j * pitch + (warp * 16 + g) * 4
                     : lane % 8 * pitch + ((activated ? 0 : matrix / 2 * 64) + warp * 16 + matrix % 2 * 8) * 2);
  const std::uint32_t item_factors = table + Layout::token_factors + 2 * j * 4;
  const std::uint32_t from = staging + thread / pieces * pitch + thread % pieces * 16;
  const int piece_row = first_row + thread % pieces * (16 / element);
  const bool whole = wide.vector_stores != 0 && piece_row + 16 / element <= rows;
  auto* const out =
      static_cast<std::byte*>(args.out) + (column + thread % pieces * (16 / element)) * std::int64_t{element};
  const std::int64_t stride = args.out_stride * element;
  constexpr int together = 128 / pieces;  // items whose runs the warpgroup copies at a time
#pragma unroll
  for (int c = 0; c < (wide_items + chunk - 1) / chunk; ++c) {
    if (c * chunk >= place.count) break;
    const int half_staging = c % 2 * Layout::staging_bytes;
#pragma unroll
    for (int half = 0; half < chunk / 8; ++half) {
      const int t = c * (chunk / 8) + half;
      if (t >= wide_items / 8) break;
      const uint2 both = load_words2(item_factors + t * 32);
      const float factor[2] = {__uint_as_float(both.x), __uint_as_float(both.y)};
      float values[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[m][i] = fmaf(sums[m][t * 4 + i], factors[m][i / 2] * factor[i % 2], bias[m][i / 2]);
        }
      }
      if constexpr (Kind == WideStore::floats) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            store_float(to + half_staging + i % 2 * pitch + (m * 64 + i / 2 * 8) * 4, values[m][i]);
          }
        }
      } else if constexpr (!activated) {
        store_matrices_transposed(to + half_staging + half * 8 * pitch, pack_bf16(values[0][0], values[0][1]),
                                  pack_bf16(values[0][2], values[0][3]), pack_bf16(values[1][0], values[1][1]),
                                  pack_bf16(values[1][2], values[1][3]));
      } else {
        float inner[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          inner[i] =
              activate_fast(round_bf16(values[0][i]), round_bf16(values[1][i]), args.alpha, args.limit, args.beta);
        }
        store_matrices_transposed_two(to + half_staging + half * 8 * pitch, pack_bf16(inner[0], inner[1]),
                                      pack_bf16(inner[2], inner[3]));
      }
    }
    sync_threads_of(1 + group, 128);
#pragma unroll
    for (int i = 0; i < chunk / together; ++i) {
      const int item = c * chunk + i * together + thread / pieces;
      if (item >= place.count) continue;
      const std::uint32_t piece = from + half_staging + i * together * pitch;
      auto* const result = out + static_cast<int>(load_word(table + Layout::token_rows + item * 4)) * stride;
      uint4 numbers = load_words4(piece);
      if constexpr (Kind == WideStore::gelu) {
        numbers = {pack_bf16(gelu(low_bf16(numbers.x)), gelu(high_bf16(numbers.x))),
                   pack_bf16(gelu(low_bf16(numbers.y)), gelu(high_bf16(numbers.y))),
                   pack_bf16(gelu(low_bf16(numbers.z)), gelu(high_bf16(numbers.z))),
                   pack_bf16(gelu(low_bf16(numbers.w)), gelu(high_bf16(numbers.w)))};
      }
      if (whole) {
        *reinterpret_cast<uint4*>(result) = numbers;
      } else {
        const std::uint32_t words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
        for (int e = 0; e < 16 / element; ++e) {
          if (piece_row + e >= rows) continue;
          if constexpr (element == 4) {
            reinterpret_cast<std::uint32_t*>(result)[e] = words[e];
          } else {
            reinterpret_cast<std::uint16_t*>(result)[e] = static_cast<std::uint16_t>(words[e / 2] >> (e % 2 * 16));
          }
        }
      }
    }
  }
  sync_threads_of(1 + group, 128);  // before the staging is written again
}

template <WeightFormat Format, WideStore Kind>
__device__ inline void consume(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  const int steps = wide.args.columns / step_columns;
  const int group = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 128, 0);
  Ring<Layout::stages> ring;
  int octet = 0;
  for (int turn = 0;; ++turn) {
    wait_for(shared.table_full(turn % 2), turn / 2 % 2);
    const std::uint32_t place = shared.table(turn % 2) + Layout::place;
    if (load_word(place + 24) == 0) break;
    const int copied = static_cast<int>(load_word(place + 20));
    if (copied == 0) {
      pass_by(shared, ring, steps, rank, octet);
    } else {
      Sums sums = {};  // without it all widths' sums would be alive all along
      const auto multiply = [&]<int N>() {
        if constexpr (Layout::in_shared) {
          multiply_shared<N>(sums, shared, ring, steps, group, rank);
        } else {
          multiply_widened<N>(sums, shared, ring, steps, rank, octet);
        }
      };
      if constexpr (Layout::in_shared) {
        switch (copied <= 96 ? (copied + 31) / 32 * 32 : copied) {
          case 32: multiply.template operator()<32>(); break;
          case 64: multiply.template operator()<64>(); break;
          case 96: multiply.template operator()<96>(); break;
          case 104:
          case 112: multiply.template operator()<112>(); break;
          case 120: multiply.template operator()<120>(); break;
          case 128: multiply.template operator()<128>(); break;
          case 136: multiply.template operator()<136>(); break;
          case 144: multiply.template operator()<144>(); break;
          default: multiply.template operator()<152>(); break;
        }
      } else if (copied <= 64) {  // with all widths ptxas would serialise them, short of registers
        multiply.template operator()<64>();
      } else if (copied <= 120) {
        multiply.template operator()<120>();
      } else if (copied <= 128) {
        multiply.template operator()<128>();
      } else if (copied <= 136) {
        multiply.template operator()<136>();
      } else {
        multiply.template operator()<152>();
      }
      pin(sums[0]);
      pin(sums[1]);
      store<Kind>(sums, wide, shared, turn % 2);
    }
    __syncwarp();
    if (threadIdx.x % warp_size == 0) arrive(shared.table_empty(turn % 2));
  }
}

}  // namespace wide

#endif

template <WeightFormat Format, WideStore Kind>
__global__ void __launch_bounds__(wide_threads, 1) matmul_wide_sm90(const __grid_constant__ WideArgs wide_args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WideLayout<Format>;
  wait_for_previous();
  const MatmulArgs& args = wide_args.args;
  const wide::Shared<Format> shared{(shared_address(dynamic_shared()) + 1023u) & ~1023u};
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned rank = cluster_rank();
  for (int i = thread; i < args.groups * args.parts; i += wide_threads) {
    acquire_map(&args.maps[i].values);
    if constexpr (Layout::scale_row > 0) acquire_map(&args.maps[i].scales);
  }
  if (thread == 0) {
    for (int stage = 0; stage < Layout::stages; ++stage) {
      init_barrier(shared.full(stage), 1);
      init_barrier(shared.empty(stage), 8 * wide_cluster);  // warps that multiply
    }
    for (int turn = 0; turn < 2; ++turn) {
      init_barrier(shared.table_full(turn), warp_size);
      init_barrier(shared.table_empty(turn), wide::table_readers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  sync_cluster();
  const int warp = __shfl_sync(all_lanes, thread / warp_size, 0);
  if (warp >= 8) {
    give_registers<40>();
    if (warp == 8) {
      if (thread % warp_size == 0) wide::produce<Format, Kind>(wide_args, shared, rank);
    } else if (warp == 9) {
      wide::schedule<Format, Kind>(wide_args, shared, rank);
    }
    __syncwarp();
  } else {
    take_registers<232>();
    wide::consume<Format, Kind>(wide_args, shared, rank);
  }
  // No block leaves while another still copies or arrives into its memory.
  sync_cluster();
#endif
}

template <WeightFormat Format, WideStore Kind>
cudaError_t launch_wide(const WideArgs& wide, int units, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_wide_sm90<Format, Kind>;
  constexpr int bytes = WideLayout<Format>::bytes;
  static_assert(bytes <= 232448);
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = wide_cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(wide_cluster);
  config.blockDim = dim3(wide_threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  // Clusters stay: more than run at a time would take their turns afterwards.
  static const int most = [&] {
    int count = 0;
    return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess && count > 0 ? count
                                                                                               : 132 / wide_cluster;
  }();
  config.gridDim = dim3(static_cast<unsigned>((units < most ? units : most) * wide_cluster));
  return cudaLaunchKernelEx(&config, kernel, wide);
}

// The number of tiles of items that takes the fewest columns of the tensor cores in all, clusters working in step.
inline int choose_item_pairs(int items, int row_tiles, int clusters) {
  const int eights = (items + 7) / 8;
  const int least = (items + wide_items * wide_cluster - 1) / (wide_items * wide_cluster);
  int best = least;
  long best_cost = -1;
  for (int pairs = least; pairs <= least + least / 2 + 2; ++pairs) {
    const int width = (eights + pairs * wide_cluster - 1) / (pairs * wide_cluster) * 8;
    const long rounds = (static_cast<long>(pairs) * row_tiles + clusters - 1) / clusters;
    const long cost = rounds * (width + 8);  // 8: what a tile costs beside
    if (best_cost < 0 || cost < best_cost) best = pairs, best_cost = cost;
  }
  return best;
}

template <WeightFormat Format>
cudaError_t matmul_wide_of(const MatmulArgs& args, cudaStream_t stream) {
  WideArgs wide;
  wide.args = args;
  for (int i = 0; i < 2; ++i) {
    if (!encode_tensor_map(wide.x_boxes[i], args.x, 2, args.items, args.columns, args.x_stride * 2, i == 0 ? 64 : 8,
                           step_columns, 128)) {
      return cudaErrorInvalidValue;
    }
  }
  const bool activated = args.store == Store::activated;
  wide.row_tiles = 0;
  for (int part = 0; part < args.parts; ++part) {
    const WeightPart& weight = args.inline_parts[part];
    if (args.groups == 0 && !encode_weight(wide.weights[part], weight, args.columns)) return cudaErrorInvalidValue;
    wide.row_tiles += (weight.rows + wide_rows - 1) / wide_rows;
  }
  if (activated) wide.row_tiles = (args.inline_parts[0].rows + wide_rows / 2 - 1) / (wide_rows / 2);
  const int element = args.store == Store::f32 || args.store == Store::weighted ? 4 : 2;
  bool aligned = reinterpret_cast<std::uintptr_t>(args.out) % 16 == 0 && args.out_stride * element % 16 == 0;
  for (int part = 0; part < args.parts; ++part) {
    aligned = aligned && (activated || args.inline_parts[part].first_column * element % 16 == 0);
  }
  wide.vector_stores = aligned ? 1 : 0;
  wide.item_pairs = choose_item_pairs(args.items, wide.row_tiles, 132 / wide_cluster);
  const int pairs =
      args.groups > 0 ? args.items / (wide_items * wide_cluster) + args.groups : wide.item_pairs;  // at most
  const int units = pairs * wide.row_tiles;
  if (activated) return launch_wide<Format, WideStore::activated>(wide, units, stream);
  if (args.gelu) {
    if constexpr (Format == WeightFormat::bf16) return launch_wide<Format, WideStore::gelu>(wide, units, stream);
    return cudaErrorInvalidValue;
  }
  if (element == 4) return launch_wide<Format, WideStore::floats>(wide, units, stream);
  return launch_wide<Format, WideStore::halves>(wide, units, stream);
}

}  // namespace m3::ops::cuda
