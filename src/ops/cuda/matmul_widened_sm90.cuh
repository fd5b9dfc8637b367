// The products of matmul.h for many rows of x on Hopper with W in registers (see matmul_wide_tiles_sm90.cuh): the warps
// that copy, those that widen and multiply, and the launch.
#pragma once

#include "src/ops/cuda/matmul_wide_launch_sm90.cuh"
#include "src/ops/cuda/matmul_widened_results_sm90.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// --- single warps ----------------------------------------------------------------------------------------------------

// One thread keeps the stages of W filled, each block its own rows.
template <typename Layout, WideStore Kind>
__device__ inline void produce_weights(const WideArgs& wide, const WidenedStages<Layout>& stages) {
  constexpr int per = Layout::weight_steps;
  const MatmulArgs& args = wide.args;
  const int count = (args.columns / step_columns + per - 1) / per;
  Place place;
  Ring<Layout::weight_stages> ring;
  int octet = 0;
  for (int turn = 0;; ++turn) {
    wait_for(stages.table_full(turn % 2), turn / 2 % 2);
    if (!read_place(stages.table(turn % 2) + Layout::Table::place, place)) break;
    arrive(stages.table_empty(turn % 2));
    const WeightMaps* maps[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int part = part_of_block<Kind>(i, place.part);
      maps[i] = args.groups > 0 ? args.maps + place.group * args.parts + part : wide.weights + part;
    }
    for (int stage = 0; stage < count; ++stage) {
      wait_for(stages.weights_empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = stages.weights_full(ring.stage);
      const bool scales_too = Layout::scale_row > 0 && stage % (wide_octet / per) == 0;
      expect(full, static_cast<unsigned>(Layout::weight_bytes + (scales_too ? Layout::scale_bytes : 0)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_box(stages.weights(ring.stage) + i * Layout::block_bytes, &maps[i]->values, stage * Layout::weight_columns,
                 row_of_block<Kind>(i, place.row), full);
      }
      if constexpr (Layout::scale_row > 0) {
        if (scales_too) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            copy_box(stages.scales(octet) + i * 64 * Layout::scale_row, &maps[i]->scales,
                     stage / (wide_octet / per) * Layout::scale_row, row_of_block<Kind>(i, place.row), full);
          }
          ++octet;
        }
      }
      ring.step();
    }
  }
}

// One thread keeps the stages of x filled: half of the items, to both blocks.
template <typename Layout>
__device__ inline void produce_x(const WideArgs& wide, const WidenedStages<Layout>& stages, unsigned rank) {
  const int steps = wide.args.columns / step_columns;
  Place place;
  Ring<Layout::x_stages> ring;
  prefetch_boxes(wide);
  for (int turn = 0;; ++turn) {
    wait_for(stages.table_full(turn % 2), turn / 2 % 2);
    if (!read_place(stages.table(turn % 2) + Layout::Table::place, place)) break;
    arrive(stages.table_empty(turn % 2));
    const int half = half_of(place.copied);
    const int first_item = rank != 0 ? half : 0;
    const int own = rank != 0 ? place.copied - half : half;
    const int together = steps_of_stage<Layout>(place.copied);
    for (int first = 0; first < steps; first += together) {
      const int count = min(together, steps - first);
      wait_for(stages.x_empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = stages.x_full(ring.stage);
      expect(full, static_cast<unsigned>(count * place.copied * 128));
      std::uint32_t to = stages.x(ring.stage) + first_item * 128;
      for (int step = first; own > 0 && step < first + count; ++step) {
        copy_box_to(3, to, x_box(wide, own), step * step_columns, place.begin + first_item, full);
        to += place.copied * 128;
      }
      ring.step();
    }
  }
}

// --- the products ----------------------------------------------------------------------------------------------------

template <typename Layout>
struct Rings {
  Ring<Layout::weight_stages> weights;
  Ring<Layout::x_stages> x;
  int octet = 0;  // begun so far
};

// By products of N items, one or two for all.
template <int N, WideStore Kind, bool Arranged, WeightFormat Format, int Halves>
__device__ inline void multiply_widened(float (&sums)[Halves][WidenedLayout<Format, Halves>::half_items / 2],
                                        const WidenedStages<WidenedLayout<Format, Halves>>& stages,
                                        Rings<WidenedLayout<Format, Halves>>& rings, int steps, unsigned rank,
                                        int copied) {
  using Layout = WidenedLayout<Format, Halves>;
  using Rows = RowsOfStep<Format, Arranged>;
  constexpr int next_row = Kind == WideStore::activated ? 64 : 8;  // a thread's second row: up's, or 8 on
  constexpr int per = Layout::weight_steps;
  constexpr bool direct = Format == WeightFormat::bf16;  // nothing to widen
  const int thread = fresh(static_cast<int>(threadIdx.x));
  const int j = thread % 4;
  const int row = first_row_of<Kind, Arranged>(thread);
  std::uint32_t row_at;  // what the lane loads begins here
  if constexpr (direct) {
    const int lane = thread % warp_size;
    const int fetched = first_row_of<Kind, Arranged>(thread - lane + lane % 8 * 4) + lane / 8 % 2 * next_row;
    row_at = Rows::place(fetched, lane / 16);
  } else {
    row_at = Rows::place(row, j);
  }
  const unsigned pick = pick_of<Format>(j);
  const int together = steps_of_stage<Layout>(copied);
  const unsigned step_bytes_of_x = copied * 128;
  // Waits for the step's stage of W where it begins one.
  const auto begin_step = [&](int step) {
    if (step % per == 0) wait_for(stages.weights_full(rings.weights.stage), rings.weights.phase);
    if (step % wide_octet == 0) ++rings.octet;
    return StepPlace{
        (stages.weights(rings.weights.stage) + row_at) ^ static_cast<unsigned>(step % per * step_bytes(Format)),
        stages.scales(rings.octet - 1) + row * Layout::scale_row, step};
  };
  // Behind the use of a stage's last step.
  const auto release_weights = [&](int stage) {
    fence_async_proxy();  // the rows were read by ordinary loads, and are copied to next
    arrive(stages.weights_empty(stage));
  };
  const auto release_x = [&] { release(stages.x_empty(Ring<Layout::x_stages>::before(rings.x.stage)), rank); };
  Rows rows;
  std::uint32_t w[4][4];
  int in_stage = 0;  // of the steps of x
  if constexpr (Halves == 2) {
    const unsigned half_bytes = half_of(copied) * 128;
    for (int step = 0; step < steps; ++step) {
      const StepPlace here = begin_step(step);
      if constexpr (direct) {
        __syncwarp();  // lanes may have come from the wait apart
        Rows::load_k16(here, 0, w[0]);
        Rows::load_k16(here, 1, w[1]);
      } else {
        rows.template load<next_row>(here, j);
      }
      wait_for(stages.x_full(rings.x.stage), rings.x.phase);
      const std::uint64_t x = rows_descriptor(stages.x(rings.x.stage) + in_stage * step_bytes_of_x);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if constexpr (!direct) {
          rows.template widen<next_row>(s, pick, w[s]);
          rows.template load_ahead<next_row>(s, here, here, false, j);
        }
        wgmma_fence();
        WgmmaItems<N>::run(sums[0], w[s], descriptor_at(x, s * 32), 1);
        WgmmaItems<N>::run(sums[1], w[s], descriptor_at(x, half_bytes + s * 32), 1);
        wgmma_commit();
        wgmma_wait<2>();
        // The products of this k16 and the one before may be under way: others' operands are free.
        if constexpr (direct) {
          if (s < 2) Rows::load_k16(here, s + 2, w[s + 2]);
        }
        if (s == 1 && in_stage == 0 && step > 0) release_x();
      }
      if ((step + 1) % per == 0 || step + 1 == steps) {
        release_weights(rings.weights.stage);
        rings.weights.step();
      }
      if (++in_stage == together || step + 1 == steps) {
        in_stage = 0;
        rings.x.step();
      }
    }
  } else {
    StepPlace here = begin_step(0);
    rows.template load<next_row>(here, j);
    for (int step = 0; step < steps; ++step) {
      wait_for(stages.x_full(rings.x.stage), rings.x.phase);
      const std::uint64_t x = rows_descriptor(stages.x(rings.x.stage) + in_stage * step_bytes_of_x);
      const bool more = step + 1 < steps;
      const bool last_of_stage = (step + 1) % per == 0 || !more;
      const int stage = rings.weights.stage;
      StepPlace next = here;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        rows.template widen<next_row>(s, pick, w[s]);
        if (s % 2 == 1) {  // products of two k16s together: these are short
          wgmma_fence();
          WgmmaItems<N>::run(sums[0], w[s - 1], descriptor_at(x, (s - 1) * 32), 1);
          WgmmaItems<N>::run(sums[0], w[s], descriptor_at(x, s * 32), 1);
          wgmma_commit();
          wgmma_wait<1>();
        }
        if (s == 0) {
          if (last_of_stage) rings.weights.step();
          if (more) next = begin_step(step + 1);
        }
        rows.template load_ahead<next_row>(s, here, next, more, j);
        if (s == 1 && in_stage == 0 && step > 0) release_x();
      }
      if (last_of_stage) release_weights(stage);
      here = next;
      if (++in_stage == together || !more) {
        in_stage = 0;
        rings.x.step();
      }
    }
  }
  wgmma_wait<0>();
  release_x();
}

template <WideStore Kind, bool Arranged, WeightFormat Format, int Halves>
__device__ inline void consume_widened(const WideArgs& wide, const WidenedStages<WidenedLayout<Format, Halves>>& stages,
                                       unsigned rank) {
  using Layout = WidenedLayout<Format, Halves>;
  const int steps = wide.args.columns / step_columns;
  Rings<Layout> rings;
  for (int turn = 0;; ++turn) {
    wait_for(stages.table_full(turn % 2), turn / 2 % 2);
    const std::uint32_t place = stages.table(turn % 2) + Layout::Table::place;
    if (load_word(place + 24) == 0) break;
    const int copied = static_cast<int>(load_word(place + 20));
    float sums[Halves][Layout::half_items / 2] = {};  // without it all widths' sums would be alive all along
    const auto multiply = [&]<int N>() {
      multiply_widened<N, Kind, Arranged, Format, Halves>(sums, stages, rings, steps, rank, copied);
    };
    // No more widths: short of registers, ptxas would wait for each product.
    if constexpr (Format == WeightFormat::bf16) {
      // For experts of about 256 items; up to 128, reading W takes longer than 64 columns of products.
      const int half = half_of(copied);
      switch (half <= 64 ? 64 : half <= 96 ? 96 : half <= 120 ? 120 : half) {
        case 64: multiply.template operator()<64>(); break;
        case 96: multiply.template operator()<96>(); break;
        case 120: multiply.template operator()<120>(); break;
        case 128: multiply.template operator()<128>(); break;
        case 136: multiply.template operator()<136>(); break;
        default: multiply.template operator()<144>(); break;
      }
    } else if constexpr (Halves == 2) {
      switch ((half_of(copied) + 15) / 16) {
        case 1:
        case 2: multiply.template operator()<32>(); break;
        case 3:
        case 4: multiply.template operator()<64>(); break;
        case 5:
        case 6: multiply.template operator()<96>(); break;
        case 7: multiply.template operator()<112>(); break;
        case 8: multiply.template operator()<128>(); break;
        default: multiply.template operator()<144>(); break;
      }
    } else {
      switch ((copied + 15) / 16) {
        case 1: multiply.template operator()<16>(); break;
        case 2: multiply.template operator()<32>(); break;
        case 3: multiply.template operator()<48>(); break;
        case 4: multiply.template operator()<64>(); break;
        case 5: multiply.template operator()<80>(); break;
        case 6: multiply.template operator()<96>(); break;
        case 7:
        case 8: multiply.template operator()<128>(); break;
        default: multiply.template operator()<144>(); break;
      }
    }
#pragma unroll
    for (int h = 0; h < Halves; ++h) pin(sums[h]);
    store_widened<Kind, Arranged, Format, Halves>(sums, wide, stages, turn % 2);
    arrive(stages.table_empty(turn % 2));
  }
}

}  // namespace wide

#endif

template <WeightFormat Format, int Halves, WideStore Kind, bool Arranged>
__global__ void __launch_bounds__(wide_threads, 1) matmul_widened_sm90(const __grid_constant__ WideArgs wide_args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WidenedLayout<Format, Halves>;
  wait_for_previous();
  const MatmulArgs& args = wide_args.args;
  const wide::WidenedStages<Layout> stages{(shared_address(dynamic_shared()) + 1023u) & ~1023u};
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned rank = cluster_rank();
  for (int i = thread; i < args.groups * args.parts; i += wide_threads) {
    acquire_map(&args.maps[i].values);
    if constexpr (Layout::scale_row > 0) acquire_map(&args.maps[i].scales);
  }
  if (thread == 0) {
    for (int stage = 0; stage < Layout::weight_stages; ++stage) {
      init_barrier(stages.weights_full(stage), 1);
      init_barrier(stages.weights_empty(stage), wide::multiplying_warps * warp_size);
    }
    for (int stage = 0; stage < Layout::x_stages; ++stage) {
      init_barrier(stages.x_full(stage), 1);
      init_barrier(stages.x_empty(stage), wide::multiplying_warps * wide_cluster);
    }
    wide::init_tables(stages, 2);
    fence_barrier_init();
  }
  __syncthreads();
  sync_cluster();
  const int warp = __shfl_sync(all_lanes, thread / warp_size, 0);
  if (warp >= wide::multiplying_warps) {
    give_registers<40>();
    if (warp == wide::multiplying_warps) {
      if (thread % warp_size == 0) wide::produce_weights<Layout, Kind>(wide_args, stages);
    } else if (warp == wide::multiplying_warps + 1) {
      // What the widened numbers lack: see RowsOfStep.
      wide::schedule<Layout, Kind>(wide_args, stages, rank, Arranged && Format == WeightFormat::nvfp4 ? 0x1p8f : 1.0f);
    } else if (warp == wide::multiplying_warps + 2) {
      if (thread % warp_size == 0) wide::produce_x<Layout>(wide_args, stages, rank);
    }
    __syncwarp();
  } else {
    take_registers<232>();
    wide::consume_widened<Kind, Arranged, Format, Halves>(wide_args, stages, rank);
  }
  // No block leaves while another still copies or arrives into its memory.
  sync_cluster();
#endif
}

template <WeightFormat Format, int Halves>
cudaError_t matmul_widened_by(const MatmulArgs& args, cudaStream_t stream) {
  using Layout = WidenedLayout<Format, Halves>;
  WideArgs wide;
  const int units = describe_wide<Layout>(args, wide);
  if (units < 0 || args.gelu) return cudaErrorInvalidValue;
  const bool activated = args.store == Store::activated;
  const int element = wide_element(args);
  if constexpr (Codec<Format>::scaled) {
    if (args.arranged && activated) {
      return launch_wide<Layout, matmul_widened_sm90<Format, Halves, WideStore::activated, true>>(wide, units, stream);
    }
    if (args.arranged && element == 2) {
      return launch_wide<Layout, matmul_widened_sm90<Format, Halves, WideStore::halves, true>>(wide, units, stream);
    }
  }
  if (args.arranged) return cudaErrorInvalidValue;
  if (activated) {
    return launch_wide<Layout, matmul_widened_sm90<Format, Halves, WideStore::activated, false>>(wide, units, stream);
  }
  if (element == 4) {
    return launch_wide<Layout, matmul_widened_sm90<Format, Halves, WideStore::floats, false>>(wide, units, stream);
  }
  return launch_wide<Layout, matmul_widened_sm90<Format, Halves, WideStore::halves, false>>(wide, units, stream);
}

template <WeightFormat Format>
cudaError_t matmul_wide_of(const MatmulArgs& args, cudaStream_t stream) {
  // Measured for 128 experts of MXFP4: 2.64 ms instead of 3.15 at 512 tokens, 3.22 instead of 3.40 at 2048.
  if constexpr (step_bytes(Format) == 32) {
    if (args.groups > 0 && args.items < 80 * args.groups) return matmul_widened_by<Format, 1>(args, stream);
  }
  return matmul_widened_by<Format, 2>(args, stream);
}

}  // namespace m3::ops::cuda
