// Routed experts of one or two tokens on Hopper in one launch, weights by bulk copies of whole rows.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/experts_decode_sm90.cuh"

namespace m3::ops::cuda {

template <WeightFormat Format_, int Stages_, int Part_ = 0>
struct StreamShape {
  static constexpr int part = Part_;
  static constexpr WeightFormat format = Format_;
  static constexpr int workers = 12;  // warps that multiply
  static constexpr int threads = 32 * (workers + 2);
  static constexpr int stages = Stages_;
  static constexpr bool nibbles = step_bytes(Format_) == 32;
  static constexpr bool nvfp4 = Format_ == WeightFormat::nvfp4;
  static constexpr int slices = nibbles ? 2 : 4;                  // of 128 bytes of a row of gate, a warp's; of down half
  static constexpr int value_bytes = 8 * slices * workers * 128;  // of a stage: 8 rows of gate and up, or 16 of down
  static constexpr int gap = 64;                                  // so that two rows' pieces lie in other banks
  static constexpr int scale_bytes = value_bytes / (nvfp4 ? 8 : nibbles ? 16 : 32);
  static constexpr int scale_gap = 32;
  static constexpr int stage_bytes = (value_bytes + gap + scale_bytes + scale_gap + 127) / 128 * 128;
  static constexpr int shared_bytes = stages * stage_bytes;
  static constexpr int base = nibbles ? 126 : 120;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The first of a run of sums.
__device__ inline void mma_bf16_new(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                    std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

template <class Shape>
struct StreamBarriers {
  std::uint64_t full[Shape::stages], empty[Shape::stages], summed[2], taken[2], inner;
};
struct StreamPlan {
  ExpertsPhase phases[2][16];
  GroupPlan groups;
  int count[2], tiles[2];
};

#endif

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) experts_stream_sm90(const __grid_constant__ ExpertsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Codec_ = DecodeCodec<Shape::format>;
  constexpr bool nvfp4 = Shape::nvfp4;
  constexpr bool nibbles = Shape::nibbles;
  constexpr int words = nibbles ? 4 : 2;  // of a lane's 16 bytes: pieces of x, eight columns each
  __shared__ StreamPlan plan;
  __shared__ StreamBarriers<Shape> barriers;
  __shared__ float partial[2][Shape::workers][32];
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);

  const auto mark = [&](int i) {
    if (Shape::part == 9 && lane == 0) {
      unsigned long long t;
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
      args.counter[32 + block * 16 + i] = static_cast<unsigned>(t);
    }
  };
  if (warp == 0) mark(0);
  if (thread == 0) {
    for (int i = 0; i < Shape::stages; ++i) {
      barrier_init(&barriers.full[i], 1);
      barrier_init(&barriers.empty[i], Shape::workers);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(&barriers.summed[i], Shape::workers);
      barrier_init(&barriers.taken[i], 1);
    }
    barrier_init(&barriers.inner, 1);
    fence_barrier_init();
  }
  if (!args.old_routing) {
    const int bytes = args.groups * 3 * static_cast<int>(sizeof(WeightPart));
    for (int i = thread; i * 128 < bytes; i += Shape::threads) prefetch_l2(reinterpret_cast<const std::byte*>(args.gate_up) + i * 128);
    wait_grid();
  }
  if (warp == 0) mark(1);
  plan_groups<Shape::threads>(args, plan.groups);
  if (thread < 2) {
    const bool down = thread == 1;
    const int each = down ? args.hidden / 16 : args.width / 8;
    const int all = plan.groups.active * each;
    const int begin = all * block / blocks;
    int tile = 0, count = 0;
    for (int at = begin / each, left = all * (block + 1) / blocks - begin, first = begin - at * each; left > 0;
         ++at, first = 0) {
      const int share = min(left, each - first);
      const int last = plan.groups.begin[at + 1];
      for (int i = plan.groups.begin[at]; i < last; i += 2) {
        ExpertsPhase& phase = plan.phases[down][count++];
        phase.group = plan.groups.order[at];
        phase.first = static_cast<short>(i), phase.count = static_cast<short>(min(2, last - i));
        phase.row_tile = static_cast<short>(first);
        phase.tile = tile, phase.tiles = share;
        tile += share;
      }
      left -= share;
    }
    plan.count[down] = count;
    plan.tiles[down] = tile;
  }
  __syncthreads();
  if (warp == 0) mark(2);

  if (warp == Shape::workers) {
    // --- copies: lanes 0 ... 3 values and scales of either half of a stage's rows ---
    if (lane < 4) {
      int at = 0;
      unsigned parity = 1;
      const int side = lane % 2;
      const bool scales = lane >= 2;
      [[maybe_unused]] int first = Shape::stages;
      for (int down = 0; down < 2; ++down) {
        const int columns = down ? args.width : args.hidden;
        const int row_bytes = scales ? columns / (nvfp4 ? 16 : 32) : columns / (nibbles ? 2 : 1);
        const int rows = down ? 8 : 4;
        const int bytes = rows * row_bytes;
        const int total = 2 * rows * (columns / (nvfp4 ? 16 : 32) + columns / (nibbles ? 2 : 1));
        const int to = scales ? Shape::value_bytes + Shape::gap + side * (bytes + Shape::scale_gap) : side * (bytes + Shape::gap);
        for (int p = 0; p < plan.count[down]; ++p) {
          const ExpertsPhase& phase = plan.phases[down][p];
          const WeightPart* weight = down ? args.down + phase.group : args.gate_up + phase.group * 2 + side;
          const std::byte* from = (scales ? weight->scales : weight->values) +
                                  (std::int64_t{phase.row_tile} * (down ? 16 : 8) + (down ? side * 8 : 0)) * row_bytes;
          const int n = phase.tiles * (down ? 1 : 2);
          for (int i = 0; i < n; ++i) {
            barrier_wait(&barriers.empty[at], parity);
            if (Shape::part == 2 && first <= 0) {
              if (lane == 0) barrier_arrive(&barriers.full[at]);
            } else {
              if (lane == 0) barrier_expect(&barriers.full[at], total);
              __syncwarp(0xf);
              copy_bulk(shared + at * Shape::stage_bytes + to, from, bytes, &barriers.full[at]);
            }
            --first;
            from += down ? 2 * bytes : bytes;
            if (++at == Shape::stages) at = 0, parity ^= 1;
          }
        }
      }
    }
    mark(3);
    let_next_grid_begin();
  } else if (warp == Shape::workers + 1) {
    // --- sums of the warps' sums, and what becomes of them ---
    const int g = lane / 4, j = lane % 4;
    int turn = 0;
    unsigned parity = 0;
    unsigned generation = 0;
    for (int down = 0; down < 2; ++down) {
      for (int p = 0; p < plan.count[down]; ++p) {
        const ExpertsPhase& phase = plan.phases[down][p];
        const WeightPart* weights = down ? args.down + phase.group : args.gate_up + phase.group * 2;
        const float tensor_scale = weights[down ? 0 : g % 2].tensor_scale;
        const int item = j / 2;
        const int to = plan.groups.items[phase.first + min(item, phase.count - 1)];
        const float weight = down ? args.scaling * args.pair_weights[to] : 1.0f;
        for (int i = 0; i < phase.tiles; ++i) {
          barrier_wait(&barriers.summed[turn], parity);
          float sum = 0;
#pragma unroll
          for (int w = 0; w < Shape::workers; ++w) sum += partial[turn][w][lane];
          __syncwarp();
          if (lane == 0) barrier_arrive(&barriers.taken[turn]);
          turn ^= 1;
          if (turn == 0) parity ^= 1;
          sum *= tensor_scale;
          const int tile = phase.row_tile + i;
          if (!down) {
            const float other = __shfl_xor_sync(all_lanes, sum, 4);
            if (g % 2 == 0 && item < phase.count) {
              args.inner[std::int64_t{to} * args.width + tile * 8 + j % 2 * 4 + g / 2] =
                  narrow_bf16(activate(round_bf16(sum), round_bf16(other), args.alpha, args.limit, args.beta));
            }
          } else if (item < phase.count) {
            args.sums[std::int64_t{to} * args.hidden + tile * 16 + g % 2 * 8 + j % 2 * 4 + g / 2] = weight * sum;
          }
        }
      }
      if (down == 0 && plan.groups.active > 0) {
        __syncwarp();
        if (lane == 0) {
          mark(11);
          if (Shape::part != 3) {
            generation = arrive_at_meeting(args.counter, static_cast<unsigned>(blocks));
            wait_for_meeting(args.counter, generation);
          }
          barrier_arrive(&barriers.inner);
        }
        __syncwarp();
      }
    }
    mark(12);
  } else {
    // --- sums ---
    const int g = lane / 4;
    const int j = lane % 4;
    const bool mine = g % 4 == j;
    const std::uint32_t signs = 0x80808080u + blockIdx.z;
    int at = 0, turn = 0;
    unsigned parity = 0, turn_parity = 1;
    const auto next_stage = [&] {
      if (++at == Shape::stages) at = 0, parity ^= 1;
    };
    const auto run = [&]<bool Down>() {
      constexpr int slices = Down ? Shape::slices / 2 : Shape::slices;
      constexpr int slice_columns = nibbles ? 256 : 128;
      const int columns = Down ? args.width : args.hidden;
      const int row_bytes = columns / (nibbles ? 2 : 1);
      const int scale_row = columns / (nvfp4 ? 16 : 32);
      const int half_rows = Down ? 8 : 4;
      const int value_at = g / 2 * row_bytes + g % 2 * (half_rows * row_bytes + Shape::gap) + j * 16;
      constexpr int block_scales = nvfp4 ? 8 : nibbles ? 4 : 2;  // of a block of 64 bytes
      const int scale_at = Shape::value_bytes + Shape::gap + g / 2 * scale_row + g % 2 * (half_rows * scale_row + Shape::scale_gap) +
                           (nibbles ? j % 2 * (block_scales / 2) : 0);
      const int all_slices = columns / slice_columns;
      for (int p = 0; p < plan.count[Down]; ++p) {
        const ExpertsPhase& phase = plan.phases[Down][p];
        uint4 x[slices][2][words];
        std::uint32_t high = 0;
        {
          const bool own = mine && g / 4 < phase.count;
          const int item = plan.groups.items[phase.first + min(g / 4, phase.count - 1)];
          const std::uint16_t* row = Down ? args.inner + std::int64_t{item} * args.width
                                          : args.x + item / args.list_divisor * args.x_stride;
#pragma unroll
          for (int s = 0; s < slices; ++s) {
            const int slice = warp + s * Shape::workers;
#pragma unroll
            for (int b = 0; b < 2; ++b) {
#pragma unroll
              for (int k = 0; k < words; ++k) {
                x[s][b][k] = uint4{0, 0, 0, 0};
                if (own && slice < all_slices) {
                  x[s][b][k] = __ldcg(reinterpret_cast<const uint4*>(row + slice * slice_columns + b * (slice_columns / 2) +
                                                                    j * (words * 8) + k * 8));
                }
              }
            }
          }
#pragma unroll
          for (int s = 0; s < slices; ++s) {
#pragma unroll
            for (int b = 0; b < 2; ++b) {
#pragma unroll
              for (int k = 0; k < words; ++k) {
                const uint4 v = x[s][b][k];
                high = __vmaxu2(high, __vmaxu2(__vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                                               __vmaxu2(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu)));
              }
            }
          }
        }
        high = max(high >> 16, high & 0xffffu);
#pragma unroll
        for (int i = 1; i < 16; i *= 2) high = max(high, __shfl_xor_sync(all_lanes, high, i));
        const int spare = min(Shape::base, spare_power(high));
        const std::uint32_t factor = static_cast<std::uint32_t>(spare + 127) * 0x00800080u;
        const float missing = __uint_as_float(
            static_cast<std::uint32_t>(Shape::base - __shfl_sync(all_lanes, spare, j / 2 * 16) + 127) << 23);
#pragma unroll
        for (int s = 0; s < slices; ++s) {
#pragma unroll
          for (int b = 0; b < 2; ++b) {
#pragma unroll
            for (int k = 0; k < words; ++k) {
              uint4& v = x[s][b][k];
              std::uint32_t pairs[4];
              Codec_::arrange(v, pairs);
              v.x = multiply_bf16(pairs[0], factor), v.y = multiply_bf16(pairs[1], factor);
              v.z = multiply_bf16(pairs[2], factor), v.w = multiply_bf16(pairs[3], factor);
            }
          }
        }
        if (warp == 0 && p == 0) mark(Down ? 8 : 4);
        for (int i = 0; i < phase.tiles; ++i) {
          // The stages of the tile's two halves; of down both in one.
          const std::byte* stage[2];
          const int first_at = at;
          barrier_wait(&barriers.full[at], parity);
          stage[0] = shared + at * Shape::stage_bytes;
          next_stage();
          if (warp == 0 && p == 0 && i == 0) mark(Down ? 9 : 5);
          if constexpr (Down) {
            stage[1] = stage[0] + 4 * row_bytes;
          } else {
            stage[1] = shared + at * Shape::stage_bytes;
            barrier_wait(&barriers.full[at], parity);
          }
          const std::byte* scale_rows[2] = {stage[0] + scale_at,
                                            Down ? stage[0] + scale_at + 4 * scale_row : stage[1] + scale_at};
          float total[2] = {0, 0};
          if (Shape::part != 1) {
#pragma unroll
            for (int s = 0; s < slices; ++s) {
              const int slice = warp + s * Shape::workers;
              if (slice >= all_slices) break;
#pragma unroll
              for (int b = 0; b < 2; ++b) {
                std::uint32_t raw[2][4];
                float scales[2][nvfp4 ? 4 : 2];
                bool rare = false;
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                  *reinterpret_cast<uint4*>(raw[r]) =
                      *reinterpret_cast<const uint4*>(stage[r] + value_at + slice * 128 + b * 64);
                  const std::byte* of = scale_rows[r] + slice * (2 * block_scales) + b * block_scales;
                  if constexpr (nvfp4) {
                    widen_scales(*reinterpret_cast<const std::uint32_t*>(of), scales[r]);
                  } else {
                    // Two lanes' groups; or one group of two lanes' each.
                    const std::uint32_t two =
                        nibbles ? *reinterpret_cast<const std::uint16_t*>(of)
                                : *reinterpret_cast<const std::uint8_t*>(of + j % 2) * 0x0101u;
                    scales[r][0] = __uint_as_float((two & 0xffu) << 23);
                    scales[r][1] = __uint_as_float((two & 0xff00u) << 15);
                    rare = rare || ((((two ^ (two >> 1)) & 0x7f7fu) + 0x7f7fu) & 0x8080u) != 0x8080u;
                  }
                }
                if constexpr (!nvfp4) {
                  if (__any_sync(all_lanes, rare)) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
#pragma unroll
                      for (int c = 0; c < 2; ++c) {
                        const std::uint32_t bits = __float_as_uint(scales[r][c]);
                        if (bits == 0 || bits == 0x7f800000u) scales[r][c] = __uint_as_float(bits | 0x00400000u);
                      }
                    }
                  }
                }
                float acc[2][4];
#pragma unroll
                for (int k = 0; k < words; ++k) {
                  std::uint32_t pairs[2][4];
#pragma unroll
                  for (int r = 0; r < 2; ++r) {
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
                  const uint4 v = x[s][b][k];
                  // nvfp4: a lane's 32 codes have two scales.
                  const bool fresh = nvfp4 ? k % 2 == 0 : k == 0;
                  float(&sums)[4] = acc[nvfp4 ? k / 2 : 0];
                  if (fresh) mma_bf16_new(sums, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], v.x, v.y);
                  else mma_bf16(sums, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], v.x, v.y);
                  mma_bf16(sums, pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], v.z, v.w);
                }
#pragma unroll
                for (int r = 0; r < 2; ++r) {
#pragma unroll
                  for (int c = 0; c < 2; ++c) {
                    if constexpr (nvfp4) {
                      total[r] = fmaf(acc[0][2 * r + c], scales[r][2 * c], total[r]);
                      total[r] = fmaf(acc[1][2 * r + c], scales[r][2 * c + 1], total[r]);
                    } else {
                      total[r] = fmaf(acc[0][2 * r + c], scales[r][c], total[r]);
                    }
                  }
                }
              }
            }
          }
          // The stages are read: bulk copies may write them again.
          fence_async_proxy();
          __syncwarp();
          if (lane == 0) barrier_arrive(&barriers.empty[first_at]);
          if constexpr (!Down) {
            if (lane == 0) barrier_arrive(&barriers.empty[at]);
            next_stage();
          }
#pragma unroll
          for (int r = 0; r < 2; ++r) total[r] += __shfl_xor_sync(all_lanes, total[r], 1);
          barrier_wait(&barriers.taken[turn], turn_parity);
          partial[turn][warp][lane] = (j % 2 == 0 ? total[0] : total[1]) * missing;
          __syncwarp();
          if (lane == 0) barrier_arrive(&barriers.summed[turn]);
          turn ^= 1;
          if (turn == 0) turn_parity ^= 1;
        }
      }
    };
    run.template operator()<false>();
    if (warp == 0) mark(6);
    if (plan.groups.active > 0) {
      barrier_wait(&barriers.inner, 0);
      if (warp == 0) mark(7);
      run.template operator()<true>();
    }
    if (warp == 0) mark(10);
  }
#endif
}

}  // namespace m3::ops::cuda
