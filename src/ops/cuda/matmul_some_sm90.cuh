// Products with 9 to 64 rows of x and bf16 weights on Hopper: y = x · Wᵀ with wgmma, rows of x (items) as the 64 rows of a
// tile and up to 96 rows of W as its columns. Rows of W are dealt out evenly, eight at a time (a unit: gate and up of the same
// eight where results are activated), over all multiprocessors, so that each reads its share once; where that is more than 96
// rows, in several passes. Four warps copy W and four multiply. x comes by tensor copies, half of it to both blocks of a
// cluster; W does not, since boxes of eight rows took 75 ns each, three times what reading them takes.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"
#include "src/ops/cuda/wgmma_items.cuh"

namespace m3::ops::cuda {

struct SomeArgs {
  TensorMap x;  // boxes of half of the items
  MatmulArgs args;
  int units;  // of all parts
  int passes;
  int item_rows;  // items, in multiples of 16
  int stages;
};

inline constexpr int some_columns = 128;  // of K, a stage
inline constexpr int some_cluster = 2;
inline constexpr int some_threads = 2 * warpgroup_size;
inline constexpr int some_shared = 226 << 10;
inline constexpr int some_most_stages = 12;

template <int Rows>
__host__ __device__ constexpr int some_stage_bytes(int item_rows) {
  return (item_rows + Rows) * some_columns * 2;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where a unit's rows are: its part (gate, where results are activated), the first row there.
template <bool Activated>
__device__ inline int part_of_unit(const MatmulArgs& args, int unit, int& row) {
  int part = 0;
  if constexpr (!Activated) {
    for (; part + 1 < args.parts; ++part) {
      const int units = (args.inline_parts[part].rows + 7) / 8;
      if (unit < units) break;
      unit -= units;
    }
  }
  row = unit * 8;
  return part;
}

// A block's units in a pass.
struct SomeShare {
  int first, count;
  __device__ SomeShare(const SomeArgs& some, int pass) {
    const std::int64_t blocks = gridDim.x;
    const auto begin = static_cast<int>(some.units * std::int64_t{blockIdx.x} / blocks);
    const int all = static_cast<int>(some.units * (std::int64_t{blockIdx.x} + 1) / blocks) - begin;
    first = begin + all * pass / some.passes;
    count = begin + all * (pass + 1) / some.passes - first;
  }
};

#endif

// Rows: of W in a tile.
template <int Rows, bool Activated>
__global__ void __launch_bounds__(some_threads, 1) matmul_some_sm90(const __grid_constant__ SomeArgs some) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int unit_rows = Activated ? 16 : 8;
  __shared__ alignas(8) std::uint64_t full[some_most_stages], empty[some_most_stages];
  const MatmulArgs& args = some.args;
  const std::uint32_t base = (shared_address(dynamic_shared()) + 1023u) & ~1023u;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(all_lanes, thread / warp_size, 0);
  const int lane = thread % warp_size;
  const unsigned rank = cluster_rank();
  const int chunks = args.columns / some_columns;
  const int stage_bytes = some_stage_bytes<Rows>(some.item_rows);
  // Of a stage: x, then W; each two halves of 64 columns, whose rows take 128 bytes.
  const int x_half = some.item_rows * 128;
  const auto x_at = [&](int stage) { return base + static_cast<std::uint32_t>(stage * stage_bytes); };
  const auto weights_at = [&](int stage) { return x_at(stage) + static_cast<std::uint32_t>(2 * x_half); };
  if (thread == 0) {
    for (int stage = 0; stage < some.stages; ++stage) {
      barrier_init(&full[stage], warpgroup_size + 1);  // threads' copies, and x
      barrier_init(&empty[stage], 4 * some_cluster);   // warps that multiply
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (warp >= 4) {
    const int steps = some.passes * chunks;
    const int own = thread % warpgroup_size;
    // A thread copies piece own % 8 of both halves of every sixteenth row.
    constexpr int rows_at_once = warpgroup_size / 8;
    const int piece = own % 8;
    const std::byte* from[Rows / rows_at_once];  // null: none
    const auto begin_pass = [&](int pass) {
      const SomeShare share(some, pass);
#pragma unroll
      for (int i = 0; i < Rows / rows_at_once; ++i) {
        const int at = own / 8 + i * rows_at_once;
        from[i] = nullptr;
        if (at / unit_rows >= share.count) continue;
        int row = 0;
        const int part = part_of_unit<Activated>(args, share.first + at / unit_rows, row) + at % unit_rows / 8;
        row += at % 8;
        if (row >= args.inline_parts[part].rows) continue;
        from[i] = args.inline_parts[part].values + std::int64_t{row} * args.columns * 2 + piece * 16;
      }
    };
    const auto copy_weights = [&](int step, int stage) {
      if (step % chunks == 0) begin_pass(step / chunks);
      const std::uint32_t to =
          weights_at(stage) + static_cast<std::uint32_t>(own / 8 * 128 + ((piece ^ own / 8) & 7) * 16);
#pragma unroll
      for (int i = 0; i < Rows / rows_at_once; ++i) {
        if (from[i] == nullptr) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          copy_async_to(to + static_cast<std::uint32_t>((half * Rows + i * rows_at_once) * 128), from[i] + half * 128);
        }
        from[i] += some_columns * 2;
      }
      barrier_arrive_after_copies(&full[stage]);
    };
    const auto copy_x = [&](int step, int stage) {
      if (own != 0) return;
      const std::uint32_t barrier = shared_address(&full[stage]);
      expect(barrier, static_cast<unsigned>(some.item_rows * some_columns * 2));
      const int rows = some.item_rows / 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = half * x_half + static_cast<int>(rank) * rows * 128;
        copy_box_to(3, x_at(stage) + static_cast<std::uint32_t>(place), &some.x,
                    step % chunks * some_columns + half * 64, static_cast<int>(rank) * rows, barrier);
      }
    };
    // Weights are on their way before the kernel ahead has ended, and before the other block has its barriers.
    const int ahead = min(some.stages, steps);
    for (int step = 0; step < ahead; ++step) copy_weights(step, step);
    sync_cluster();
    wait_grid();
    let_next_grid_begin();
    for (int step = 0; step < ahead; ++step) copy_x(step, step);
    int stage = ahead % some.stages;
    unsigned phase = 0;
    for (int step = ahead; step < steps; ++step) {
      wait_for(shared_address(&empty[stage]), phase);
      copy_weights(step, stage);
      copy_x(step, stage);
      if (++stage == some.stages) stage = 0, phase ^= 1;
    }
  } else {
    sync_cluster();
    wait_grid();
    float sums[Rows / 2];
    int stage = 0, last = -1;
    unsigned phase = 0;
    const auto release = [&](int of) {
      if (lane < some_cluster) arrive_there(shared_address(&empty[of]), static_cast<unsigned>(lane));
    };
    const int g = lane / 4;
    const int j = lane % 4;
    for (int pass = 0; pass < some.passes; ++pass) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_for(shared_address(&full[stage]), phase);
        fence_async_proxy();
        pin(sums);
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Rows past the items are whatever lies behind them: their sums are dropped.
          const std::uint64_t x = rows_descriptor(x_at(stage) + static_cast<std::uint32_t>(half * x_half));
          const std::uint64_t w = rows_descriptor(weights_at(stage) + static_cast<std::uint32_t>(half * Rows * 128));
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            wgmma<Rows>(sums, descriptor_at(x, k * 32), descriptor_at(w, k * 32), chunk > 0 || half > 0 || k > 0);
          }
        }
        wgmma_commit();
        if (last >= 0) {
          wgmma_wait<1>();
          __syncwarp();
          release(last);
        }
        last = stage;
        if (++stage == some.stages) stage = 0, phase ^= 1;
      }
      wgmma_wait<0>();
      pin(sums);
      __syncwarp();
      release(last);
      last = -1;
      const SomeShare share(some, pass);
#pragma unroll
      for (int slot = 0; slot < Rows / unit_rows; ++slot) {
        if (slot >= share.count) break;
        int first = 0;
        const WeightPart* const weights = &args.inline_parts[part_of_unit<Activated>(args, share.first + slot, first)];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int item = warp * 16 + i / 2 * 8 + g;
          const int row = first + 2 * j + i % 2;
          if (item >= args.items || row >= weights->rows) continue;
          const int of_row = x_row(args, item);
          const int to = result_row(args, item);
          if constexpr (Activated) {
            const float gate = round_bf16(sums[slot * 8 + i] * factor_of(args, weights[0], of_row, row));
            const float up = round_bf16(sums[slot * 8 + 4 + i] * factor_of(args, weights[1], of_row, row));
            static_cast<std::uint16_t*>(args.out)[to * args.out_stride + row] =
                narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
          } else {
            store_result(args, *weights, of_row, to, row, sums[slot * 4 + i]);
          }
        }
      }
    }
  }
  // No block leaves while the other still copies or arrives into its memory.
  sync_cluster();
#endif
}

}  // namespace m3::ops::cuda
