// The products of matmul.h for many rows of x on Hopper (see matmul_wide_tiles_sm90.cuh): the warps that copy, those that
// multiply, and the launch.
#pragma once

#include "src/ops/cuda/matmul_wide_results_sm90.cuh"
#include "src/ops/cuda/matmul_wide_tiles_sm90.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// --- the warps of the third warpgroup --------------------------------------------------------------------------------

// Works out the tiles: two at a time are ready.
template <WeightFormat Format, WideStore Kind>
__device__ inline void schedule(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  const MatmulArgs& args = wide.args;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const bool weighted = args.store == Store::weighted || args.store == Store::weighted_halves;
  Walk<Kind> walk;
  for (int turn = 0;; ++turn) {
    Place place = {};
    const bool more = walk.next(wide, static_cast<int>(rank), place);
    const std::uint32_t table = shared.table(turn % 2);
    wait_for(shared.table_empty(turn % 2), (turn / 2 % 2) ^ 1);
    if (lane == 0) write_place(table + Layout::place, place, more);
    if (more) {
#pragma unroll
      for (int i = lane; i < wide_items; i += warp_size) {
        const int item = place.begin + i;
        if (i < place.count) {
          const int row = args.result_by_list ? args.list[item] : item;
          float factor = weighted ? args.scaling * args.pair_weights[row] : 1.0f;
          if (args.token_scales != nullptr) factor *= args.token_scales[item];
          store_word(table + Layout::token_rows + i * 4, static_cast<std::uint32_t>(row));
          store_float(table + Layout::token_factors + i * 4, factor);
        }
      }
      const int rows = args.inline_parts[place.part].rows;
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        const WeightPart* weight = part_in(args, place.group, part_of_block<Kind>(block, place.part));
        const float scale = weight->tensor_scale;
        const float* row_scales = weight->row_scales;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = min(row_of_block<Kind>(block, place.row) + lane + i * warp_size, rows - 1);
          store_float(table + Layout::row_factors + (block * 64 + lane + i * warp_size) * 4,
                      row_scales != nullptr ? scale * row_scales[row] : scale);
        }
      }
    }
    arrive(shared.table_full(turn % 2));
    if (!more) break;
  }
}

// One thread keeps the ring filled.
template <WeightFormat Format, WideStore Kind>
__device__ inline void produce(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  constexpr int step_elements = Format == WeightFormat::bf16 ? step_columns : step_bytes(Format);
  const MatmulArgs& args = wide.args;
  const int steps = args.columns / step_columns;
  const int first_block = static_cast<int>(rank) * 2;  // copied to both blocks of the cluster
  Place place;
  Ring<Layout::stages> ring;
  int octet = 0;
  prefetch_map(&wide.x_boxes[0]);
  prefetch_map(&wide.x_boxes[1]);
  for (int turn = 0;; ++turn) {
    wait_for(shared.table_full(turn % 2), turn / 2 % 2);
    if (!read_place(shared.table(turn % 2) + Layout::place, place)) break;
    arrive(shared.table_empty(turn % 2));
    const WeightMaps* maps[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int part = part_of_block<Kind>(i, place.part);
      maps[i] = args.groups > 0 ? args.maps + place.group * args.parts + part : wide.weights + part;
    }
    for (int step = 0; step < steps; ++step) {
      wait_for(shared.empty(ring.stage), ring.phase ^ 1);
      const std::uint32_t full = shared.full(ring.stage);
      const bool scales_too = Layout::scale_row > 0 && step % wide_octet == 0;
      expect(full,
             static_cast<unsigned>(Layout::weight_bytes + place.copied * 128 + (scales_too ? Layout::scale_bytes : 0)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int block = first_block + i;
        const std::uint32_t to = shared.weights(ring.stage) + block * Layout::block_bytes;
        const int row = row_of_block<Kind>(block, place.row);
        copy_box_to(3, to, &maps[i % 2]->values, step * step_elements, row, full);
      }
      if constexpr (Layout::scale_row > 0) {
        if (scales_too) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int block = first_block + i;
            const std::uint32_t to = shared.scales(octet & 1) + block * 64 * Layout::scale_row;
            const int row = row_of_block<Kind>(block, place.row);
            const int column = step / wide_octet * Layout::scale_row;
            copy_box_to(3, to, &maps[i % 2]->scales, column, row, full);
          }
          ++octet;
        }
      }
      const std::uint32_t x = shared.x(ring.stage);
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
__device__ inline void release(std::uint32_t empty, unsigned rank) {
  if (threadIdx.x % warp_size == 0) {
    arrive(empty);
    arrive_there(empty, rank ^ 1);
  }
}

// W from shared memory.
template <int N, WeightFormat Format>
__device__ inline void multiply_shared(Sums& sums, const Shared<Format>& shared, Ring<WideLayout<Format>::stages>& ring,
                                       int steps, int group, unsigned rank) {
  using Layout = WideLayout<Format>;
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for(shared.full(ring.stage), ring.phase);
    const std::uint64_t x = rows_descriptor(shared.x(ring.stage));
    const std::uint64_t w = rows_descriptor(shared.weights(ring.stage) + group * 2 * Layout::block_bytes);
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
    if (step > 0) release(shared.empty(last), rank);
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release(shared.empty(last), rank);
}

// What multiplies one row's numbers of a step. A code of e8m0 is a factor's exponent as it is: 0 stands for 0 then, not
// for 2^-127, and 255 for infinity.
template <WeightFormat Format>
struct RowScale {
  std::uint32_t factors[Format == WeightFormat::nvfp4 ? 2 : 1];  // pairs: of the k16s in turn, or of the step's halves

  __device__ void load(std::uint32_t row, int step) {
    const int at = step % wide_octet;
    if constexpr (Format == WeightFormat::nvfp4) {
      spread_e4m3(load_word(row + at * 4), factors[0], factors[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) factors[i] = multiply_bf16(factors[i], 0x7b807b80u);  // 2^120
    } else if constexpr (Codec<Format>::scaled) {
      factors[0] = __byte_perm(load_half(row + at * 2), 0, 0x4140) << 7;
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

// The bytes of one row with a lane's numbers of a k16: columns 16 s + 2 j, + 1, and + 8, + 9. `row`: for 8-bit formats
// with the lane's own offsets (see multiply_widened), swizzled; `offset`: in whole eights of rows.
template <WeightFormat Format>
__device__ inline uint2 load_row(std::uint32_t row, int s, int offset) {
  if constexpr (step_bytes(Format) == 64) {
    const std::uint32_t from = (row ^ (16u * static_cast<unsigned>(s))) + offset;
    return {load_word(from), load_word(from + 8)};
  } else {
    return load_words2(row + 8 * s + offset);
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
template <int N, WeightFormat Format>
__device__ inline void multiply_widened(Sums& sums, const Shared<Format>& shared,
                                        Ring<WideLayout<Format>::stages>& ring, int steps, unsigned rank, int& octet) {
  using Layout = WideLayout<Format>;
  constexpr int row_bytes = step_bytes(Format);
  const int thread = fresh(static_cast<int>(threadIdx.x));
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const std::uint32_t row = thread / 128 * 128 + thread % 128 / warp_size * 16 + g;
  // Pieces of 16 bytes of rows of 64 are swizzled by rows / 2 % 4 when copied.
  const std::uint32_t row_at = row * row_bytes + (row_bytes == 64 ? (g >> 1 & 3) * 16 + 4 * (j >> 1) : 0);
  const unsigned pick = pick_of<Format>(j);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    if (step % wide_octet == 0) ++octet;
    wait_for(shared.full(ring.stage), ring.phase);
    const std::uint32_t weights = shared.weights(ring.stage) + row_at;
    const std::uint64_t x = rows_descriptor(shared.x(ring.stage));
    RowScale<Format> scales[2][2];
    uint2 raw[2][2];
    const auto load = [&](int s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) raw[m][r] = load_row<Format>(weights, s, (m * 64 + r * 8) * row_bytes);
      }
    };
    load(0);
    if constexpr (Layout::scale_row > 0) {
      const std::uint32_t slot = shared.scales((octet - 1) & 1) + row * Layout::scale_row;
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
      if (s == 0 && step > 0) release(shared.empty(last), rank);
    }
    last = ring.stage;
    ring.step();
  }
  wgmma_wait<0>();
  release(shared.empty(last), rank);
}

// A tile without items of this block: stages go by.
template <WeightFormat Format>
__device__ inline void pass_by(const Shared<Format>& shared, Ring<WideLayout<Format>::stages>& ring, int steps,
                               unsigned rank, int& octet) {
  for (int step = 0; step < steps; ++step) {
    if (step % wide_octet == 0) ++octet;
    wait_for(shared.full(ring.stage), ring.phase);
    __syncwarp();
    release(shared.empty(ring.stage), rank);
    ring.step();
  }
}

template <WeightFormat Format, WideStore Kind>
__device__ inline void consume(const WideArgs& wide, const Shared<Format>& shared, unsigned rank) {
  using Layout = WideLayout<Format>;
  const int steps = wide.args.columns / step_columns;
  const int group = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 128, 0);
  Ring<Layout::stages> ring;
  int octet = 0;
  for (int turn = 0;; ++turn) {
    wait_for(shared.table_full(turn % 2), turn / 2 % 2);
    const std::uint32_t place = shared.table(turn % 2) + Layout::place;
    if (load_word(place + 24) == 0) break;
    const int copied = static_cast<int>(load_word(place + 20));
    if (copied == 0) {
      pass_by(shared, ring, steps, rank, octet);
    } else {
      Sums sums = {};  // without it all widths' sums would be alive all along
      const auto multiply = [&]<int N>() {
        if constexpr (Layout::in_shared) {
          multiply_shared<N>(sums, shared, ring, steps, group, rank);
        } else {
          multiply_widened<N>(sums, shared, ring, steps, rank, octet);
        }
      };
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
      } else if (copied <= 64) {  // with all widths ptxas would serialise them, short of registers
        multiply.template operator()<64>();
      } else if (copied <= 120) {
        multiply.template operator()<120>();
      } else if (copied <= 128) {
        multiply.template operator()<128>();
      } else if (copied <= 136) {
        multiply.template operator()<136>();
      } else {
        multiply.template operator()<152>();
      }
      pin(sums[0]);
      pin(sums[1]);
      store<Kind>(sums, wide, shared, turn % 2);
    }
    __syncwarp();
    if (threadIdx.x % warp_size == 0) arrive(shared.table_empty(turn % 2));
  }
}

}  // namespace wide

#endif

template <WeightFormat Format, WideStore Kind>
__global__ void __launch_bounds__(wide_threads, 1) matmul_wide_sm90(const __grid_constant__ WideArgs wide_args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WideLayout<Format>;
  wait_for_previous();
  const MatmulArgs& args = wide_args.args;
  const wide::Shared<Format> shared{(shared_address(dynamic_shared()) + 1023u) & ~1023u};
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned rank = cluster_rank();
  for (int i = thread; i < args.groups * args.parts; i += wide_threads) {
    acquire_map(&args.maps[i].values);
    if constexpr (Layout::scale_row > 0) acquire_map(&args.maps[i].scales);
  }
  if (thread == 0) {
    for (int stage = 0; stage < Layout::stages; ++stage) {
      init_barrier(shared.full(stage), 1);
      init_barrier(shared.empty(stage), 8 * wide_cluster);  // warps that multiply
    }
    for (int turn = 0; turn < 2; ++turn) {
      init_barrier(shared.table_full(turn), warp_size);
      init_barrier(shared.table_empty(turn), wide::table_readers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  sync_cluster();
  const int warp = __shfl_sync(all_lanes, thread / warp_size, 0);
  if (warp >= 8) {
    give_registers<40>();
    if (warp == 8) {
      if (thread % warp_size == 0) wide::produce<Format, Kind>(wide_args, shared, rank);
    } else if (warp == 9) {
      wide::schedule<Format, Kind>(wide_args, shared, rank);
    }
    __syncwarp();
  } else {
    take_registers<232>();
    wide::consume<Format, Kind>(wide_args, shared, rank);
  }
  // No block leaves while another still copies or arrives into its memory.
  sync_cluster();
#endif
}

template <WeightFormat Format, WideStore Kind>
cudaError_t launch_wide(const WideArgs& wide, int units, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_wide_sm90<Format, Kind>;
  constexpr int bytes = WideLayout<Format>::bytes;
  static_assert(bytes <= 232448);
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = wide_cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(wide_cluster);
  config.blockDim = dim3(wide_threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  // Clusters stay: more than run at a time would take their turns afterwards.
  static const int most = [&] {
    int count = 0;
    return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess && count > 0 ? count
                                                                                               : 132 / wide_cluster;
  }();
  config.gridDim = dim3(static_cast<unsigned>((units < most ? units : most) * wide_cluster));
  return cudaLaunchKernelEx(&config, kernel, wide);
}

// The number of tiles of items that takes the fewest columns of the tensor cores in all, clusters working in step.
inline int choose_item_pairs(int items, int row_tiles, int clusters) {
  const int eights = (items + 7) / 8;
  const int least = (items + wide_items * wide_cluster - 1) / (wide_items * wide_cluster);
  int best = least;
  long best_cost = -1;
  for (int pairs = least; pairs <= least + least / 2 + 2; ++pairs) {
    const int width = (eights + pairs * wide_cluster - 1) / (pairs * wide_cluster) * 8;
    const long rounds = (static_cast<long>(pairs) * row_tiles + clusters - 1) / clusters;
    const long cost = rounds * (width + 8);  // 8: what a tile costs beside
    if (best_cost < 0 || cost < best_cost) best = pairs, best_cost = cost;
  }
  return best;
}

template <WeightFormat Format>
cudaError_t matmul_wide_of(const MatmulArgs& args, cudaStream_t stream) {
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
  wide.item_pairs = choose_item_pairs(args.items, wide.row_tiles, 132 / wide_cluster);
  const int pairs =
      args.groups > 0 ? args.items / (wide_items * wide_cluster) + args.groups : wide.item_pairs;  // at most
  const int units = pairs * wide.row_tiles;
  if (activated) return launch_wide<Format, WideStore::activated>(wide, units, stream);
  if (args.gelu) {
    if constexpr (Format == WeightFormat::bf16) return launch_wide<Format, WideStore::gelu>(wide, units, stream);
    return cudaErrorInvalidValue;
  }
  if (element == 4) return launch_wide<Format, WideStore::floats>(wide, units, stream);
  return launch_wide<Format, WideStore::halves>(wide, units, stream);
}

}  // namespace m3::ops::cuda
