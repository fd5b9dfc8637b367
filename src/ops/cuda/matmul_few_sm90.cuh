// Products with at most eight rows of x a weight on Hopper, at the rate that weights can be read.
//
// A tile is up to 48 rows of W (half of them of gate and half of up where results are stored activated), over all of
// K: each of a block's eight warps sums one segment of K, its rows on their way through a ring of its own; then the eight
// sums are added. Blocks are as many as the device holds at once and take tiles in turn, so that all of them read
// neighbouring memory; tiles are of equal size and as many for every block. Nothing is kept of x but in the L1, or, for one
// list of items, all of it in registers: eight rows of 6144 are 96 KB, which the L1 does not hold beside the rings.
#pragma once

#include <algorithm>

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/matmul_decode_sm90.h"

namespace m3::ops::cuda {

// Columns of a stage of the ring, of a lane in it; rows of a tile; stages. `Held`: a segment of K is exactly so many stages,
// and x, of one list, is held in registers.
template <WeightFormat Format_, int Tiles, int Stages, int Held = 0>
struct FewShape {
  static_assert(Format_ != WeightFormat::nvfp4);
  static constexpr int held = Held;
  static constexpr int blocks = held > 0 ? 1 : 2;  // of a multiprocessor
  static constexpr WeightFormat format = Format_;
  static constexpr int tiles = Tiles;  // of 16 rows
  static constexpr int stages = Stages;
  static_assert(held == 0 || held >= stages);
  static constexpr bool nibbles = step_bytes(Format_) == 32;
  static constexpr bool scaled = Codec<Format_>::scaled;
  static constexpr int rows = 16 * Tiles;
  static_assert(!scaled || rows <= 32);  // a lane copies a row's scales
  static constexpr int columns = Format_ == WeightFormat::bf16 ? 64 : 128;
  static constexpr int subs = columns / 64;  // a lane's 16 columns each
  static constexpr int row_bytes = columns / 64 * step_bytes(Format_);
  static constexpr int pieces = row_bytes / 16;       // of a row
  static constexpr int copies = rows * pieces / 32;   // of a lane
  static constexpr int scale_bytes = scaled ? 4 : 0;  // of a row
  static constexpr int value_bytes = rows * row_bytes;
  static constexpr int stage_bytes = value_bytes + rows * scale_bytes;
  static constexpr int ring_bytes = stages * stage_bytes;  // of a warp
  static constexpr int sum_pitch = 9;
  static constexpr int shared_bytes = k_segments * ring_bytes;
  // Where piece p of a row stands, so that the lanes that read at once meet all banks.
  __device__ static int place(int row, int piece) {
    if constexpr (Format_ == WeightFormat::bf16) return piece ^ (row & 1);
    if constexpr (!nibbles) return piece ^ ((row & 1) * 4);
    return piece;
  }
};

// One list: how many units and tiles each part has; groups: units of one of them.
struct FewGrid {
  int units[max_parts] = {};
  int tiles[max_parts] = {};
  int all_tiles = 0;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A tile: of which part of which active group, and its units.
struct FewTile {
  int at, part, first, count;
};

#endif

// Units are rows, or pairs of them (gate and up).
template <class Shape, bool Activated>
__global__ void __launch_bounds__(256, Shape::blocks)
    matmul_few_sm90(const __grid_constant__ MatmulArgs args, const __grid_constant__ FewGrid grid) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Codec_ = DecodeCodec<Shape::format>;
  constexpr int unit_capacity = Activated ? Shape::rows / 2 : Shape::rows;
  __shared__ GroupPlan<> plan;
  __shared__ float sums[k_segments][Shape::rows][Shape::sum_pitch];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const bool experts = Shape::held == 0 && args.groups > 0;
  const auto blocks = static_cast<int>(gridDim.x);
  const int segment = args.columns / k_segments;                                // columns
  const int chunks = Shape::held > 0 ? Shape::held : segment / Shape::columns;  // stages of a tile
  const std::int64_t row_bytes = std::int64_t{args.columns / 64} * step_bytes(Shape::format);
  const std::int64_t scale_bytes = args.columns / 128 * Shape::scale_bytes;

  bool waited = !args.old_x || (experts && !args.old_routing);
  const bool wait_first = experts && !args.old_routing;
  if (wait_first) wait_grid();
  int active = 1;
  if (experts) {
    plan_groups<256>(args, plan);
    active = plan.active;
  }
  if (active == 0) {
    wait_grid();
    return;
  }
  // As many tiles for every block.
  const int least = (grid.units[0] + unit_capacity - 1) / unit_capacity;
  const int tiles_each = (active * least + blocks - 1) / blocks * blocks / active;  // of a group
  const int tiles = experts ? tiles_each * active : grid.all_tiles;
  const auto place_of = [&](int tile) {
    FewTile place{0, 0, 0, 0};
    int units = grid.units[0];
    int of = tiles_each;
    if (experts) {
      place.at = tile / tiles_each;
      tile -= place.at * tiles_each;
    } else {
      for (; !Activated && tile >= grid.tiles[place.part]; ++place.part) tile -= grid.tiles[place.part];
      units = grid.units[place.part];
      of = grid.tiles[place.part];
    }
    place.first = static_cast<int>(std::int64_t{units} * tile / of);
    place.count = static_cast<int>(std::int64_t{units} * (tile + 1) / of) - place.first;
    return place;
  };
  const auto parts_of = [&](const FewTile& place) {
    return experts ? args.table + plan.order[place.at] * args.parts : args.inline_parts + place.part;
  };

  // --- copies ---
  constexpr int sides = Activated ? 2 : 1;     // gate and up
  constexpr int at_once = 32 / Shape::pieces;  // rows of one instruction
  std::byte* const ring = dynamic_shared() + warp * Shape::ring_bytes;
  int copy_tile = static_cast<int>(blockIdx.x), copy_pass = 0, copy_passes = 1, copy_chunk = 0, copy_slot = 0;
  int copy_count = 0;                 // units
  const std::byte* from[sides] = {};  // this lane's piece of its first row of each side
  const std::byte* scales_from = nullptr;
  // The next tile's weights are asked for a tile ahead.
  struct Bases {
    const std::byte* values[sides];
    const std::byte* scales;
  };
  const auto bases_of = [&](int tile) {
    Bases bases{};
    if (tile >= tiles) return bases;
    const WeightPart* parts = parts_of(place_of(tile));
#pragma unroll
    for (int side = 0; side < sides; ++side) bases.values[side] = parts[side].values;
    if constexpr (Shape::scaled) bases.scales = parts[Activated ? lane % 16 / 8 : 0].scales;
    return bases;
  };
  Bases bases = bases_of(copy_tile);
  const auto begin_tile = [&] {
    if (copy_tile >= tiles) return;
    const FewTile place = place_of(copy_tile);
    copy_count = place.count;
    if (experts) copy_passes = (plan.begin[place.at + 1] - plan.begin[place.at] + 7) / 8;
    const std::int64_t row = place.first + lane / Shape::pieces;
#pragma unroll
    for (int side = 0; side < sides; ++side) {
      from[side] = bases.values[side] + row * row_bytes + warp * (segment / 64) * step_bytes(Shape::format) +
                   lane % Shape::pieces * 16;
    }
    if constexpr (Shape::scaled) {
      const int unit = Activated ? lane / 16 * 8 + lane % 8 : lane;
      scales_from = unit < copy_count && lane < Shape::rows ? bases.scales + (place.first + unit) * scale_bytes +
                                                                  warp * (segment / 128) * Shape::scale_bytes
                                                            : nullptr;
    }
    if (copy_pass + 1 == copy_passes) bases = bases_of(copy_tile + blocks);
  };
  // `last`: of a tile's stages. Where that is known as it is compiled, what begins a tile stands there once.
  const auto copy_stage = [&](bool last) {
    if (copy_tile < tiles) {
      std::byte* const stage = ring + copy_slot * Shape::stage_bytes;
#pragma unroll
      for (int c = 0; c < Shape::copies; ++c) {
        // Rows of sixteen: eight units of gate, the same of up.
        const int base = c * at_once;
        const int row = base + lane / Shape::pieces;
        const int side = Activated ? base % 16 / 8 : 0;
        const int skipped = Activated ? base / 16 * 8 + base % 8 : base;  // units
        if (skipped + lane / Shape::pieces < copy_count) {
          copy_async_16(stage + row * Shape::row_bytes + Shape::place(row, lane % Shape::pieces) * 16,
                        from[side] + skipped * row_bytes);
        }
      }
#pragma unroll
      for (int side = 0; side < sides; ++side) from[side] += Shape::row_bytes;
      if constexpr (Shape::scaled) {
        if (scales_from != nullptr) {
          copy_async_small<Shape::scale_bytes>(stage + Shape::value_bytes + lane * Shape::scale_bytes, scales_from);
          scales_from += Shape::scale_bytes;
        }
      }
      if (++copy_slot == Shape::stages) copy_slot = 0;
      if (last) {
        if (++copy_pass == copy_passes) copy_pass = 0, copy_tile += blocks;
        begin_tile();
      }
    }
    commit_copies();
  };
  const auto copy_next = [&] {
    if (++copy_chunk == chunks) copy_chunk = 0;
    copy_stage(copy_chunk == 0);
  };
  begin_tile();
#pragma unroll 1
  for (int i = 0; i < Shape::stages - 1; ++i) copy_next();

  // Weights are on their way before the kernel ahead has ended.
  if (waited && !wait_first) wait_grid();
  if (waited) let_next_grid_begin();  // which may take it that the kernel ahead of this one has ended

  // --- sums ---
  // Columns of x of this lane begin here, of its item's row.
  const int first_column = warp * segment + j * (Shape::nibbles ? 32 : 16);
  const auto load_x = [&](const std::uint16_t* x, uint4(&of_x)[Shape::subs][2]) {
#pragma unroll
    for (int sub = 0; sub < Shape::subs; ++sub) {
      const auto* address = reinterpret_cast<const uint4*>(x + sub * (Shape::nibbles ? 16 : 64));
      of_x[sub][0] = address[0], of_x[sub][1] = address[1];
    }
  };
  uint4 held[Shape::held > 0 ? Shape::held : 1][Shape::subs][2];
  if constexpr (Shape::held > 0) {
    const std::uint16_t* x = args.x + x_row(args, min(g, args.items - 1)) * args.x_stride + first_column;
#pragma unroll
    for (int chunk = 0; chunk < Shape::held; ++chunk) {
      load_x(x + chunk * Shape::columns, held[chunk]);
    }
  }
  int slot = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += blocks) {
    const FewTile place = place_of(tile);
    const int item_begin = experts ? plan.begin[place.at] : 0;
    const int item_end = experts ? plan.begin[place.at + 1] : args.items;
    for (int first_item = item_begin; first_item < item_end; first_item += 8) {
      const int n = min(8, item_end - first_item);
      const std::uint16_t* x = nullptr;
      if constexpr (Shape::held == 0) {
        const int my_item = first_item + min(g, n - 1);
        const int my_row = experts ? plan.items[my_item] / args.list_divisor : x_row(args, my_item);
        x = args.x + my_row * args.x_stride + first_column;
      }
      float acc[Shape::tiles][4] = {};
      const auto sum_chunk = [&](const uint4(&of_x)[Shape::subs][2], const auto& copy) {
        wait_copies<Shape::stages - 2>();
        __syncwarp();
        copy();
        const std::byte* const stage = ring + slot * Shape::stage_bytes;
        if (++slot == Shape::stages) slot = 0;
        // Scales: of lane 4g + j's columns in rows g, g + 8, ...
        [[maybe_unused]] std::uint32_t codes[Shape::tiles * 2][Shape::subs] = {};
        bool rare = false;
        if constexpr (Shape::scaled) {
          const std::byte* of = stage + Shape::value_bytes;
#pragma unroll
          for (int r = 0; r < Shape::tiles * 2; ++r) {
            const std::byte* row = of + (g + 8 * r) * Shape::scale_bytes;
            if constexpr (Shape::format == WeightFormat::mxfp4) {
              codes[r][0] = codes[r][1] = *reinterpret_cast<const std::uint8_t*>(row + j);
            } else {
              codes[r][0] = *reinterpret_cast<const std::uint8_t*>(row + j / 2);
              codes[r][1] = *reinterpret_cast<const std::uint8_t*>(row + 2 + j / 2);
            }
          }
          std::uint32_t any = 0;
#pragma unroll
          for (int r = 0; r < Shape::tiles * 2; ++r) any |= codes[r][0] | codes[r][1];
          rare = Codec_::rare(any);
        }
        [[maybe_unused]] std::uint32_t whole[Shape::tiles * 2][4];  // four-bit codes of both subs
        if constexpr (Shape::nibbles) {
#pragma unroll
          for (int r = 0; r < Shape::tiles * 2; ++r) {
            *reinterpret_cast<uint4*>(whole[r]) =
                *reinterpret_cast<const uint4*>(stage + (g + 8 * r) * Shape::row_bytes + j * 16);
          }
        }
        // `Rare`: scales by two factors. Apart, so that the other way has no branches.
        const auto add = [&]<bool Rare>() {
#pragma unroll
          for (int sub = 0; sub < Shape::subs; ++sub) {
            std::uint32_t activations[8];
            Codec_::arrange(of_x[sub][0], activations);
            Codec_::arrange(of_x[sub][1], activations + 4);
            std::uint32_t pairs[Shape::tiles * 2][8];
#pragma unroll
            for (int r = 0; r < Shape::tiles * 2; ++r) {
              [[maybe_unused]] const int row = r * 8 + g;
              [[maybe_unused]] const std::byte* from_row = stage + row * Shape::row_bytes;
              if constexpr (Shape::nibbles) {
                Codec_::spread_e2m1(whole[r][sub * 2], pairs[r]);
                Codec_::spread_e2m1(whole[r][sub * 2 + 1], pairs[r] + 4);
              } else if constexpr (Shape::format == WeightFormat::bf16) {
                *reinterpret_cast<uint4*>(pairs[r]) =
                    *reinterpret_cast<const uint4*>(from_row + Shape::place(row, 2 * j) * 16);
                *reinterpret_cast<uint4*>(pairs[r] + 4) =
                    *reinterpret_cast<const uint4*>(from_row + Shape::place(row, 2 * j + 1) * 16);
              } else {
                std::uint32_t raw[4];
                *reinterpret_cast<uint4*>(raw) =
                    *reinterpret_cast<const uint4*>(from_row + Shape::place(row, sub * 4 + j) * 16);
#pragma unroll
                for (int i = 0; i < 4; ++i) Codec_::spread_e4m3(raw[i], pairs[r] + 2 * i);
              }
              if constexpr (Shape::format != WeightFormat::bf16) {
                std::uint32_t factor = Rare ? 0 : Codec_::factor(codes[r][sub]);
                if constexpr (Rare) {
                  const uint2 two = Codec_::factors(codes[r][sub]);
#pragma unroll
                  for (int i = 0; i < 8; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], two.x);
                  factor = two.y;
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], factor);
              }
            }
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
#pragma unroll
              for (int m = 0; m < Shape::tiles; ++m) {
                mma_bf16(acc[m], pairs[2 * m][i], pairs[2 * m + 1][i], pairs[2 * m][i + 1], pairs[2 * m + 1][i + 1],
                         activations[i], activations[i + 1]);
              }
            }
          }
        };
        if (Shape::scaled && __any_sync(all_lanes, rare)) {
          add.template operator()<true>();
        } else {
          add.template operator()<false>();
        }
      };
      if constexpr (Shape::held > 0) {
#pragma unroll
        for (int chunk = 0; chunk < Shape::held; ++chunk) {
          sum_chunk(held[chunk], [&] { copy_stage((chunk + Shape::stages) % Shape::held == 0); });
        }
      } else {
        for (int chunk = 0; chunk < chunks; ++chunk) {
          uint4 of_x[Shape::subs][2];
          load_x(x, of_x);
          x += Shape::columns;
          sum_chunk(of_x, copy_next);
        }
      }
      __syncthreads();  // the sums before are read
#pragma unroll
      for (int m = 0; m < Shape::tiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[warp][m * 16 + g + i / 2 * 8][2 * j + i % 2] = acc[m][i];
      }
      __syncthreads();
      if (!waited) {
        wait_grid();
        let_next_grid_begin();
        waited = true;
      }
      for (int i = thread; i < unit_capacity * n; i += 256) {
        const int unit = i % unit_capacity;
        const int item = i / unit_capacity;
        if (unit >= place.count) continue;
        const int local = Activated ? unit / 8 * 16 + unit % 8 : unit;
        float total[2] = {};
#pragma unroll
        for (int s = 0; s < k_segments; ++s) {
          total[0] += sums[s][local][item];
          if (Activated) total[1] += sums[s][local + 8][item];
        }
        const int listed = experts ? plan.items[first_item + item] : first_item + item;
        const int of_row = experts ? listed / args.list_divisor : x_row(args, listed);
        const int to = experts ? listed : result_row(args, listed);
        const WeightPart* weights = parts_of(place);
        const int row = place.first + unit;
        if constexpr (Activated) {
          const float gate = round_bf16(total[0] * Codec_::missing * factor_of(args, weights[0], of_row, row));
          const float up = round_bf16(total[1] * Codec_::missing * factor_of(args, weights[1], of_row, row));
          static_cast<std::uint16_t*>(args.out)[to * args.out_stride + row] =
              narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
        } else {
          store_result(args, weights[0], of_row, to, row, total[0] * Codec_::missing);
        }
      }
    }
  }
  if (!waited) wait_grid();  // kernels end in their order
#endif
}

// How `blocks` blocks share the units of one list's parts: as many tiles each, of at most `capacity` units.
inline FewGrid few_grid(const MatmulArgs& args, bool activated, int capacity, int blocks) {
  FewGrid grid;
  const int parts = activated || args.groups > 0 ? 1 : args.parts;
  int units = 0;
  for (int part = 0; part < parts; ++part) units += grid.units[part] = args.inline_parts[part].rows;
  if (args.groups > 0) return grid;
  for (int rounds = std::max(1, (units + capacity * blocks - 1) / (capacity * blocks));; ++rounds) {
    // Shares of the blocks' tiles by size, rounded down; what is left goes where tiles are largest.
    const int all = rounds * blocks;
    grid.all_tiles = 0;
    for (int part = 0; part < parts; ++part) {
      grid.tiles[part] = std::max(1, static_cast<int>(std::int64_t{all} * grid.units[part] / units));
      grid.all_tiles += grid.tiles[part];
    }
    const auto larger = [&](int a, int b) {
      return std::int64_t{grid.units[a]} * grid.tiles[b] > std::int64_t{grid.units[b]} * grid.tiles[a];
    };
    for (; grid.all_tiles < all; ++grid.all_tiles) {
      int largest = 0;
      for (int part = 1; part < parts; ++part) largest = larger(part, largest) ? part : largest;
      ++grid.tiles[largest];
    }
    bool fits = true;
    for (int part = 0; part < parts; ++part) fits = fits && grid.units[part] <= grid.tiles[part] * capacity;
    if (fits) return grid;
  }
}

}  // namespace m3::ops::cuda
