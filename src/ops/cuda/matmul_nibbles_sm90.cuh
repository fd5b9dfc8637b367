// Products with at most eight rows of x a weight of four-bit codes on Hopper. Here instructions count as much as bytes: a
// warp keeps 16 rows of W (8 of gate and the same 8 of up where results are stored activated) over all of K, streams them
// through a ring of its own, and waits for no other; x lies in shared memory in the order that the codes come apart in.
// One block a multiprocessor has an equal share of the rows, one after another in memory.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/matmul_decode_sm90.h"

namespace m3::ops::cuda {

template <WeightFormat Format_, int Warps, int Stages>
struct NibbleShape {
  static constexpr WeightFormat format = Format_;
  static constexpr int warps = Warps;
  static constexpr int rows = 16;
  static constexpr int stages = Stages;
  static constexpr int threads = Warps * 32;
  static constexpr int columns = 256;  // of a stage
  static constexpr int row_bytes = columns / 2;
  static constexpr int value_bytes = rows * row_bytes;
  static constexpr int scale_bytes = Format_ == WeightFormat::nvfp4 ? 16 : 8;  // of a row
  static constexpr int stage_bytes = value_bytes + rows * scale_bytes;
  static constexpr int ring_bytes = stages * stage_bytes;
  static constexpr int x_bytes = nibble_shared - warps * ring_bytes;
};

// Rows `row` ... of one group for up to eight of its items.
struct NibblePhase {
  const std::byte* values[2];  // of gate and up, or of the one weight
  const std::byte* scales[2];
  int part, group;   // of the list's parts; of the table
  int first, count;  // items
  int row, rows;     // (pairs)
  int tile, tiles;   // the first among the block's
  int slot, batch;   // where its x lies in shared memory, together with those of the same batch
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct NibblePlan {
  NibblePhase phases[nibble_phases];
  GroupPlan<> groups;
  int count, batches, tiles;
};

// All threads; ends with a barrier. `x_capacity`: rows of x that shared memory holds.
template <int Threads, int TileUnits, bool Activated>
__device__ inline void plan_nibbles(const MatmulArgs& args, NibblePlan& plan, int x_capacity) {
  const bool experts = args.groups > 0;
  if (experts) plan_groups<Threads>(args, plan.groups);
  if (threadIdx.x == 0) {
    // The block's share of the units of all parts, or of all groups with items, one after another.
    const int pieces = experts ? plan.groups.active : Activated ? 1 : args.parts;
    std::int64_t all = std::int64_t{args.inline_parts[0].rows} * pieces;
    if (!experts) {
      all = 0;
      for (int part = 0; part < pieces; ++part) all += args.inline_parts[part].rows;
    }
    std::int64_t begin = all * blockIdx.x / gridDim.x;
    std::int64_t left = all * (blockIdx.x + 1) / gridDim.x - begin;
    int count = 0, tile = 0, slot = 0, batch = 0;
    int at = experts ? static_cast<int>(begin / args.inline_parts[0].rows) : 0;
    begin -= experts ? std::int64_t{at} * args.inline_parts[0].rows : 0;
    for (; at < pieces && left > 0; ++at) {
      const std::int64_t rows = args.inline_parts[experts ? 0 : at].rows;
      if (begin >= rows) {
        begin -= rows;
        continue;
      }
      const int group = experts ? plan.groups.order[at] : 0;
      const WeightPart* weights = experts ? args.table + group * args.parts : args.inline_parts + at;
      const int first = experts ? plan.groups.begin[at] : 0;
      const int items = experts ? plan.groups.begin[at + 1] : args.items;
      const int most = min(8, x_capacity);
      const auto share = static_cast<int>(min(left, rows - begin));
      for (int i = first; i < items; i += most) {
        const int n = min(most, items - i);
        if (experts && slot + n > x_capacity) slot = 0, ++batch;
        NibblePhase& phase = plan.phases[count++];
        for (int side = 0; side < (Activated ? 2 : 1); ++side) {
          phase.values[side] = weights[side].values;
          phase.scales[side] = weights[side].scales;
        }
        phase.part = experts ? 0 : at, phase.group = group, phase.first = i, phase.count = n;
        phase.row = static_cast<int>(begin), phase.rows = share;
        phase.tile = tile, phase.tiles = (share + TileUnits - 1) / TileUnits;
        phase.slot = slot, phase.batch = batch;
        tile += phase.tiles;
        if (experts) slot += n;
      }
      left -= share;
      begin = 0;
    }
    plan.count = count, plan.batches = batch + 1, plan.tiles = tile;
  }
  __syncthreads();
}

#endif

template <class Shape, bool Activated>
__global__ void __launch_bounds__(Shape::threads, 1) matmul_nibbles_sm90(const __grid_constant__ MatmulArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Codec_ = DecodeCodec<Shape::format>;
  constexpr bool nvfp4 = Shape::format == WeightFormat::nvfp4;
  constexpr int sides = Activated ? 2 : 1;
  constexpr int tile_units = Shape::rows / sides;
  __shared__ NibblePlan plan;
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const bool experts = args.groups > 0;
  const int chunks = args.columns / Shape::columns;
  const std::int64_t row_bytes = args.columns / 2;
  const std::int64_t scale_bytes = std::int64_t{chunks} * Shape::scale_bytes;
  const int x_pitch = args.columns * 2 + 64;  // tokens meet other banks than their neighbours

  const bool wait_first = experts && !args.old_routing;
  bool waited = wait_first || !args.old_x;  // before the first result
  if (wait_first) wait_grid();
  plan_nibbles<Shape::threads, tile_units, Activated>(args, plan, Shape::x_bytes / x_pitch);
  std::byte* const ring = shared + Shape::x_bytes + warp * Shape::ring_bytes;
  const int tiles = plan.tiles;

  // --- copies, a stage at a time: this lane's piece of rows lane / 8, + 4, + 8, ... ---
  const int piece = ((lane % 8) ^ (lane / 8 % 2 * 4)) * 16;
  std::byte* const to_values = ring + lane / 8 * Shape::row_bytes + piece;
  std::byte* const to_scales = ring + Shape::value_bytes + lane * Shape::scale_bytes;
  const std::int64_t four_rows = 4 * row_bytes;
  int copy_tile = warp, copy_phase = 0, copy_left = 0, copy_at = 0, copy_count = 0;
  const std::byte* from[sides] = {};
  const std::byte* scales_from = nullptr;
  const auto begin_tile = [&] {
    copy_left = chunks;
    copy_count = 0;
    scales_from = nullptr;
    if (copy_tile >= tiles) return;
    while (copy_tile >= plan.phases[copy_phase].tile + plan.phases[copy_phase].tiles) ++copy_phase;
    const NibblePhase& phase = plan.phases[copy_phase];
    const int at = copy_tile - phase.tile;
    const int begin = phase.rows * at / phase.tiles;
    copy_count = phase.rows * (at + 1) / phase.tiles - begin;
    const std::int64_t row = phase.row + begin;
#pragma unroll
    for (int side = 0; side < sides; ++side) {
      from[side] = phase.values[side] + (row + lane / 8) * row_bytes + lane % 8 * 16;
    }
    const int unit = Activated ? lane % 8 : lane;
    if (lane < Shape::rows && unit < copy_count) {
      scales_from = phase.scales[Activated ? lane / 8 : 0] + (row + unit) * scale_bytes;
    }
  };
  const auto copy_stage = [&] {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int side = Activated ? c / 2 : 0;
      const int fours = Activated ? c % 2 : c;  // units skipped, in fours
      if (fours * 4 + lane / 8 < copy_count) {
        copy_async_16(to_values + copy_at + c * 4 * Shape::row_bytes, from[side] + fours * four_rows);
      }
    }
#pragma unroll
    for (int side = 0; side < sides; ++side) from[side] += Shape::row_bytes;
    if (scales_from != nullptr) {
      copy_async_small<Shape::scale_bytes>(to_scales + copy_at, scales_from);
      scales_from += Shape::scale_bytes;
    }
    commit_copies();
    copy_at = copy_at + Shape::stage_bytes == Shape::ring_bytes ? 0 : copy_at + Shape::stage_bytes;
    if (--copy_left == 0) {
      copy_tile += Shape::warps;
      begin_tile();
    }
  };
  begin_tile();
#pragma unroll 1
  for (int i = 0; i < Shape::stages - 1; ++i) copy_stage();

  // Weights are on their way before the kernel ahead has ended.
  if (waited && !wait_first) wait_grid();
  if (waited) let_next_grid_begin();  // which may take it that the kernel ahead of this one has ended

  // --- sums ---
  const int row_at = g * Shape::row_bytes + j * 16;
  const int swap = (g & 1) * 64;
  const int scale_at = Shape::value_bytes + g * Shape::scale_bytes + (nvfp4 ? 2 * j : j);
  const std::byte* stage = ring;
  int phase_at = 0, tile_at = warp;
  for (int batch = 0; batch < plan.batches; ++batch) {
    if (batch > 0) __syncthreads();  // the rows of x of the batch before are read
    int last_tile = 0;
    for (int p = 0; p < plan.count; ++p) {
      const NibblePhase& phase = plan.phases[p];
      if (phase.batch != batch) continue;
      last_tile = phase.tile + phase.tiles;
      if (!experts && p > 0) continue;      // the same rows of x
      const int pieces = args.columns / 8;  // of a row, eight columns each
#pragma unroll 4
      for (int i = thread; i < phase.count * pieces; i += Shape::threads) {
        const int row = i / pieces;
        const int at = i - row * pieces;
        const int of =
            experts ? plan.groups.items[phase.first + row] / args.list_divisor : x_row(args, phase.first + row);
        const uint4 v = *(reinterpret_cast<const uint4*>(args.x + of * args.x_stride) + at);
        std::uint32_t pairs[4];
        Codec_::arrange(v, pairs);
        // Of 128 columns, lane j's 32 are pieces 4 j ... 4 j + 3: the four lanes' k-th stand together.
        const int to = at / 16 * 16 + at % 4 * 4 + at % 16 / 4;
        *reinterpret_cast<uint4*>(shared + (phase.slot + row) * x_pitch + to * 16) =
            uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
      }
    }
    __syncthreads();
    for (; tile_at < last_tile; tile_at += Shape::warps) {
      while (tile_at >= plan.phases[phase_at].tile + plan.phases[phase_at].tiles) ++phase_at;
      const NibblePhase& phase = plan.phases[phase_at];
      const std::byte* x = shared + (phase.slot + min(g, phase.count - 1)) * x_pitch + j * 16;
      float total[4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_copies<Shape::stages - 2>();
        __syncwarp();
        copy_stage();
        std::uint32_t codes[2][2][2];  // of sub, row g + 8 r, 16 columns
        std::uint32_t any = 0;
        bool rare = false;
#pragma unroll
        for (int sub = 0; sub < 2; ++sub) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const std::byte* of = stage + scale_at + r * 8 * Shape::scale_bytes + sub * Shape::scale_bytes / 2;
            if constexpr (nvfp4) {
              const std::uint32_t both = *reinterpret_cast<const std::uint16_t*>(of);
              codes[sub][r][0] = both & 0xffu, codes[sub][r][1] = both >> 8;
              rare = rare || Codec_::rare(codes[sub][r][0]) || Codec_::rare(codes[sub][r][1]);
            } else {
              codes[sub][r][0] = codes[sub][r][1] = *reinterpret_cast<const std::uint8_t*>(of);
              any |= codes[sub][r][0];
            }
          }
        }
        if constexpr (!nvfp4) rare = Codec_::rare(any);
        std::uint32_t raw[2][2][4];
#pragma unroll
        for (int sub = 0; sub < 2; ++sub) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            *reinterpret_cast<uint4*>(raw[sub][r]) =
                *reinterpret_cast<const uint4*>(stage + row_at + r * 8 * Shape::row_bytes + ((sub * 64) ^ swap));
          }
        }
        float acc[2][4] = {};
        const auto add = [&]<bool Rare>() {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int sub = 0; sub < 2; ++sub) {
              const uint4 v = *reinterpret_cast<const uint4*>(x + sub * 256 + k * 64);
              std::uint32_t pairs[2][4];
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                Codec_::spread_e2m1(raw[sub][r][k], pairs[r]);
                const std::uint32_t code = codes[sub][r][k / 2];
                if constexpr (Rare) {
                  const uint2 two = Codec_::factors(code);
#pragma unroll
                  for (int i = 0; i < 4; ++i) pairs[r][i] = multiply_bf16(multiply_bf16(pairs[r][i], two.x), two.y);
                } else {
                  const std::uint32_t factor = Codec_::factor(code);
#pragma unroll
                  for (int i = 0; i < 4; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], factor);
                }
              }
              mma_bf16(acc[sub], pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], v.x, v.y);
              mma_bf16(acc[sub], pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], v.z, v.w);
            }
          }
        };
        if (__any_sync(all_lanes, rare)) {
          add.template operator()<true>();
        } else {
          add.template operator()<false>();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] += acc[0][i] + acc[1][i];
        x += Shape::columns * 2;
        stage = stage + Shape::stage_bytes == ring + Shape::ring_bytes ? ring : stage + Shape::stage_bytes;
      }
      if (!waited) {
        wait_grid();
        let_next_grid_begin();
        waited = true;
      }
      const int at = tile_at - phase.tile;
      const int begin = phase.rows * at / phase.tiles;
      const int count = phase.rows * (at + 1) / phase.tiles - begin;
      const WeightPart* weights = experts ? args.table + phase.group * args.parts : args.inline_parts + phase.part;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int item = 2 * j + c;
        if (item >= phase.count) continue;
        const int listed = experts ? plan.groups.items[phase.first + item] : phase.first + item;
        const int of_row = experts ? listed / args.list_divisor : x_row(args, listed);
        const int to = experts ? listed : result_row(args, listed);
        if constexpr (Activated) {
          if (g >= count) continue;
          const int result = phase.row + begin + g;
          const float gate = round_bf16(total[c] * Codec_::missing * factor_of(args, weights[0], of_row, result));
          const float up = round_bf16(total[2 + c] * Codec_::missing * factor_of(args, weights[1], of_row, result));
          static_cast<std::uint16_t*>(args.out)[to * args.out_stride + result] =
              narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
        } else {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int unit = r * 8 + g;
            if (unit >= count) continue;
            store_result(args, weights[0], of_row, to, phase.row + begin + unit, total[2 * r + c] * Codec_::missing);
          }
        }
      }
    }
  }
  wait_copies<0>();
  if (!waited) wait_grid();  // kernels end in their order
#endif
}

}  // namespace m3::ops::cuda
