// The products of matmul.h for one list of many rows of x on Hopper where W is bf16 (see matmul_wide_tiles_sm90.cuh): the
// warps that copy and those that multiply.
#pragma once

#include "src/ops/cuda/matmul_wide_launch_sm90.cuh"
#include "src/ops/cuda/matmul_wide_results_sm90.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// One thread keeps the ring filled.
template <WideStore Kind>
__device__ inline void produce(const WideArgs& wide, const Stages& stages, unsigned rank) {
  using Layout = SharedLayout;
  const int steps = wide.args.columns / step_columns;
  const int first_block = static_cast<int>(rank) * 2;  // copied to both blocks of the cluster
  Place place;
  Ring<Layout::stages> ring;
  prefetch_boxes(wide);
  for (int turn = 0;; ++turn) {
    wait_for(stages.table_full(turn % 2), turn / 2 % 2);
    if (!read_place(stages.table(turn % 2) + Layout::Table::place, place)) break;
    arrive(stages.table_empty(turn % 2));
    for (int step = 0; step < steps; ++step) {
      wait_for(stages.empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = stages.full(ring.stage);
      expect(full, static_cast<unsigned>(Layout::weight_bytes + place.copied * 128));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int block = first_block + i;
        copy_box_to(3, stages.weights(ring.stage) + block * Layout::block_bytes,
                    &wide.weights[part_of_block<Kind>(i, place.part)].values, step * step_columns,
                    row_of_block<Kind>(block, place.row), full);
      }
      copy_box(stages.x(ring.stage), x_box(wide, place.copied), step * step_columns, place.begin, full);
      ring.step();
    }
  }
}

template <int N>
__device__ inline void multiply(Sums& sums, const Stages& stages, Ring<SharedLayout::stages>& ring, int steps,
                                int group, unsigned rank) {
  using Layout = SharedLayout;
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for(stages.full(ring.stage), ring.phase);
    const std::uint64_t x = rows_descriptor(stages.x(ring.stage));
    const std::uint64_t w = rows_descriptor(stages.weights(ring.stage) + group * 2 * Layout::block_bytes);
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
    if (step > 0) release(stages.empty(last), rank);
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release(stages.empty(last), rank);
}

template <WideStore Kind>
__device__ inline void consume(const WideArgs& wide, const Stages& stages, unsigned rank) {
  using Layout = SharedLayout;
  const int steps = wide.args.columns / step_columns;
  const int group = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 128, 0);
  Ring<Layout::stages> ring;
  for (int turn = 0;; ++turn) {
    wait_for(stages.table_full(turn % 2), turn / 2 % 2);
    const std::uint32_t place = stages.table(turn % 2) + Layout::Table::place;
    if (load_word(place + 24) == 0) break;
    const int copied = static_cast<int>(load_word(place + 20));
    Sums sums = {};  // without it all widths' sums would be alive all along
    const auto products = [&]<int N>() { multiply<N>(sums, stages, ring, steps, group, rank); };
    switch (copied <= 96 ? (copied + 31) / 32 * 32 : copied) {
      case 32: products.template operator()<32>(); break;
      case 64: products.template operator()<64>(); break;
      case 96: products.template operator()<96>(); break;
      case 104:
      case 112: products.template operator()<112>(); break;
      case 120: products.template operator()<120>(); break;
      case 128: products.template operator()<128>(); break;
      case 136: products.template operator()<136>(); break;
      case 144: products.template operator()<144>(); break;
      default: products.template operator()<152>(); break;
    }
    pin(sums[0]);
    pin(sums[1]);
    store<Kind>(sums, wide, stages, turn % 2);
    arrive(stages.table_empty(turn % 2));
  }
}

}  // namespace wide

#endif

template <WideStore Kind>
__global__ void __launch_bounds__(wide_threads, 1) matmul_wide_sm90(const __grid_constant__ WideArgs wide_args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = SharedLayout;
  wait_for_previous();
  const wide::Stages stages{(shared_address(dynamic_shared()) + 1023u) & ~1023u};
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned rank = cluster_rank();
  if (thread == 0) {
    for (int stage = 0; stage < Layout::stages; ++stage) {
      init_barrier(stages.full(stage), 1);
      init_barrier(stages.empty(stage), wide::multiplying_warps * wide_cluster);
    }
    wide::init_tables(stages, 1);
    fence_barrier_init();
  }
  __syncthreads();
  sync_cluster();
  const int warp = __shfl_sync(all_lanes, thread / warp_size, 0);
  if (warp >= wide::multiplying_warps) {
    give_registers<40>();
    if (warp == wide::multiplying_warps) {
      if (thread % warp_size == 0) wide::produce<Kind>(wide_args, stages, rank);
    } else if (warp == wide::multiplying_warps + 1) {
      wide::schedule<Layout, Kind>(wide_args, stages, rank, 1.0f);
    }
    __syncwarp();
  } else {
    take_registers<232>();
    wide::consume<Kind>(wide_args, stages, rank);
  }
  // No block leaves while another still copies or arrives into its memory.
  sync_cluster();
#endif
}

inline cudaError_t matmul_shared(const MatmulArgs& args, cudaStream_t stream) {
  using Layout = SharedLayout;
  // No block goes without items: a list that one pair of tiles could hold is cut into three at most.
  static_assert(wide_least_items / 8 >= 3 * wide_cluster);
  WideArgs wide;
  const int units = describe_wide<Layout>(args, wide);
  if (units < 0 || args.groups > 0 || args.arranged) return cudaErrorInvalidValue;
  if (args.store == Store::activated) {
    return launch_wide<Layout, matmul_wide_sm90<WideStore::activated>>(wide, units, stream);
  }
  if (args.gelu) return launch_wide<Layout, matmul_wide_sm90<WideStore::gelu>>(wide, units, stream);
  if (wide_element(args) == 4) return launch_wide<Layout, matmul_wide_sm90<WideStore::floats>>(wide, units, stream);
  return launch_wide<Layout, matmul_wide_sm90<WideStore::halves>>(wide, units, stream);
}

}  // namespace m3::ops::cuda
