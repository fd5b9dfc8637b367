// Routed experts of few tokens on Hopper: gate and up, activation and down in one launch of codes of four or eight bits.
// One block a multiprocessor. One warp copies weights, whole rows that follow each other in memory, into a ring that knows
// nothing of where the first product ends: what down needs is on its way before the blocks have met between the two. All
// workers take a stage together, each its own pieces of K, the same for all tiles: what it needs of x, of at most eight
// items, stays in its registers. Two more warps add the workers' sums up and store results, one waits for other blocks'.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/experts_sm90.h"

namespace m3::ops::cuda {

template <WeightFormat Format_, int Workers_, int Stages_>
struct ExpertsShape {
  static constexpr WeightFormat format = Format_;
  static constexpr int workers = Workers_;  // warps that multiply
  static constexpr int threads = 32 * (workers + 4);
  static_assert(workers % 4 == 0);  // registers are dealt out by four warps, 128 a thread at first
  static constexpr int worker_registers = 144, other_registers = 80;
  static_assert(workers * worker_registers + 4 * other_registers <= (workers + 4) * 128);
  static constexpr int stages = Stages_;
  static constexpr bool nibbles = step_bytes(Format_) == 32;
  static constexpr bool nvfp4 = Format_ == WeightFormat::nvfp4;
  static constexpr int row_bytes = nibbles ? 3072 : 6144;  // of gate and up, at most; of down half
  static constexpr int value_bytes = 8 * row_bytes;        // of a stage: 8 rows of gate and up, or 16 of down
  static constexpr int pieces = row_bytes / 64 / workers;  // of 64 bytes of a row of gate, a warp's; of down half
  static constexpr int gap = 64;                           // so that two rows' pieces lie in other banks
  static constexpr int scale_bytes = value_bytes / (nvfp4 ? 8 : nibbles ? 16 : 32);
  static constexpr int scale_gap = 32;
  static constexpr int stage_bytes = (value_bytes + gap + scale_bytes + scale_gap + 127) / 128 * 128;
  static constexpr int shared_bytes = stages * stage_bytes;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block's tiles of one expert, for some of its items.
struct ExpertsPhase {
  int group, first, count;  // of the table; items
  int tile, tiles;
};

// Meeting. counters[0]: blocks that wait for nothing any more; 1: warps, two a block, that have stored their results. Both
// are zero before and after the launch.
//
// Blocks spin in await_all until all are up, one a multiprocessor. That ends: the kernel ahead and those of other streams
// (the vision tower, of lower priority) wait for nothing of ours and leave their multiprocessors in time, and the kernel
// behind begins only once all blocks here have let it; what a block hands in never waits for others. Two kernels that meet
// so, on two streams of a device, could each hold what the other waits for: one backend of a process launches this
// (CudaBackend::meets_), others take other kernels. Nobody else may use the counters while one runs, nor leave them other
// than zero: too high, and blocks begin too early, or never.
//
// All lanes of a warp.
__device__ inline void hand_in(unsigned* counters) {
  __syncwarp();
  if (threadIdx.x % warp_size == 0) {
    __threadfence();
    atomicAdd(counters + 1, 1u);
  }
  __syncwarp();
}
// One thread: what the others have handed in is there, for it and for whom it tells.
__device__ inline void await_all(const unsigned* counters, unsigned blocks) {
  unsigned now = 0;
  while (now != 2 * blocks) {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(counters + 1) : "memory");
  }
}
// One thread of each block.
__device__ inline void leave_meeting(unsigned* counters, unsigned blocks) {
  if (atomicAdd(counters, 1u) == blocks - 1) counters[0] = counters[1] = 0;
}

// What other blocks may have written.
__device__ inline uint4 load_row(const void* address) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

template <class Shape>
struct ExpertsBarriers {
  std::uint64_t full[Shape::stages], empty[Shape::stages], summed[2], taken[2], inner;
};

#endif

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) experts_sm90(const __grid_constant__ ExpertsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Codec_ = DecodeCodec<Shape::format>;
  constexpr bool nvfp4 = Shape::nvfp4;
  constexpr bool nibbles = Shape::nibbles;
  constexpr int words = nibbles ? 4 : 2;  // of a lane's 16 bytes: pieces of x, eight columns each
  __shared__ GroupPlan<experts_items> groups;
  __shared__ ExpertsBarriers<Shape> barriers;
  __shared__ float4 partial[2][Shape::workers][32];
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);

  if (thread == 0) {
    for (int i = 0; i < Shape::stages; ++i) {
      barrier_init(&barriers.full[i], 1);
      barrier_init(&barriers.empty[i], warp_size * Shape::workers);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(&barriers.summed[i], warp_size * Shape::workers);
      barrier_init(&barriers.taken[i], warp_size);
    }
    barrier_init(&barriers.inner, 1);
    fence_barrier_init();
  }
  if (!args.old_routing) {
    // What is waited for names weights by tables that other kernels have driven out.
    constexpr int line = 128;
    for (int i = thread; i * line < args.groups * static_cast<int>(sizeof(WeightPart)); i += Shape::threads) {
      prefetch_l2(reinterpret_cast<const std::byte*>(args.down) + i * line);
    }
    for (int i = thread; i * line < 2 * args.groups * static_cast<int>(sizeof(WeightPart)); i += Shape::threads) {
      prefetch_l2(reinterpret_cast<const std::byte*>(args.gate_up) + i * line);
    }
    wait_grid();
  }
  // A worker's pieces of x, by lane 4 g + j of item g: 16 bytes of W meet `words` times eight columns.
  constexpr int piece_columns = nibbles ? 128 : 64;
  uint4 x[Shape::pieces][words];
  const auto load_x = [&]<int Pieces>(const std::uint16_t* row, int columns, bool own) {
#pragma unroll
    for (int s = 0; s < Pieces; ++s) {
      const int piece = warp + s * Shape::workers;
#pragma unroll
      for (int k = 0; k < words; ++k) {
        x[s][k] = uint4{0, 0, 0, 0};
        if (own && piece * piece_columns < columns) {
          x[s][k] = load_row(row + piece * piece_columns + (lane % 4 * words + k) * 8);
        }
      }
    }
  };
  const auto arrange_x = [&]<int Pieces>() {
#pragma unroll
    for (int s = 0; s < Pieces; ++s) {
#pragma unroll
      for (int k = 0; k < words; ++k) {
        std::uint32_t pairs[4];
        Codec_::arrange(x[s][k], pairs);
        x[s][k] = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
      }
    }
  };
  // All experts of a lone token take the same row. Behind the weights, 25 MB that are asked for at once, it came 4 us after
  // the plan.
  const bool lone = args.items <= args.list_divisor;
  if (lone && warp < Shape::workers)
    load_x.template operator()<Shape::pieces>(args.x, args.hidden, lane / 4 < args.items);
  plan_groups<Shape::threads>(args, groups);
  // The block's tiles of 16 rows (8 of gate and the same 8 of up, or 16 of down), by experts and at most 8 of their items.
  const auto for_phases = [&](bool down, const auto& body) {
    const int each = down ? args.hidden / 16 : args.width / 8;
    const int all = groups.active * each;
    const int begin = all * block / blocks;
    int left = all * (block + 1) / blocks - begin;
    for (int at = begin / each, first = begin - at * each; left > 0; ++at, first = 0) {
      const int tiles = min(left, each - first);
      const int last = groups.begin[at + 1];
      for (int item = groups.begin[at]; item < last; item += 8) {
        body(ExpertsPhase{groups.order[at], item, min(8, last - item), first, tiles});
      }
      left -= tiles;
    }
  };

  if (warp < Shape::workers) {
    // --- sums ---
    take_registers<Shape::worker_registers>();
    const int g = lane / 4;
    const int j = lane % 4;
    int at = 0, turn = 0;
    unsigned parity = 0, turn_parity = 1;
    const auto next_stage = [&] {
      if (++at == Shape::stages) at = 0, parity ^= 1;
    };
    const auto run = [&]<bool Down>() {
      constexpr int pieces = Down ? Shape::pieces / 2 : Shape::pieces;
      const int columns = Down ? args.width : args.hidden;
      const int row_bytes = columns / (nibbles ? 2 : 1);
      const int scale_row = columns / (nvfp4 ? 16 : 32);
      const int half_rows = Down ? 8 : 4;
      const int value_at = g / 2 * row_bytes + g % 2 * (half_rows * row_bytes + Shape::gap) + j * 16;
      // A lane's 16 bytes: 32 codes with one scale, or two; or 16 codes of 32 that share one.
      const int scale_at = Shape::value_bytes + Shape::gap + g / 2 * scale_row +
                           g % 2 * (half_rows * scale_row + Shape::scale_gap) +
                           (nvfp4     ? 2 * j
                            : nibbles ? j
                                      : j / 2);
      constexpr int piece_scales = nvfp4 ? 8 : nibbles ? 4 : 2;  // of 64 bytes
      const int all_pieces = columns / piece_columns;
      const bool whole = all_pieces == pieces * Shape::workers;  // M3's widths
      if (!Down && lone) arrange_x.template operator()<pieces>();
      for_phases(Down, [&](const ExpertsPhase& phase) {
        if (Down || !lone) {
          const int item = groups.items[phase.first + min(g, phase.count - 1)];
          const std::uint16_t* row =
              Down ? args.inner + std::int64_t{item} * args.width : args.x + item / args.list_divisor * args.x_stride;
          load_x.template operator()<pieces>(row, columns, g < phase.count);
          arrange_x.template operator()<pieces>();
        }
        for (int i = 0; i < phase.tiles; ++i) {
          // The stages of the tile's two halves; of down both in one.
          const std::byte* stage[2];
          const int first_at = at;
          barrier_wait(&barriers.full[at], parity);
          stage[0] = shared + at * Shape::stage_bytes;
          next_stage();
          if constexpr (Down) {
            stage[1] = stage[0] + 4 * row_bytes;
          } else {
            stage[1] = shared + at * Shape::stage_bytes;
            barrier_wait(&barriers.full[at], parity);
          }
          const std::byte* scale_rows[2] = {stage[0] + scale_at,
                                            Down ? stage[0] + scale_at + 4 * scale_row : stage[1] + scale_at};
          float acc[2][4] = {};
          // Of row r a lane's codes in piece s. Scales of both rows: 16 bits each, of which one byte counts, or two.
          const auto load_codes = [&](int s, int r, std::uint32_t(&raw)[4]) {
            *reinterpret_cast<uint4*>(raw) =
                *reinterpret_cast<const uint4*>(stage[r] + value_at + (warp + s * Shape::workers) * 64);
          };
          const auto load_scales = [&](int s) {
            using Codes = std::conditional_t<nvfp4, std::uint16_t, std::uint8_t>;
            const int from = (warp + s * Shape::workers) * piece_scales;
            const std::uint32_t first = *reinterpret_cast<const Codes*>(scale_rows[0] + from);
            const std::uint32_t second = *reinterpret_cast<const Codes*>(scale_rows[1] + from);
            return first | second << 16;
          };
          const auto add = [&]<bool Rare>(int s, const std::uint32_t(&raw)[2][4], std::uint32_t scales) {
#pragma unroll
            for (int k = 0; k < words; ++k) {
              std::uint32_t pairs[2][4];
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                if constexpr (nibbles) {
                  Codec_::spread_e2m1(raw[r][k], pairs[r]);
                } else {
                  Codec_::spread_e4m3(raw[r][2 * k], pairs[r]);
                  Codec_::spread_e4m3(raw[r][2 * k + 1], pairs[r] + 2);
                }
                const std::uint32_t code = scales >> (16 * r + (nvfp4 ? k / 2 * 8 : 0)) & 0xffu;
                if constexpr (Rare) {
                  const uint2 two = Codec_::factors(code);
#pragma unroll
                  for (int c = 0; c < 4; ++c) pairs[r][c] = multiply_bf16(multiply_bf16(pairs[r][c], two.x), two.y);
                } else {
                  const std::uint32_t factor = Codec_::usual_factor(code);
#pragma unroll
                  for (int c = 0; c < 4; ++c) pairs[r][c] = multiply_bf16(pairs[r][c], factor);
                }
              }
              const uint4 v = x[s][k];
              mma_bf16(acc[s % 2], pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], v.x, v.y);
              mma_bf16(acc[s % 2], pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], v.z, v.w);
            }
          };
          // One vote on all of the tile's scales, so that nothing stands between one piece's loads and another's products.
          std::uint32_t scales[pieces];
          std::uint32_t odd = 0;
          if (whole) {
#pragma unroll
            for (int s = 0; s < pieces; ++s) {
              scales[s] = load_scales(s);
              odd |= Codec_::rare_codes(scales[s]);
            }
          }
          if (whole && !__any_sync(all_lanes, odd != 0)) {
#pragma unroll
            for (int s = 0; s < pieces; ++s) {
              std::uint32_t raw[2][4];
              load_codes(s, 0, raw[0]), load_codes(s, 1, raw[1]);
              add.template operator()<false>(s, raw, scales[s]);
            }
          } else {
#pragma unroll
            for (int s = 0; s < pieces; ++s) {
              if (warp + s * Shape::workers >= all_pieces) break;
              std::uint32_t raw[2][4];
              load_codes(s, 0, raw[0]), load_codes(s, 1, raw[1]);
              add.template operator()<true>(s, raw, load_scales(s));
            }
          }
          // The stages are read: bulk copies may write them again. A read needs no fence between the proxies, whose cost
          // was 1 % of the kernel's.
          barrier_arrive(&barriers.empty[first_at]);
          if constexpr (!Down) {
            barrier_arrive(&barriers.empty[at]);
            next_stage();
          }
          barrier_wait(&barriers.taken[turn], turn_parity);
          partial[turn][warp][lane] =
              float4{acc[0][0] + acc[1][0], acc[0][1] + acc[1][1], acc[0][2] + acc[1][2], acc[0][3] + acc[1][3]};
          barrier_arrive(&barriers.summed[turn]);
          turn ^= 1;
          if (turn == 0) turn_parity ^= 1;
        }
      });
    };
    run.template operator()<false>();
    if (groups.active > 0) {
      barrier_wait(&barriers.inner, 0);
      run.template operator()<true>();
    }
  } else {
    give_registers<Shape::other_registers>();
    if (warp == Shape::workers) {
      // --- copies: lanes 0 ... 3 values and scales of either half of a stage's rows ---
      if (lane < 4) {
        int at = 0;
        unsigned parity = 1;
        const int side = lane % 2;
        const bool scales = lane >= 2;
        for (int down = 0; down < 2; ++down) {
          const int columns = down ? args.width : args.hidden;
          const int row_bytes = scales ? columns / (nvfp4 ? 16 : 32) : columns / (nibbles ? 2 : 1);
          const int rows = down ? 8 : 4;
          const int bytes = rows * row_bytes;
          const int total = 2 * rows * (columns / (nvfp4 ? 16 : 32) + columns / (nibbles ? 2 : 1));
          const int to = scales ? Shape::value_bytes + Shape::gap + side * (bytes + Shape::scale_gap)
                                : side * (bytes + Shape::gap);
          for_phases(down, [&](const ExpertsPhase& phase) {
            const WeightPart* weight = down ? args.down + phase.group : args.gate_up + phase.group * 2 + side;
            const std::byte* from = (scales ? weight->scales : weight->values) +
                                    (std::int64_t{phase.tile} * (down ? 16 : 8) + (down ? side * 8 : 0)) * row_bytes;
            const int n = phase.tiles * (down ? 1 : 2);
            for (int i = 0; i < n; ++i) {
              barrier_wait(&barriers.empty[at], parity);
              if (lane == 0) barrier_expect(&barriers.full[at], total);
              __syncwarp(0xf);
              copy_bulk(shared + at * Shape::stage_bytes + to, from, bytes, &barriers.full[at]);
              from += down ? 2 * bytes : bytes;
              if (++at == Shape::stages) at = 0, parity ^= 1;
            }
          });
        }
      }
      if (args.old_routing) wait_grid();  // which the next may take as done
      let_next_grid_begin();
    } else if (warp == Shape::workers + 3) {
      // --- other blocks' results ---
      if (lane == 0 && groups.active > 0) {
        if (args.old_routing) wait_grid();
        await_all(args.counters, static_cast<unsigned>(blocks));
        barrier_arrive(&barriers.inner);
        leave_meeting(args.counters, static_cast<unsigned>(blocks));
      }
    } else if (warp > Shape::workers) {
      // --- sums of the warps' sums, and what becomes of them ---
      const int g = lane / 4, j = lane % 4;
      if (args.old_routing) wait_grid();
      const int turn = warp - Shape::workers - 1;  // of the two: every other tile
      int wanted = turn;
      unsigned parity = 0;
      for (int down = 0; down < 2; ++down) {
        for_phases(down, [&](const ExpertsPhase& phase) {
          const WeightPart* weights = down ? args.down + phase.group : args.gate_up + phase.group * 2;
          const float first_scale = weights[0].tensor_scale * Codec_::missing;
          const float up_scale = down ? 0.0f : weights[1].tensor_scale * Codec_::missing;
          int to[2];
          float pair_weights[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            to[c] = groups.items[phase.first + min(2 * j + c, phase.count - 1)];
            pair_weights[c] = down ? args.scaling * args.pair_weights[to[c]] : 1.0f;
          }
          int i = wanted;
          wanted = (wanted - phase.tiles) & 1;
          for (; i < phase.tiles; i += 2) {
            barrier_wait(&barriers.summed[turn], parity);
            float4 sum = {0, 0, 0, 0};
#pragma unroll 4
            for (int w = 0; w < Shape::workers; ++w) {
              const float4 more = partial[turn][w][lane];
              sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            barrier_arrive(&barriers.taken[turn]);
            parity ^= 1;
            const int tile = phase.tile + i;
            if (!down) {
              // A row of gate and its row of up lie four lanes apart; each of the two finishes one of their two units.
              const bool even = g % 2 == 0;
              const float others[2] = {__shfl_xor_sync(all_lanes, even ? sum.z : sum.x, 4),
                                       __shfl_xor_sync(all_lanes, even ? sum.w : sum.y, 4)};
#pragma unroll
              for (int c = 0; c < 2; ++c) {
                if (2 * j + c >= phase.count) continue;
                const float gate = even ? (c == 0 ? sum.x : sum.y) : others[c];
                const float up = even ? others[c] : (c == 0 ? sum.z : sum.w);
                args.inner[std::int64_t{to[c]} * args.width + tile * 8 + g % 2 * 4 + g / 2] = narrow_bf16(activate(
                    round_bf16(gate * first_scale), round_bf16(up * up_scale), args.alpha, args.limit, args.beta));
              }
            } else {
#pragma unroll
              for (int c = 0; c < 2; ++c) {
                if (2 * j + c >= phase.count) continue;
                float* const out = args.sums + std::int64_t{to[c]} * args.hidden + tile * 16 + g % 2 * 8 + g / 2;
                out[0] = pair_weights[c] * ((c == 0 ? sum.x : sum.y) * first_scale);
                out[4] = pair_weights[c] * ((c == 0 ? sum.z : sum.w) * first_scale);
              }
            }
          }
        });
        if (!down && groups.active > 0) hand_in(args.counters);
      }
    }
  }
#endif
}

}  // namespace m3::ops::cuda
