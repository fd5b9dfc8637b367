// The products of matmul.h with 9 to 64 rows of x (items) a weight on Hopper, of a list or of groups: yᵀ = W · xᵀ with wgmma,
// W widened into registers as in matmul_widened_sm90.cuh, which is made for many items: two groups of four warps on a
// multiprocessor widen there, and wait for their own instructions more than for memory. Here four do, a thread with 112
// registers, each 64 rows of a tile of 256; one ring of stages holds W, 32 KB of it each, and the x that it meets.
// What is read of x is N · 2 bytes for 256 of W, so no cluster shares it. A list's tiles are cut along K so that every
// block has as many stages (matmul_narrow_plan.h); the sums of a tile that several have are added by the last of them to
// come, in the order of K. Groups' tiles go round, uncut.
#pragma once

#include "src/ops/cuda/matmul_narrow_tiles_sm90.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace narrow {

// --- single threads that copy ------------------------------------------------------------------------------------------

template <WeightFormat Format, bool Activated>
__device__ inline void produce_weights(const NarrowArgs& narrow, const Places<Format>& places) {
  using Layout = NarrowLayout<Format>;
  const MatmulArgs& args = narrow.args;
  Walk walk(narrow);
  Segment segment;
  RingPlace ring;
  int octet = 0;  // in turns of the slots
  while (walk.next(narrow, segment)) {
    const WeightMaps* const maps = args.tall_maps + segment.group * args.parts + segment.part;
    const TensorMap* const values = args.groups > 0 ? &maps->values : narrow.values + segment.part;
    const TensorMap* const scales = args.groups > 0 ? &maps->scales : narrow.scales + segment.part;
    const int next_map = !Activated ? 0 : args.groups > 0 ? 2 : 1;  // up's lie behind gate's
    const int halves = Activated || segment.rows > narrow_half ? 2 : 1;
    for (int stage = segment.first; stage < segment.last; ++stage) {
      wait_for(places.empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = places.full(ring.stage);
      const bool scales_too = Layout::scale_row > 0 && (stage == segment.first || stage % Layout::octet_stages == 0);
      expect(full, static_cast<unsigned>(halves * (narrow_half * 128 + (scales_too ? Layout::scale_bytes / 2 : 0))));
#pragma unroll 1
      for (int half = 0; half < halves; ++half) {
        copy_box(places.weights(ring.stage) + half * (narrow_half * 128), values + half * next_map,
                 stage * (Format == WeightFormat::bf16 ? 64 : 128), segment.row + (Activated ? 0 : half * narrow_half),
                 full);
        if (scales_too) {
          copy_box(places.scales(octet) + half * (Layout::scale_bytes / 2), scales + half * next_map,
                   stage / Layout::octet_stages * Layout::scale_row, segment.row + (Activated ? 0 : half * narrow_half),
                   full);
        }
      }
      if (scales_too) octet = octet + 1 == narrow.ring ? 0 : octet + 1;
      ring.step(narrow.ring);
    }
  }
}

template <WeightFormat Format>
__device__ inline void produce_x(const NarrowArgs& narrow, const Places<Format>& places) {
  using Layout = NarrowLayout<Format>;
  Walk walk(narrow);
  Segment segment;
  RingPlace ring;
  while (walk.next(narrow, segment)) {
    const TensorMap* const box = narrow.x + segment.copied / 8 - 1;
    for (int stage = segment.first; stage < segment.last; ++stage) {
      wait_for(places.empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = places.full(ring.stage);
      expect(full, static_cast<unsigned>(Layout::steps * segment.copied * 128));
      copy_steps(places.x(ring.stage), box, stage * Layout::steps, segment.begin, full);
      ring.step(narrow.ring);
    }
  }
}

// --- the products ------------------------------------------------------------------------------------------------------

struct WorkerRings {
  RingPlace stages;
  int octet = 0;  // the slot of the next
};

// N: of the tile's items, in sixteens. `idle`: none of these rows are there.
template <int N, WeightFormat Format, bool Activated, bool Arranged>
__device__ inline void multiply(float (&sums)[narrow_items / 2], const Places<Format>& places, WorkerRings& rings,
                                int first, int last, int copied) {
  using Layout = NarrowLayout<Format>;
  using Rows = wide::RowsOfStep<Format, Arranged>;
  constexpr int next_row = Activated ? narrow_half : 8;
  constexpr bool direct = Format == WeightFormat::bf16;  // nothing to widen
  const int thread = wide::fresh(static_cast<int>(threadIdx.x));
  const int j = thread % 4;
  const int row = narrow_first_row(Activated, thread);
  std::uint32_t row_at;  // what the lane loads begins here
  if constexpr (direct) {
    const int lane = thread % warp_size;
    row_at =
        Rows::place(narrow_first_row(Activated, thread - lane + lane % 8 * 4) + lane / 8 % 2 * next_row, lane / 16);
  } else {
    row_at = Rows::place(row, j);
  }
  const unsigned pick = wide::pick_of<Format>(j);
  Rows rows;
  std::uint32_t w[4][4];
  std::uint32_t used = 0;  // the stage before, whose products may be under way
  for (int stage = first; stage < last; ++stage) {
    wait_for(places.full(rings.stages.stage), rings.stages.phase);
    if (Layout::scale_row > 0 && stage > first && stage % Layout::octet_stages == 0) {
      rings.octet = rings.octet + 1 == places.ring ? 0 : rings.octet + 1;
    }
    const std::uint32_t weights = places.weights(rings.stages.stage) + row_at;
    const std::uint32_t scales = places.scales(rings.octet) + row * Layout::scale_row;
    std::uint64_t x = rows_descriptor(places.x(rings.stages.stage));
#pragma unroll 1
    for (int step = 0; step < Layout::steps; ++step) {
      const wide::StepPlace here{weights ^ static_cast<unsigned>(step * step_bytes(Format)), scales,
                                 stage * Layout::steps + step};
      if constexpr (direct) {
        __syncwarp();  // lanes may have come from the wait apart
        Rows::load_k16(here, 0, w[0]);
        Rows::load_k16(here, 1, w[1]);
      } else {
        rows.template load<next_row>(here, j);
      }
#pragma unroll
      for (int s = 0; s < 4; s += 2) {
        if constexpr (!direct) {
#pragma unroll
          for (int k = s; k < s + 2; ++k) {
            rows.template widen<next_row>(k, pick, w[k]);
            rows.template load_ahead<next_row>(k, here, here, false, j);
          }
        }
        wgmma_fence();
        WgmmaItems<N>::run(sums, w[s], descriptor_at(x, s * 32), 1);
        WgmmaItems<N>::run(sums, w[s + 1], descriptor_at(x, s * 32 + 32), 1);
        wgmma_commit();
        wgmma_wait<1>();
        // Only these two may be under way: the other operands are free, and so is the stage before.
        if constexpr (direct) {
          if (s == 0) {
            Rows::load_k16(here, 2, w[2]);
            Rows::load_k16(here, 3, w[3]);
          }
        }
        if (s == 0 && step == 0 && used != 0) {
          fence_async_proxy();  // rows were read by ordinary loads, and are copied to next
          arrive(used);
        }
      }
      x = descriptor_at(x, copied * 128);
    }
    used = places.empty(rings.stages.stage);
    rings.stages.step(places.ring);
  }
  wgmma_wait<0>();
  fence_async_proxy();
  arrive(used);
  if (Layout::scale_row > 0) rings.octet = rings.octet + 1 == places.ring ? 0 : rings.octet + 1;
}

// Nothing but the turns of the ring.
template <WeightFormat Format>
__device__ inline void pass(const Places<Format>& places, WorkerRings& rings, int first, int last) {
  using Layout = NarrowLayout<Format>;
  for (int stage = first; stage < last; ++stage) {
    wait_for(places.full(rings.stages.stage), rings.stages.phase);
    if (Layout::scale_row > 0 && (stage == first || stage % Layout::octet_stages == 0)) {
      rings.octet = rings.octet + 1 == places.ring ? 0 : rings.octet + 1;
    }
    arrive(places.empty(rings.stages.stage));
    rings.stages.step(places.ring);
  }
}

template <WeightFormat Format, NarrowStore Kind, bool Arranged>
__device__ inline void work(const NarrowArgs& narrow, const Places<Format>& places) {
  using Layout = NarrowLayout<Format>;
  constexpr bool activated = Kind == NarrowStore::activated;
  const int group = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 128, 0);
  WorkerRings rings;
  for (int turn = 0;; ++turn) {
    wait_for(places.table_full(turn % 2), turn / 2 % 2);
    const std::uint32_t table = places.table(turn % 2);
    // Words of the segment, each read where it is wanted: registers are short during the products.
    const auto word = [&](int at) { return static_cast<int>(load_word(table + Layout::segment + at * 4)); };
    if (word(segment_more) == 0) break;
    const int first = word(segment_first), last = word(segment_last), copied = word(segment_copied);
    if (group * (activated ? 32 : 64) >= word(segment_rows)) {
      pass(places, rings, first, last);
      arrive(places.table_empty(turn % 2));
      continue;
    }
    float sums[narrow_items / 2] = {};
    const auto products = [&]<int N>() {
      multiply<N, Format, activated, Arranged>(sums, places, rings, first, last, copied);
    };
    switch ((copied + 15) / 16) {
      case 1: products.template operator()<16>(); break;
      case 2: products.template operator()<32>(); break;
      case 3: products.template operator()<48>(); break;
      default: products.template operator()<64>(); break;
    }
    pin(sums);
    bool whole = word(segment_first) == 0 && word(segment_last) == narrow.shape.stages;
    if (!whole) {
      whole = join(sums, narrow, places, {word(segment_tile), word(segment_first), word(segment_last)});
    }
    if (whole) store<Format, Kind, Arranged>(sums, narrow, table);
    arrive(places.table_empty(turn % 2));
  }
}

}  // namespace narrow

#endif

template <WeightFormat Format, NarrowStore Kind, bool Arranged>
__global__ void __launch_bounds__(narrow_threads, 1) matmul_narrow_sm90(const __grid_constant__ NarrowArgs narrow) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool activated = Kind == NarrowStore::activated;
  using Layout = NarrowLayout<Format>;
  const MatmulArgs& args = narrow.args;
  const narrow::Places<Format> places{(shared_address(dynamic_shared()) + 1023u) & ~1023u,
                                      Layout::stage_bytes(narrow.capacity), narrow.ring};
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < args.groups * args.parts; i += narrow_threads) {
    acquire_map(&args.tall_maps[i].values);
    if constexpr (Layout::scale_row > 0) acquire_map(&args.tall_maps[i].scales);
  }
  if (thread == 0) {
    for (int stage = 0; stage < narrow.ring; ++stage) {
      init_barrier(places.full(stage), 2);  // who copies W, and who copies x
      init_barrier(places.empty(stage), narrow_workers);
    }
    for (int turn = 0; turn < 2; ++turn) {
      init_barrier(places.table_full(turn), warp_size);
      init_barrier(places.table_empty(turn), narrow_workers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int warp = __shfl_sync(all_lanes, thread / warp_size, 0);
  // Weights of a list are on their way before the kernel ahead has ended; lists, x and results are not touched.
  if (warp != narrow_workers / warp_size || args.groups > 0) {
    wait_grid();
    let_next_grid_begin();  // which may take it that the kernel ahead of this one has ended
  }
  if (warp >= narrow_workers / warp_size) {
    give_registers<32>();
    const int own = warp - narrow_workers / warp_size;
    if (own == 0) {
      if (thread % warp_size == 0) narrow::produce_weights<Format, activated>(narrow, places);
      __syncwarp();
      if (args.groups == 0) wait_grid();  // kernels end in their order
    } else if (own == 1) {
      if (thread % warp_size == 0) narrow::produce_x(narrow, places);
    } else if (own == 2) {
      // What the widened numbers lack: see RowsOfStep.
      narrow::schedule<Format, activated>(narrow, places, Arranged && Format == WeightFormat::nvfp4 ? 0x1p8f : 1.0f);
    }
    __syncwarp();
  } else {
    take_registers<112>();
    narrow::work<Format, Kind, Arranged>(narrow, places);
  }
#endif
}

template <WeightFormat Format, NarrowStore Kind, bool Arranged>
cudaError_t launch_narrow(const NarrowArgs& narrow, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_narrow_sm90<Format, Kind, Arranged>;
  const int bytes = NarrowLayout<Format>::bytes(narrow.capacity);
  if (const auto error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  return launch(kernel, static_cast<unsigned>(narrow.shape.blocks), narrow_threads, static_cast<std::size_t>(bytes),
                stream, narrow);
}

// Fills in everything; false where the tensors cannot be described.
template <WeightFormat Format>
bool describe_narrow(const MatmulArgs& args, NarrowArgs& narrow) {
  using Layout = NarrowLayout<Format>;
  const bool activated = args.store == Store::activated;
  narrow.args = args;
  NarrowShape& shape = narrow.shape;
  shape.parts = activated ? 1 : args.parts;
  shape.tile_rows = activated ? narrow_half : narrow_rows;
  shape.stages = args.columns / (Layout::steps * step_columns);
  for (int part = 0; part < shape.parts; ++part) shape.rows[part] = args.inline_parts[part].rows;
  shape.cost = narrow_cost(shape);
  const int processors = multiprocessors() < narrow_most_blocks ? multiprocessors() : narrow_most_blocks;
  shape.blocks = args.groups > 0 ? processors : narrow_blocks(shape, processors);
  // A lower capacity leaves room for more stages.
  narrow.capacity = args.groups == 0 ? (args.items + 15) / 16 * 16 : args.items > 12 * args.groups ? narrow_items : 32;
  narrow.ring = Layout::ring(narrow.capacity);
  const int least = args.groups > 0 ? 8 : (args.items + 7) / 8 * 8;
  const int most = args.groups > 0 ? narrow.capacity : least;
  for (int rows = least; rows <= most; rows += 8) {
    if (!encode_steps_map(narrow.x[rows / 8 - 1], args.x, args.items, args.columns, args.x_stride * 2, rows,
                          Layout::steps)) {
      return false;
    }
  }
  for (int part = 0; part < args.parts && args.groups == 0; ++part) {
    WeightMaps maps;
    if (!encode_tall_weight(maps, args.inline_parts[part], args.columns)) return false;
    narrow.values[part] = maps.values;
    narrow.scales[part] = maps.scales;
  }
  return true;
}

template <WeightFormat Format>
cudaError_t matmul_narrow_of(const MatmulArgs& args, cudaStream_t stream) {
  NarrowArgs narrow;
  if (!describe_narrow<Format>(args, narrow)) return cudaErrorInvalidValue;
  const bool activated = args.store == Store::activated;
  const bool floats = args.store == Store::f32 || args.store == Store::weighted;
  if constexpr (Codec<Format>::scaled) {
    if (args.arranged && activated) return launch_narrow<Format, NarrowStore::activated, true>(narrow, stream);
    if (args.arranged && !floats) return launch_narrow<Format, NarrowStore::halves, true>(narrow, stream);
  }
  if (args.arranged) return cudaErrorInvalidValue;
  if (activated) return launch_narrow<Format, NarrowStore::activated, false>(narrow, stream);
  if (floats) return launch_narrow<Format, NarrowStore::floats, false>(narrow, stream);
  return launch_narrow<Format, NarrowStore::halves, false>(narrow, stream);
}

}  // namespace m3::ops::cuda
