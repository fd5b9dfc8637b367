// The products of matmul.h for many rows of x on Hopper: yᵀ = W · xᵀ with wgmma.
//
// A block of threads sums 256 rows of W by up to 152 items: two warpgroups of 128 rows (two products of 64 rows each),
// and a third whose one thread keeps a ring of steps of 64 columns filled by tensor copies. Two blocks, a cluster, take
// the same rows of W with different items; each copies half of the weights to both. W is the operand from shared memory
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
inline constexpr int wide_octet = 8;  // steps that share a copy of scales

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
  // Places.
  static constexpr int scales = stages * stage_bytes;
  static constexpr int staging = scales + 2 * scale_bytes;
  static constexpr int token_factors = staging + 4 * staging_bytes;
  static constexpr int token_rows = token_factors + 2 * wide_items * 4;
  static constexpr int row_factors = token_rows + 2 * wide_items * 4;  // and biases
  static constexpr int tiles = row_factors + 2 * 128 * 8;
  static constexpr int begins = tiles + 2 * 64;
  static constexpr int barriers = (begins + (wide_groups + 1) * 4 + 7) / 8 * 8;
  static constexpr int bytes = barriers + 2 * stages * 8 + 896;  // to align 128 bytes by to 1024
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
template <int Cluster, WideStore Kind>
class Walk {
 public:
  __device__ void begin() {
    unit_ = static_cast<int>(blockIdx.x) / Cluster;
    group_ = first_ = 0;
  }
  __device__ bool next(const WideArgs& wide, const int* begins, int rank, Place& place) {
    const MatmulArgs& args = wide.args;
    int items = args.items, pairs = wide.item_pairs, pair = 0, tile = 0;
    place.group = 0;
    place.begin = 0;
    if (args.groups > 0) {
      for (;; ++group_) {
        if (group_ == args.groups) return false;
        items = begins[group_ + 1] - begins[group_];
        pairs = (items + wide_items * Cluster - 1) / (wide_items * Cluster);
        if (unit_ < first_ + pairs * wide.row_tiles) break;
        first_ += pairs * wide.row_tiles;
      }
      tile = (unit_ - first_) / pairs;
      pair = (unit_ - first_) % pairs;
      place.group = group_;
      place.begin = begins[group_];
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
    const int tiles = pairs * Cluster;
    const int index = pair * Cluster + rank;
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
    unit_ += static_cast<int>(gridDim.x) / Cluster;
    return true;
  }

 private:
  int unit_, group_, first_;
};

// A warpgroup's tile, in shared memory: what it needs beside the products leaves them the registers.
template <int Cluster, WideStore Kind>
struct Tile {
  Walk<Cluster, Kind> walk;
  Place place;
  int more;
};

template <int Stages>
struct Ring {
  int stage = 0;
  unsigned phase = 0;
  __device__ void step() {
    if (++stage == Stages) stage = 0, phase ^= 1;
  }
};

// The block's shared memory.
template <WeightFormat Format>
struct Shared {
  using Layout = WideLayout<Format>;
  std::byte* base;
  __device__ std::byte* weights(int stage) const { return base + stage * Layout::stage_bytes; }
  __device__ std::byte* x(int stage) const { return weights(stage) + Layout::weight_bytes; }
  __device__ std::byte* scales(int slot) const { return base + Layout::scales + slot * Layout::scale_bytes; }
  __device__ std::byte* staging(int group, int half) const {
    return base + Layout::staging + (group * 2 + half) * Layout::staging_bytes;
  }
  __device__ float* token_factors(int group) const {
    return reinterpret_cast<float*>(base + Layout::token_factors) + group * wide_items;
  }
  __device__ int* token_rows(int group) const {
    return reinterpret_cast<int*>(base + Layout::token_rows) + group * wide_items;
  }
  __device__ float2* row_factors(int group) const {
    return reinterpret_cast<float2*>(base + Layout::row_factors) + group * 128;
  }
  template <typename T>
  __device__ T* tile(int group) const {
    static_assert(sizeof(T) <= 64);
    return reinterpret_cast<T*>(base + Layout::tiles + group * 64);
  }
  __device__ int* begins() const { return reinterpret_cast<int*>(base + Layout::begins); }
  __device__ std::uint64_t* full(int stage) const {
    return reinterpret_cast<std::uint64_t*>(base + Layout::barriers) + stage;
  }
  __device__ std::uint64_t* empty(int stage) const { return full(Layout::stages + stage); }
};

// The same, but nothing that comes of it is computed ahead of here and kept: registers are short during the products.
__device__ inline int fresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <WeightFormat Format>
__device__ inline Shared<Format> fresh(Shared<Format> shared) {
  asm volatile("" : "+l"(shared.base));
  return shared;
}

// --- the copying thread ----------------------------------------------------------------------------------------------

template <WeightFormat Format, WideStore Kind, int Cluster>
__device__ inline void produce(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  constexpr bool bytes_as_elements = Format != WeightFormat::bf16;
  constexpr int step_elements = bytes_as_elements ? step_bytes(Format) : step_columns;
  const MatmulArgs& args = wide.args;
  const int steps = args.columns / step_columns;
  Walk<Cluster, Kind> walk;
  walk.begin();
  Place place;
  Ring<Layout::stages> ring;
  int octet = 0;
  prefetch_map(&wide.x_boxes[0]);
  prefetch_map(&wide.x_boxes[1]);
  while (walk.next(wide, shared.begins(), static_cast<int>(rank), place)) {
    // The maps of the blocks of 64 rows: of one part, or gate and up in turn.
    const WeightMaps* maps[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int part = Kind == WideStore::activated ? i : place.part;
      if (args.groups > 0) {
        maps[i] = args.maps + place.group * args.parts + part;
        acquire_map(&maps[i]->values);
        if constexpr (Layout::scale_row > 0) acquire_map(&maps[i]->scales);
      } else {
        maps[i] = wide.weights + part;
      }
    }
    const auto row_of = [&](int block) {
      return place.row + 64 * (Kind == WideStore::activated ? block / 2 : block);
    };
    constexpr int first_block_step = Cluster == 2 ? 2 : 4;
    const int first_block = Cluster == 2 ? static_cast<int>(rank) * 2 : 0;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(shared.empty(ring.stage), ring.phase ^ 1);
      std::uint64_t* const full = shared.full(ring.stage);
      const bool scales_too = Layout::scale_row > 0 && step % wide_octet == 0;
      barrier_expect(full, static_cast<unsigned>(Layout::weight_bytes + place.copied * 128 +
                                                 (scales_too ? Layout::scale_bytes : 0)));
#pragma unroll
      for (int i = 0; i < first_block_step; ++i) {
        const int block = first_block + i;
        std::byte* const to = shared.weights(ring.stage) + block * Layout::block_bytes;
        if constexpr (Cluster == 2) {
          copy_box_to(3, to, &maps[i % 2]->values, step * step_elements, row_of(block), full);
        } else {
          copy_box(to, &maps[i % 2]->values, step * step_elements, row_of(block), full);
        }
      }
      if constexpr (Layout::scale_row > 0) {
        if (scales_too) {
#pragma unroll
          for (int i = 0; i < first_block_step; ++i) {
            const int block = first_block + i;
            std::byte* const to = shared.scales(octet & 1) + block * 64 * Layout::scale_row;
            const int column = step / wide_octet * Layout::scale_row;
            if constexpr (Cluster == 2) {
              copy_box_to(3, to, &maps[i % 2]->scales, column, row_of(block), full);
            } else {
              copy_box(to, &maps[i % 2]->scales, column, row_of(block), full);
            }
          }
          ++octet;
        }
      }
      std::byte* const x = shared.x(ring.stage);
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
template <int Cluster>
__device__ inline void release(std::uint64_t* empty, unsigned rank) {
  if (threadIdx.x % warp_size == 0) {
    barrier_arrive(empty);
    if constexpr (Cluster == 2) barrier_arrive_at(empty, rank ^ 1);
  }
}

using Sums = float[2][wide_items / 2];

// W from shared memory.
template <int N, int Cluster, WeightFormat Format>
__device__ inline void multiply_shared(Sums& sums, Shared<Format> shared, Ring<WideLayout<Format>::stages>& ring,
                                       int steps, unsigned rank) {
  using Layout = WideLayout<Format>;
  const int group = fresh(static_cast<int>(threadIdx.x)) / 128;
  shared = fresh(shared);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(shared.full(ring.stage), ring.phase);
    const std::uint64_t x = tile_descriptor<128>(shared.x(ring.stage), 1024);
    std::uint64_t w[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      w[m] = tile_descriptor<128>(shared.weights(ring.stage) + (group * 2 + m) * Layout::block_bytes, 1024);
    }
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        WgmmaItems<N>::run(sums[m], descriptor_at(w[m], s * 32), descriptor_at(x, s * 32), 1);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release<Cluster>(shared.empty(last), rank);
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release<Cluster>(shared.empty(last), rank);
}

// What multiplies one row's numbers of a step. A code of e8m0 is a factor's exponent as it is: 0 stands for 0 then, not
// for 2^-127, and 255 for infinity.
template <WeightFormat Format>
struct RowScale {
  std::uint32_t factors[Format == WeightFormat::nvfp4 ? 2 : 1];  // pairs: of the k16s in turn, or of the step's halves

  __device__ void load(const std::byte* row, int step) {
    const int at = step % wide_octet;
    if constexpr (Format == WeightFormat::nvfp4) {
      spread_e4m3(*reinterpret_cast<const std::uint32_t*>(row + at * 4), factors[0], factors[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) factors[i] = multiply_bf16(factors[i], 0x7b807b80u);  // 2^120
    } else if constexpr (Codec<Format>::scaled) {
      factors[0] = __byte_perm(*reinterpret_cast<const std::uint16_t*>(row + at * 2), 0, 0x4140) << 7;
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

// The bytes of one row with this lane's numbers of a k16: columns 16 s + 2 j, + 1, and + 8, + 9.
template <WeightFormat Format>
__device__ inline uint2 load_row(const std::byte* row, int s, int swizzle, int j) {
  if constexpr (step_bytes(Format) == 64) {
    const std::byte* from = row + ((16 * s) ^ swizzle) + 4 * (j >> 1);
    return {*reinterpret_cast<const std::uint32_t*>(from), *reinterpret_cast<const std::uint32_t*>(from + 8)};
  } else {
    return *reinterpret_cast<const uint2*>(row + 8 * s);
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
template <int N, int Cluster, WeightFormat Format>
__device__ inline void multiply_widened(Sums& sums, Shared<Format> shared, Ring<WideLayout<Format>::stages>& ring,
                                        int steps, unsigned rank, int& octet) {
  const int thread = fresh(static_cast<int>(threadIdx.x));
  shared = fresh(shared);
  const int group = thread / 128;
  using Layout = WideLayout<Format>;
  constexpr int row_bytes = step_bytes(Format);
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int row = group * 128 + thread % 128 / warp_size * 16 + g;
  const int swizzle = (g >> 1 & 3) * 16;
  const unsigned pick = pick_of<Format>(j);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    if (step % wide_octet == 0) ++octet;
    barrier_wait(shared.full(ring.stage), ring.phase);
    const std::byte* const weights = shared.weights(ring.stage) + row * row_bytes;
    const std::uint64_t x = tile_descriptor<128>(shared.x(ring.stage), 1024);
    RowScale<Format> scales[2][2];
    uint2 raw[2][2];
    const auto load = [&](int s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          raw[m][r] = load_row<Format>(weights + (m * 64 + r * 8) * row_bytes, s, swizzle, j);
        }
      }
    };
    load(0);
    if constexpr (Layout::scale_row > 0) {
      const std::byte* const slot = shared.scales((octet - 1) & 1) + row * Layout::scale_row;
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
      if (s == 0 && step > 0) release<Cluster>(shared.empty(last), rank);
    }
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release<Cluster>(shared.empty(last), rank);
}

// A tile without items of this block: stages go by.
template <int Cluster, WeightFormat Format>
__device__ inline void pass_by(const Shared<Format>& shared, Ring<WideLayout<Format>::stages>& ring, int steps,
                               unsigned rank, int& octet) {
  for (int step = 0; step < steps; ++step) {
    if (step % wide_octet == 0) ++octet;
    barrier_wait(shared.full(ring.stage), ring.phase);
    __syncwarp();
    release<Cluster>(shared.empty(ring.stage), rank);
    ring.step();
  }
}

// --- results ---------------------------------------------------------------------------------------------------------

__device__ inline float gelu(float x) { return x * (0.5f * erfcf(x * -0.70710678118654752f)); }

// As `activate`, with the machine's own exponential and quotient: the result is rounded to bf16.
__device__ inline float activate_fast(float gate, float up, float alpha, float limit, float beta) {
  const float g = gate > limit ? limit : gate;  // NaN stays
  const float u = up < -limit ? -limit : (up > limit ? limit : up);
  return g * __frcp_rn(1.0f + __expf(-alpha * g)) * (u + beta);
}

// Where a warpgroup's results go, and what multiplies them.
struct Results {
  float factors[2][2];  // of this lane's rows: m, then g and g + 8
  float bias[2][2];
  bool by_token;  // factors of tokens, too
  int row, rows;  // first row of W of the warpgroup's, and of how many of the part
  int column;     // of the result, of the part's row 0
};

// The sums of 16 items at a time through shared memory, then whole runs of a result's row by 16 bytes.
template <WideStore Kind, WeightFormat Format>
__device__ inline void store(const Sums& sums, const WideArgs& wide, const Shared<Format>& shared, int count,
                             const Results& results, int group) {
  const MatmulArgs& args = wide.args;
  const int thread = fresh(static_cast<int>(threadIdx.x)) % 128;
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const float* const token_factors = shared.token_factors(group);
  const int* const token_rows = shared.token_rows(group);
  constexpr int chunk = Kind == WideStore::floats ? 8 : 16;                // items
  constexpr int run = Kind == WideStore::activated ? 64 : 128;             // rows of W of a warpgroup's result
  constexpr int element = Kind == WideStore::floats ? 4 : 2;               // bytes
  constexpr int pitch = run * element + 16;
  constexpr int pieces = run * element / 16;
#pragma unroll
  for (int c = 0; c < (wide_items + chunk - 1) / chunk; ++c) {
    if (c * chunk >= count) break;
    std::byte* const staging = shared.staging(group, c % 2);
#pragma unroll
    for (int half = 0; half < chunk / 8; ++half) {
      const int t = c * (chunk / 8) + half;
      if (t >= wide_items / 8) break;
      float factor[2] = {1, 1};
      if (results.by_token) {
        factor[0] = token_factors[t * 8 + 2 * j];
        factor[1] = token_factors[t * 8 + 2 * j + 1];
      }
      float values[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[m][i] =
              sums[m][t * 4 + i] * results.factors[m][i / 2] * factor[i % 2] + results.bias[m][i / 2];
        }
      }
      if constexpr (Kind == WideStore::floats) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            *reinterpret_cast<float*>(staging + (2 * j + i % 2) * pitch +
                                      (m * 64 + warp * 16 + i / 2 * 8 + g) * 4) = values[m][i];
          }
        }
      } else if constexpr (Kind != WideStore::activated) {
        // Matrix i of the four: m = i / 2, rows g or g + 8.
        const int matrix = lane / 8;
        const std::byte* to = staging + (half * 8 + lane % 8) * pitch +
                              ((matrix / 2) * 64 + warp * 16 + matrix % 2 * 8) * 2;
        store_matrices_transposed(shared_address(to), pack_bf16(values[0][0], values[0][1]),
                                  pack_bf16(values[0][2], values[0][3]), pack_bf16(values[1][0], values[1][1]),
                                  pack_bf16(values[1][2], values[1][3]));
      } else {
        float inner[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          inner[i] =
              activate_fast(round_bf16(values[0][i]), round_bf16(values[1][i]), args.alpha, args.limit, args.beta);
        }
        const std::uint32_t low = pack_bf16(inner[0], inner[1]), high = pack_bf16(inner[2], inner[3]);
        const std::byte* to = staging + (half * 8 + lane % 8) * pitch + (warp * 16 + lane / 8 % 2 * 8) * 2;
        store_matrices_transposed_two(shared_address(to), low, high);
      }
    }
    sync_threads_of(1 + group, 128);
#pragma unroll
    for (int i = 0; i < chunk * pieces / 128; ++i) {
      const int item = (thread + i * 128) / pieces;
      const int piece = (thread + i * 128) % pieces;
      const int at = c * chunk + item;
      if (at >= count) continue;
      std::byte* const from = staging + item * pitch + piece * 16;
      if constexpr (Kind == WideStore::gelu) {
#pragma unroll 1
        for (int e = 0; e < 16; e += 4) {
          auto* const pair = reinterpret_cast<std::uint32_t*>(from + e);
          *pair = pack_bf16(gelu(low_bf16(*pair)), gelu(high_bf16(*pair)));
        }
      }
      const int row = results.row + piece * (16 / element);
      auto* const to =
          static_cast<std::byte*>(args.out) + (token_rows[at] * args.out_stride + results.column + row) * element;
      if (wide.vector_stores != 0 && row + 16 / element <= results.rows) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < 16 / element && row + e < results.rows; ++e) {
          if constexpr (element == 4) {
            reinterpret_cast<float*>(to)[e] = reinterpret_cast<const float*>(from)[e];
          } else {
            reinterpret_cast<std::uint16_t*>(to)[e] = reinterpret_cast<const std::uint16_t*>(from)[e];
          }
        }
      }
    }
  }
}

template <WeightFormat Format, WideStore Kind, int Cluster>
__device__ inline void consume(const WideArgs& wide, const Shared<Format>& all_shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  constexpr bool activated = Kind == WideStore::activated;
  const MatmulArgs& args = wide.args;
  const int steps = args.columns / step_columns;
  const bool weighted = args.store == Store::weighted;
  const bool by_token = weighted || args.token_scales != nullptr;
  using Tile_ = Tile<Cluster, Kind>;
  if (threadIdx.x % 128 == 0) all_shared.template tile<Tile_>(static_cast<int>(threadIdx.x) / 128)->walk.begin();
  Ring<Layout::stages> ring;
  int octet = 0;
  for (;;) {
    {
      const int thread = fresh(static_cast<int>(threadIdx.x)) % 128;
      const int group = fresh(static_cast<int>(threadIdx.x)) / 128;
      const Shared<Format> shared = fresh(all_shared);
      Tile_* const tile = shared.template tile<Tile_>(group);
      if (thread == 0) tile->more = tile->walk.next(wide, shared.begins(), static_cast<int>(rank), tile->place) ? 1 : 0;
      sync_threads_of(1 + group, 128);
      if (tile->more == 0) break;
      const Place place = tile->place;
      if (place.count > 0) {
        // Factors, for the results: on their way during the products.
        const int local = thread / warp_size * 16 + thread % warp_size / 4;  // of 64 rows
        const int rows = args.inline_parts[place.part].rows;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const int part = activated ? m : place.part;
          const WeightPart* weight =
              args.groups > 0 ? args.table + place.group * args.parts + part : args.inline_parts + part;
          const float tensor_scale = weight->tensor_scale;
          const float* row_scales = weight->row_scales;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int row = min(place.row + (activated ? group * 64 : group * 128 + m * 64) + local + r * 8, rows - 1);
            shared.row_factors(group)[m * 64 + local + r * 8] = {
                row_scales != nullptr ? tensor_scale * row_scales[row] : tensor_scale,
                args.bias != nullptr ? args.bias[args.inline_parts[part].first_column + row] : 0.0f};
          }
        }
        for (int i = thread; i < wide_items; i += 128) {
          const int item = place.begin + min(i, place.count - 1);
          const int row = args.result_by_list ? args.list[item] : item;
          shared.token_rows(group)[i] = row;
          if (by_token) {
            shared.token_factors(group)[i] = (weighted ? args.scaling * args.pair_weights[row] : 1.0f) *
                                             (args.token_scales != nullptr ? args.token_scales[item] : 1.0f);
          }
        }
      }
      sync_threads_of(1 + group, 128);
    }
    const int group = static_cast<int>(threadIdx.x) / 128;
    if (all_shared.template tile<Tile_>(group)->place.count == 0) {
      pass_by<Cluster>(all_shared, ring, steps, rank, octet);
      sync_threads_of(1 + group, 128);
      continue;
    }
    Sums sums = {};  // without it all widths' sums would be alive all along
    const auto multiply = [&]<int N>() {
      if constexpr (Layout::in_shared) {
        multiply_shared<N, Cluster>(sums, all_shared, ring, steps, rank);
      } else {
        multiply_widened<N, Cluster>(sums, all_shared, ring, steps, rank, octet);
      }
    };
    const int copied = all_shared.template tile<Tile_>(group)->place.copied;
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
    } else if (copied <= 64) {  // more widths than four would serialise them: registers
      multiply.template operator()<64>();
    } else if (copied <= 120) {
      multiply.template operator()<120>();
    } else if (copied <= 136) {
      multiply.template operator()<136>();
    } else {
      multiply.template operator()<152>();
    }
    pin(sums[0]);
    pin(sums[1]);
    {
      const int thread = fresh(static_cast<int>(threadIdx.x)) % 128;
      const int group = fresh(static_cast<int>(threadIdx.x)) / 128;
      const Shared<Format> shared = fresh(all_shared);
      const Place place = shared.template tile<Tile_>(group)->place;
      Results results;
      results.by_token = by_token;
      results.row = place.row + group * (activated ? 64 : 128);
      results.rows = args.inline_parts[place.part].rows;
      results.column = args.inline_parts[place.part].first_column;
      const int local = thread / warp_size * 16 + thread % warp_size / 4;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 stored = shared.row_factors(group)[m * 64 + local + r * 8];
          results.factors[m][r] = stored.x;
          results.bias[m][r] = stored.y;
        }
      }
      store<Kind>(sums, wide, shared, place.count, results, group);
      sync_threads_of(1 + group, 128);  // the rows and factors of its tokens are read
    }
  }
}

}  // namespace wide

#endif

template <WeightFormat Format, WideStore Kind, int Cluster>
__global__ void __launch_bounds__(wide_threads, 1) matmul_wide_sm90(const __grid_constant__ WideArgs wide_args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WideLayout<Format>;
  wait_for_previous();
  std::byte* base = dynamic_shared();
  base += (1024 - shared_address(base) % 1024) % 1024;
  const wide::Shared<Format> shared{base};
  const MatmulArgs& args = wide_args.args;
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned rank = Cluster == 2 ? cluster_rank() : 0;
  if (args.groups > 0) {
    for (int i = thread; i <= args.groups; i += wide_threads) shared.begins()[i] = args.group_begin[i];
  }
  if (thread == 0) {
    for (int stage = 0; stage < Layout::stages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), 8 * Cluster);  // warps that multiply
    }
    fence_barrier_init();
  }
  __syncthreads();
  if constexpr (Cluster == 2) sync_cluster();
  if (thread >= 256) {
    give_registers<40>();
    if (thread == 256) wide::produce<Format, Kind, Cluster>(wide_args, shared, rank);
    __syncwarp();
  } else {
    take_registers<232>();
    wide::consume<Format, Kind, Cluster>(wide_args, shared, rank);
  }
  // No block leaves while another still copies or arrives into its memory.
  if constexpr (Cluster == 2) sync_cluster();
#endif
}

template <WeightFormat Format, WideStore Kind, int Cluster>
cudaError_t launch_wide(const WideArgs& wide, int units, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_wide_sm90<Format, Kind, Cluster>;
  constexpr int bytes = WideLayout<Format>::bytes;
  static_assert(bytes <= 232448);
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = Cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(Cluster);
  config.blockDim = dim3(wide_threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = Cluster > 1 ? 2 : 1;
  // Clusters stay: more than run at a time would take their turns afterwards.
  static const int most = [&] {
    int count = 0;
    return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess && count > 0 ? count : 132 / Cluster;
  }();
  config.gridDim = dim3(static_cast<unsigned>((units < most ? units : most) * Cluster));
  return cudaLaunchKernelEx(&config, kernel, wide);
}

// The number of tiles of items that takes the fewest columns of the tensor cores in all, clusters working in step.
inline int choose_item_pairs(int items, int row_tiles, int cluster, int clusters) {
  const int eights = (items + 7) / 8;
  const int least = (items + wide_items * cluster - 1) / (wide_items * cluster);
  int best = least;
  long best_cost = -1;
  for (int pairs = least; pairs <= least + least / 2 + 2; ++pairs) {
    const int width = (eights + pairs * cluster - 1) / (pairs * cluster) * 8;
    const long rounds = (static_cast<long>(pairs) * row_tiles + clusters - 1) / clusters;
    const long cost = rounds * (width + 8);  // 8: what a tile costs beside
    if (best_cost < 0 || cost < best_cost) best = pairs, best_cost = cost;
  }
  return best;
}

template <WeightFormat Format, int Cluster>
cudaError_t launch_wide_of(const MatmulArgs& args, cudaStream_t stream) {
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
  wide.item_pairs = choose_item_pairs(args.items, wide.row_tiles, Cluster, 132 / Cluster);
  const int pairs = args.groups > 0 ? args.items / (wide_items * Cluster) + args.groups : wide.item_pairs;  // at most
  const int units = pairs * wide.row_tiles;
  if (activated) return launch_wide<Format, WideStore::activated, Cluster>(wide, units, stream);
  if (args.gelu) {
    if constexpr (Format == WeightFormat::bf16) return launch_wide<Format, WideStore::gelu, Cluster>(wide, units, stream);
    return cudaErrorInvalidValue;
  }
  if (element == 4) return launch_wide<Format, WideStore::floats, Cluster>(wide, units, stream);
  return launch_wide<Format, WideStore::halves, Cluster>(wide, units, stream);
}

template <WeightFormat Format>
cudaError_t matmul_wide_of(const MatmulArgs& args, cudaStream_t stream) {
  return launch_wide_of<Format, 2>(args, stream);
}

}  // namespace m3::ops::cuda
