// Routed experts of few tokens on Hopper, gate and up, activation and down in one launch of codes of four or eight bits.
// One block a multiprocessor; its weights stream through rings in shared memory that know nothing of where the first
// product ends: what down needs is on its way before the blocks have met between the two.
//
// Two warps, a pair, keep 32 rows of W (16 of gate and the same 16 of up, or of down) over half of K each. A lane's codes
// of one load lie in one group of columns that share a scale, and the four lanes of a row in four: a product's eight columns
// are two rows of x, four times each, with all but one lane's columns zero. So an instruction's sums come apart by groups,
// scales meet sums instead of weights, and a code becomes a bf16 number by moving its bits alone. What those numbers lack
// (2^-126, 2^-120) the rows of x get ahead, each by its highest exponent, and give back at the end.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/experts_decode_sm90.h"

namespace m3::ops::cuda {

template <WeightFormat Format_, int Pairs_, int Stages_, int Part_ = 0>
struct ExpertsShape {
  static constexpr int part = Part_;
  static constexpr WeightFormat format = Format_;
  static constexpr int pairs = Pairs_;  // of warps
  static constexpr int warps = 2 * Pairs_;
  static constexpr int threads = 32 * warps;
  static constexpr int stages = Stages_;
  static constexpr bool nibbles = step_bytes(Format_) == 32;
  static constexpr int rows = 32;
  static constexpr int row_bytes = 128;                   // of a stage
  static constexpr int columns = nibbles ? 256 : 128;     // of a stage: two blocks, a lane's 16 bytes each
  static constexpr int block_columns = columns / 2;
  static constexpr int value_bytes = rows * row_bytes;
  static constexpr int run = nibbles ? 2 : 4;             // stages whose scales are copied together: 512 columns
  static constexpr int scale_bytes = Format_ == WeightFormat::nvfp4 ? 32 : 16;  // of a row then
  static constexpr int run_bytes = rows * scale_bytes;
  static constexpr int runs = (Stages_ + 2 * run - 3) / run + 1;  // in the ring
  static constexpr int ring_bytes = Stages_ * value_bytes + runs * run_bytes;
  static constexpr int base = nibbles ? 126 : 120;        // the codes as bf16 lack 2^base
  static constexpr int zero_bytes = 2 * block_columns * 2;  // that idle lanes read
  static constexpr int x_bytes = experts_shared - warps * ring_bytes - zero_bytes;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Up to eight items of one expert, and tiles of 32 rows.
struct ExpertsPhase {
  short group;         // of the table
  short first, count;  // items
  short slot, batch;   // where its x lies in shared memory, together with those of the same batch
  short row_tile;      // the first
  int tile, tiles;     // the first among the block's
};

struct ExpertsPlan {
  ExpertsPhase phases[2][experts_phases];  // of gate and up; of down
  GroupPlan<> groups;
  int count[2], tiles[2];
  unsigned largest[experts_rows];  // bits of a row of x
};

// Bits moved alone: eight e2m1 codes as pairs (i, i + 4) of bf16 times 2^-126. Signs of two pairs are masked together; what
// the mask, 0x80808080, leaves of the other's lies where magnitudes come. (A mask that the compiler knew would be applied to
// each: two more instructions.)
__device__ inline void spread_codes(std::uint32_t x, std::uint32_t signs, std::uint32_t (&pairs)[4]) {
  const auto merge = [](std::uint32_t bits, std::uint32_t rest) {
    std::uint32_t result;  // `bits` where the mask has ones, else `rest`
    asm("lop3.b32 %0, %1, 0x01c001c0, %2, 0xe2;" : "=r"(result) : "r"(bits), "r"(rest));
    return result;
  };
  const std::uint32_t odd = x & signs;
  const std::uint32_t even = (x << 4) & signs;
  pairs[0] = merge(x << 6, even << 8);
  pairs[1] = merge(x << 2, odd << 8);
  pairs[2] = merge(x >> 2, even);
  pairs[3] = merge(x >> 6, odd);
}

// The power of two, at most 127, that a row of x may be multiplied by; of the bits of its largest magnitude.
__device__ inline int spare_power(unsigned largest) {
  return min(127, 253 - max(1, min(254, static_cast<int>(largest >> 7))));
}

// Four e4m3 codes, exactly.
__device__ inline void widen_scales(std::uint32_t codes, float (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    std::uint32_t two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(static_cast<std::uint16_t>(codes >> (16 * i))));
    values[2 * i] = widen_f16(static_cast<std::uint16_t>(two));
    values[2 * i + 1] = widen_f16(static_cast<std::uint16_t>(two >> 16));
  }
}

// One thread of each block: its block's writes so far are there for whoever waits.
__device__ inline unsigned arrive_at_meeting(unsigned* counter, unsigned blocks) {
  unsigned generation;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(generation) : "l"(counter + 1) : "memory");
  __threadfence();
  if (atomicAdd(counter, 1u) == blocks - 1) {
    *counter = 0;
    __threadfence();
    atomicAdd(counter + 1, 1u);
  }
  return generation;
}
__device__ inline void wait_for_meeting(const unsigned* counter, unsigned generation) {
  unsigned now = generation;
  for (int i = 0; now == generation; ++i) {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(counter + 1) : "memory");
    if (i > 1 << 22) __trap();
  }
}

#endif

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) experts_decode_sm90(const __grid_constant__ ExpertsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Codec_ = DecodeCodec<Shape::format>;
  constexpr bool nvfp4 = Shape::format == WeightFormat::nvfp4;
  constexpr bool nibbles = Shape::nibbles;
  constexpr int row_step = nibbles ? 2 : 1;  // columns of a byte
  __shared__ ExpertsPlan plan;
  __shared__ float exchange[2][Shape::pairs][2][2][32];  // in turn; to which warp; sums; lanes
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int pair = warp / 2;
  const int half = warp % 2;
  const int g = lane / 4;
  const int j = lane % 4;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);

  if (!args.old_routing) {
    // What is waited for names weights by a table that other kernels have driven out.
    const int lines = args.groups * 3 * static_cast<int>(sizeof(WeightPart)) / 128 + 2;
    for (int i = thread; i < lines; i += Shape::threads) {
      const int at = min(i * 128, args.groups * 2 * static_cast<int>(sizeof(WeightPart)) - 8);
      if (i * 128 < args.groups * 2 * static_cast<int>(sizeof(WeightPart))) {
        prefetch_l2(reinterpret_cast<const std::byte*>(args.gate_up) + at);
      }
    }
    wait_grid();
  }
  plan_groups<Shape::threads>(args, plan.groups);
  // Tiles of 16 units, then of 32 rows: each product's are dealt out in equal runs.
  if (thread < 2) {
    const bool down = thread == 1;
    const int each = down ? args.hidden / 32 : args.width / 16;  // tiles of a group
    const int all = plan.groups.active * each;
    const int begin = all * block / blocks;
    const int x_capacity = min(experts_rows, Shape::x_bytes / ((down ? args.width : args.hidden) * 2));
    const int most = min(8, x_capacity);
    int tile = 0, count = 0, slot = 0, batch = 0;
    for (int at = begin / each, left = all * (block + 1) / blocks - begin, first = begin - at * each; left > 0;
         ++at, first = 0) {
      const int share = min(left, each - first);
      const int last = plan.groups.begin[at + 1];
      for (int i = plan.groups.begin[at]; i < last; i += most) {
        const int n = min(most, last - i);
        if (slot + n > x_capacity) slot = 0, ++batch;
        ExpertsPhase& phase = plan.phases[down][count++];
        phase.group = plan.groups.order[at];
        phase.first = static_cast<short>(i), phase.count = static_cast<short>(n);
        phase.slot = static_cast<short>(slot), phase.batch = static_cast<short>(batch);
        phase.row_tile = static_cast<short>(first);
        phase.tile = tile, phase.tiles = share;
        tile += share;
        slot += n;
      }
      left -= share;
    }
    plan.count[down] = count;
    plan.tiles[down] = tile;
  }
  __syncthreads();
  const int inner_count = plan.count[0];
  const int phase_count = inner_count + plan.count[1];
  const int inner_tiles = plan.tiles[0];
  const int tiles = inner_tiles + plan.tiles[1];
  const auto phase_of = [&](int at) -> const ExpertsPhase& {
    return at < inner_count ? plan.phases[0][at] : plan.phases[1][at - inner_count];
  };
  const auto tile_of = [&](int at) { return phase_of(at).tile + (at < inner_count ? 0 : inner_tiles); };

  // --- copies, a stage at a time: this lane's piece of rows lane / 8, + 4, + 8, ... ---
  std::byte* const ring = shared + warp * Shape::ring_bytes;
  std::byte* const scale_ring = ring + Shape::stages * Shape::value_bytes;
  const int piece = ((lane % 8) ^ (lane / 8 % 2 * 4)) * 16;
  std::byte* const to_values = ring + lane / 8 * Shape::row_bytes + piece;
  int copy_tile = pair, copy_phase = 0, copy_left = 0, copy_chunk = 0, copy_at = 0, copy_scale_at = 0;
  const std::byte* from[2] = {};  // of gate and up, or of rows 0 … and 8 …
  const std::byte* scales_from = nullptr;
  std::uint32_t near = 0, far = 0;  // bytes to the next four rows; from a tile's first 16 rows to its others
  const auto begin_tile = [&] {
    copy_chunk = 0;
    copy_left = 1 << 30;
    from[0] = nullptr;
    if (copy_tile >= tiles) return;
    while (copy_phase + 1 < phase_count && copy_tile >= tile_of(copy_phase) + phase_of(copy_phase).tiles) ++copy_phase;
    const ExpertsPhase& phase = phase_of(copy_phase);
    const bool down = copy_phase >= inner_count;
    const int columns = down ? args.width : args.hidden;
    const int row_bytes = columns / row_step;
    const int scale_row = columns / (nvfp4 ? 16 : 32);
    const int tile = phase.row_tile + copy_tile - tile_of(copy_phase);
    const WeightPart* weights = down ? args.down + phase.group : args.gate_up + phase.group * 2;
    const int row = tile * (down ? 32 : 16);
    near = 4 * row_bytes, far = (down ? 16 : 8) * row_bytes;
    const std::int64_t first = std::int64_t{row + lane / 8} * row_bytes + half * (row_bytes / 2) + lane % 8 * 16;
    from[0] = weights[0].values + first;
    from[1] = down ? from[0] + 8 * row_bytes : weights[1].values + first;
    const std::byte* scales = weights[down ? 0 : lane / 8 % 2].scales;
    const int scale_from = row + (down ? lane : lane / 16 * 8 + lane % 8);
    scales_from = scales + std::int64_t{scale_from} * scale_row + half * (scale_row / 2);
    copy_left = columns / 2 / Shape::columns;
  };
  [[maybe_unused]] int copy_first = Shape::stages;
  const auto copy_stage = [&] {
    if (from[0] != nullptr) {
      if (Shape::part != 2 || copy_first-- > 0)
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        copy_async_16(to_values + copy_at + c * 4 * Shape::row_bytes,
                      from[c / 2 % 2] + std::uint64_t{c % 2 * near + c / 4 * far});
      }
      from[0] += Shape::row_bytes, from[1] += Shape::row_bytes;
      if (copy_chunk % Shape::run == 0) {
#pragma unroll
        for (int i = 0; i < Shape::scale_bytes; i += 16) {
          copy_async_16(scale_ring + copy_scale_at + lane * Shape::scale_bytes + i, scales_from + i);
        }
        scales_from += Shape::scale_bytes;
        copy_scale_at =
            copy_scale_at + Shape::run_bytes == Shape::runs * Shape::run_bytes ? 0 : copy_scale_at + Shape::run_bytes;
      }
      ++copy_chunk;
      if (--copy_left == 0) {
        copy_tile += Shape::pairs;
        begin_tile();
      }
      copy_at = copy_at + Shape::value_bytes == Shape::stages * Shape::value_bytes ? 0 : copy_at + Shape::value_bytes;
    }
    commit_copies();
  };
  begin_tile();
#pragma unroll 1
  for (int i = 0; i < Shape::stages - 1; ++i) copy_stage();
  if (args.old_routing) wait_grid();
  let_next_grid_begin();

  // --- sums ---
  std::byte* const zeros = shared + Shape::warps * Shape::ring_bytes;
  std::byte* const x_shared = zeros + Shape::zero_bytes;
  if (thread < Shape::zero_bytes / 16) reinterpret_cast<uint4*>(zeros)[thread] = uint4{0, 0, 0, 0};
  const int row_at = g * Shape::row_bytes + j * 16;
  const int swap = (g & 1) * 64;
  const bool mine = g % 4 == j;
  const std::uint32_t signs = 0x80808080u + blockIdx.z;
  const std::byte* stage = ring;
  const std::byte* scale_run = scale_ring;
  int tile_at = pair, phase_at = 0, turn = 0;
  int batch_phase = 0;
  while (batch_phase < phase_count) {
    const bool down = batch_phase >= inner_count;
    const int columns = down ? args.width : args.hidden;
    // The rows of x of the next phases, up to the end of their batch.
    int batch_end = batch_phase;
    int rows = 0;
    while (batch_end < phase_count && batch_end < (down ? phase_count : inner_count) &&
           phase_of(batch_end).batch == phase_of(batch_phase).batch) {
      rows += phase_of(batch_end).count;
      ++batch_end;
    }
    const int last_tile = tile_of(batch_end - 1) + phase_of(batch_end - 1).tiles;
    __syncthreads();  // the rows before are read
    if (down && batch_phase == inner_count) {
      // All blocks have written what down reads.
      if (thread == 0 && Shape::part != 3) wait_for_meeting(args.counter, arrive_at_meeting(args.counter, static_cast<unsigned>(blocks)));
      __syncthreads();
    }
    const int pieces = columns / 8;
    const std::uint16_t* const x_from = down ? args.inner : args.x;
    const std::int64_t x_stride = down ? args.width : args.x_stride;
    for (int i = thread; i < rows; i += Shape::threads) plan.largest[i] = 0;
    __syncthreads();
    const auto row_of = [&](int row) {
      int p = batch_phase;
      while (row >= phase_of(p).count) row -= phase_of(p).count, ++p;
      const int item = plan.groups.items[phase_of(p).first + row];
      return down ? item : item / args.list_divisor;
    };
    // A piece of a row of x, eight columns: where it stands, so that the lanes' k-th stand together.
    const auto place_of = [&](int row, int at) {
      constexpr int of_lane = nibbles ? 4 : 2;
      const int to = at / (4 * of_lane) * (4 * of_lane) + at % of_lane * 4 + at / of_lane % 4;
      return reinterpret_cast<uint4*>(x_shared + row * (columns * 2) + to * 16);
    };
    for (int i = thread; i < rows * pieces; i += Shape::threads) {
      const int row = i / pieces;
      const int at = i - row * pieces;
      const uint4 v = __ldcg(reinterpret_cast<const uint4*>(x_from + row_of(row) * x_stride) + at);
      std::uint32_t high = __vmaxu2(__vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                                    __vmaxu2(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu));
      high = max(high >> 16, high & 0xffffu);
      high = __reduce_max_sync(all_lanes, high);
      if (lane == 0) atomicMax(&plan.largest[row], high);
      std::uint32_t pairs[4];
      Codec_::arrange(v, pairs);
      *place_of(row, at) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
    }
    __syncthreads();
    for (int i = thread; i < rows * pieces; i += Shape::threads) {
      const int row = i / pieces;
      uint4* const to = place_of(row, i - row * pieces);
      uint4 v = *to;
      const std::uint32_t factor = static_cast<std::uint32_t>(spare_power(plan.largest[row]) + 127) * 0x00800080u;
      v.x = multiply_bf16(v.x, factor), v.y = multiply_bf16(v.y, factor);
      v.z = multiply_bf16(v.z, factor), v.w = multiply_bf16(v.w, factor);
      *to = v;
    }
    __syncthreads();

    // `Twos`: twice as many items at most.
    const auto run_tile = [&]<int Twos>(const ExpertsPhase& phase, int tile) {
      const int chunks = columns / 2 / Shape::columns;
      const WeightPart* weights = down ? args.down + phase.group : args.gate_up + phase.group * 2;
      const float tensor_scales[2] = {weights[0].tensor_scale, weights[down ? 0 : 1].tensor_scale};
      const std::byte* x[Twos];
      int x_step[Twos];
#pragma unroll
      for (int p = 0; p < Twos; ++p) {
        const int item = 2 * p + g / 4;
        const bool own = mine && item < phase.count;
        x[p] = own ? x_shared + (phase.slot + item) * (columns * 2) + half * columns + j * 16 : zeros;
        x_step[p] = own ? Shape::columns * 2 : 0;
      }
      float total[Twos][4] = {};
      bool rare = false;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_copies<Shape::stages - 2>();
        __syncwarp();
        copy_stage();
        const int of_run = chunk % Shape::run;
        if constexpr (!nvfp4 && Shape::part != 1) {
          // Scales of 2^-127, and NaN.
          if (of_run == 0) {
            const uint4 all = *reinterpret_cast<const uint4*>(scale_run + lane * 16);
            std::uint32_t none = 0x80808080u;
            const std::uint32_t words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) none &= ((words[i] ^ (words[i] >> 1)) & 0x7f7f7f7fu) + 0x7f7f7f7fu;
            rare = __any_sync(all_lanes, none != 0x80808080u);
          }
        }
#pragma unroll
        for (int b = 0; b < (Shape::part == 1 ? 0 : 2); ++b) {
          std::uint32_t raw[4][4];
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            *reinterpret_cast<uint4*>(raw[r]) =
                *reinterpret_cast<const uint4*>(stage + row_at + r * 8 * Shape::row_bytes + ((b * 64) ^ swap));
          }
          float scales[4][nvfp4 ? 4 : 2];
          const std::byte* of =
              scale_run + g * Shape::scale_bytes + (of_run * 2 + b) * (Shape::scale_bytes / Shape::run / 2);
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const std::byte* row = of + r * 8 * Shape::scale_bytes;
            if constexpr (nvfp4) {
              const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(row + j % 2 * 4);
              widen_scales(codes, scales[r]);
            } else {
#pragma unroll
              for (int i = 0; i < (nibbles ? 2 : 1); ++i) {
                const std::uint32_t code =
                    *reinterpret_cast<const std::uint8_t*>(row + (nibbles ? j % 2 * 2 + i : j % 2));
                scales[r][i] = __uint_as_float(code << 23);
              }
              if constexpr (!nibbles) scales[r][1] = scales[r][0];
            }
          }
          if constexpr (!nvfp4) {
            if (rare) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                  const std::uint32_t bits = __float_as_uint(scales[r][i]);
                  if (bits == 0 || bits == 0x7f800000u) scales[r][i] = __uint_as_float(bits | 0x00400000u);
                }
              }
            }
          }
          float acc[Twos][2][4] = {};
          const auto add = [&](int k) {
            std::uint32_t pairs[4][4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              if constexpr (nibbles) {
                if constexpr (Shape::part == 5) Codec_::spread_e2m1(raw[r][k], pairs[r]);
                else spread_codes(raw[r][k], signs, pairs[r]);
              } else {
                std::uint32_t two[2];
                Codec_::spread_e4m3(raw[r][2 * k], two);
                pairs[r][0] = two[0], pairs[r][1] = two[1];
                Codec_::spread_e4m3(raw[r][2 * k + 1], two);
                pairs[r][2] = two[0], pairs[r][3] = two[1];
              }
            }
#pragma unroll
            for (int p = 0; p < Twos; ++p) {
              const uint4 v = *reinterpret_cast<const uint4*>(x[p] + b * (Shape::block_columns * 2) + k * 64);
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                mma_bf16(acc[p][m], pairs[2 * m][0], pairs[2 * m + 1][0], pairs[2 * m][1], pairs[2 * m + 1][1], v.x, v.y);
                mma_bf16(acc[p][m], pairs[2 * m][2], pairs[2 * m + 1][2], pairs[2 * m][3], pairs[2 * m + 1][3], v.z, v.w);
              }
            }
          };
          // Lane 4 g + j holds columns 2 j and 2 j + 1: of item j / 2, what lanes j % 2 * 2 and the next had.
          const auto scale = [&](int of_lane) {
#pragma unroll
            for (int p = 0; p < Twos; ++p) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                float(&sums)[4] = acc[p][r / 2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                  total[p][r] = fmaf(sums[r % 2 * 2 + i], scales[r][nvfp4 ? 2 * i + of_lane : i], total[p][r]);
                  sums[r % 2 * 2 + i] = 0;
                }
              }
            }
          };
          if constexpr (nibbles) {
            add(0), add(1);
            if constexpr (nvfp4) scale(0);
            add(2), add(3);
            scale(1);
          } else {
            add(0), add(1);
            scale(0);
          }
        }
#pragma unroll
        for (int p = 0; p < Twos; ++p) x[p] += x_step[p];
        stage = stage + Shape::value_bytes == ring + Shape::stages * Shape::value_bytes ? ring
                                                                                         : stage + Shape::value_bytes;
        if (of_run + 1 == Shape::run) {
          scale_run = scale_run + Shape::run_bytes == scale_ring + Shape::runs * Shape::run_bytes
                          ? scale_ring
                          : scale_run + Shape::run_bytes;
        }
      }
      // Each of the two finishes 16 of the rows.
#pragma unroll
      for (int p = 0; p < Twos; ++p) {
        float(&buffers)[2][2][32] = exchange[turn][pair];
        turn ^= 1;
        float sums[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          buffers[half ^ 1][r][lane] = half == 0 ? total[p][2 + r] : total[p][r];
          sums[r] = half == 0 ? total[p][r] : total[p][2 + r];
        }
        sync_threads_of(1 + pair, 64);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sums[r] += buffers[half][r][lane];
          sums[r] += __shfl_xor_sync(all_lanes, sums[r], 1);
        }
        const int item = 2 * p + j / 2;
        if (item >= phase.count) continue;
        const float missing =
            __uint_as_float(static_cast<std::uint32_t>(Shape::base - spare_power(plan.largest[phase.slot + item]) + 127) << 23);
        const int to = plan.groups.items[phase.first + item];
        if (!down) {
          if (j % 2 != 0) continue;
          const float gate = round_bf16(sums[0] * missing * tensor_scales[0]);
          const float up = round_bf16(sums[1] * missing * tensor_scales[1]);
          args.inner[std::int64_t{to} * args.width + tile * 16 + half * 8 + g] =
              narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
        } else {
          const float value = (j % 2 == 0 ? sums[0] : sums[1]) * missing * tensor_scales[0];
          args.sums[std::int64_t{to} * args.hidden + tile * 32 + half * 16 + j % 2 * 8 + g] =
              (args.scaling * args.pair_weights[to]) * value;
        }
      }
    };
    for (; tile_at < last_tile; tile_at += Shape::pairs) {
      while (tile_at >= tile_of(phase_at) + phase_of(phase_at).tiles) ++phase_at;
      const ExpertsPhase& phase = phase_of(phase_at);
      const int tile = phase.row_tile + tile_at - tile_of(phase_at);
      if (phase.count <= 2) {
        run_tile.template operator()<1>(phase, tile);
      } else if (phase.count <= 4) {
        run_tile.template operator()<2>(phase, tile);
      } else {
        run_tile.template operator()<4>(phase, tile);
      }
    }
    batch_phase = batch_end;
  }
  if (Shape::part != 3 && phase_count == inner_count && plan.groups.active > 0) {
    __syncthreads();
    if (thread == 0) arrive_at_meeting(args.counter, static_cast<unsigned>(blocks));
  }
  wait_copies<0>();
#endif
}

}  // namespace m3::ops::cuda
