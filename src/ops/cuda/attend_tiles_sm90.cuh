// Attention of tiles of queries that walk together through their keys, on Hopper: attend_dense of prompts and the vision
// tower. A block of threads keeps 64 rows of queries for each of its warpgroups; one warpgroup ahead of them brings K and
// V, 128 keys at a time, through a ring of buffers. Several warpgroups are at different places of their work, so that one
// multiplies while another takes exponentials.
//
// A `Work` says what is attended:
//   Args; pieces (16 bytes each) of a row, columns of a result (80 or 128), fp8;
//   Work(args): of this block of threads; `empty()`: nothing to do;
//   first_tile(), end_tile(): of 128 keys each, from key 0 of the sequence or segment;
//   query(row): the row's elements, or null: none;
//   Run run(values, tile): where rows of K or V begin, how many have been written (the rest read as zeros; 0: skip);
//   Span seen(row): the keys it sees;
//   scale(), value_scale(); out(row): where its result goes, or null.
#pragma once

#include "src/ops/cuda/attend_sm90.cuh"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

struct KeyRows {
  const std::byte* rows;
  std::int64_t row_bytes;
  int readable;
};
struct Span {
  int first, last;  // [first, last)
};

template <int Groups, int Buffers>
struct TileMemory {
  static constexpr int buffer_bytes = tile_bytes(tile_keys);
  static constexpr int queries = Buffers * buffer_bytes;
  static constexpr int rest = queries + Groups * tile_bytes(group_queries);
  std::uint64_t full[Buffers], empty[Buffers], queries_full;
  int first_key[Buffers];  // of the tile in it; -1: the end
};
template <int Groups, int Buffers>
constexpr int tile_memory_bytes = TileMemory<Groups, Buffers>::rest +
                                  static_cast<int>(sizeof(TileMemory<Groups, Buffers>));

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warpgroup: pieces first … first + Count - 1 of 128 rows.
template <int Count>
__device__ inline void copy_pieces(const KeyRows& from, std::byte* tile, int first, int thread) {
  constexpr int rows = warpgroup_size / Count;  // at once
  const int row = thread / Count;
  const int piece = first + thread % Count;
  const std::byte* own = from.rows + row * from.row_bytes + piece * 16;
  std::byte* const to = tile + tile_piece<tile_keys>(row, piece);
  const int left = from.readable - row;
#pragma unroll
  for (int i = 0; i < Count; ++i, own += rows * from.row_bytes) {
    copy_async_16_or_zero(to + i * rows * swizzle_row, own, i * rows < left);
  }
}

// A warpgroup: 128 rows of fp8 on their way through registers. A thread has 16 elements of rows 16 i + thread / 8.
struct Fp8Rows {
  uint4 raw[8];

  __device__ void fetch(const KeyRows& from, int thread) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = 16 * i + thread / 8;
      raw[i] = uint4{0, 0, 0, 0};
      if (row < from.readable) {
        raw[i] = *reinterpret_cast<const uint4*>(from.rows + row * from.row_bytes + thread % 8 * 16);
      }
    }
  }
  __device__ void store(std::byte* tile, int thread) const {
    std::byte* const to[2] = {tile + tile_piece<tile_keys>(thread / 8, thread % 8 * 2),
                              tile + tile_piece<tile_keys>(thread / 8, thread % 8 * 2 + 1)};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint4 wide[2];
      widen_e4m3x4(raw[i].x, wide[0].x, wide[0].y);
      widen_e4m3x4(raw[i].y, wide[0].z, wide[0].w);
      widen_e4m3x4(raw[i].z, wide[1].x, wide[1].y);
      widen_e4m3x4(raw[i].w, wide[1].z, wide[1].w);
      *reinterpret_cast<uint4*>(to[0] + i * 16 * swizzle_row) = wide[0];
      *reinterpret_cast<uint4*>(to[1] + i * 16 * swizzle_row) = wide[1];
    }
  }
};

template <class Work, int Groups, int Buffers>
__device__ inline void produce_tiles(const Work& work, TileMemory<Groups, Buffers>& shared, std::byte* tiles,
                                     int thread) {
  using Memory = TileMemory<Groups, Buffers>;
  std::byte* const queries = tiles + Memory::queries;
#pragma unroll 1
  for (int at = thread; at < Groups * group_queries * Work::query_pieces; at += warpgroup_size) {
    const int row = at / Work::query_pieces;
    const int piece = at % Work::query_pieces;
    const std::uint16_t* from = work.query(row);
    copy_async_16_or_zero(queries + row / group_queries * tile_bytes(group_queries) +
                              tile_piece<group_queries>(row % group_queries, piece),
                          from != nullptr ? from + piece * 8 : work.any_query(), from != nullptr);
  }
  barrier_arrive_after_copies(&shared.queries_full);
  Turn<Buffers> turn;
  const int end = work.end_tile();
  const auto next_tile = [&](int tile) {  // from `tile` on, the first that is there
    while (tile < end && work.run(false, tile).readable <= 0) ++tile;
    return tile;
  };
  // `bring` fills a buffer and arrives.
  const auto fill = [&](int tile, const auto& bring) {
    barrier_wait(&shared.empty[turn.buffer], turn.parity ^ 1u);
    if (thread == 0) shared.first_key[turn.buffer] = tile * tile_keys;
    bring(tiles + turn.buffer * Memory::buffer_bytes);
    if (thread == 0) barrier_arrive(&shared.full[turn.buffer]);  // first_key
    turn.next();
  };
  int tile = next_tile(work.first_tile());
  if constexpr (Work::fp8) {
    // The rows of the tile after are under way while these are widened.
    Fp8Rows keys, values;
    if (tile < end) keys.fetch(work.run(false, tile), thread), values.fetch(work.run(true, tile), thread);
    while (tile < end) {
      const int next = next_tile(tile + 1);
      const auto widen = [&](Fp8Rows& rows, bool of_values) {
        fill(tile, [&](std::byte* to) {
          rows.store(to, thread);
          fence_async_proxy();
          barrier_arrive(&shared.full[turn.buffer]);
        });
        if (next < end) rows.fetch(work.run(of_values, next), thread);
      };
      widen(keys, false);
      widen(values, true);
      tile = next;
    }
  } else {
    for (; tile < end; tile = next_tile(tile + 1)) {
#pragma unroll
      for (int values = 0; values < 2; ++values) {
        const KeyRows run = work.run(values != 0, tile);
        fill(tile, [&](std::byte* to) {
          copy_pieces<8>(run, to, 0, thread);
          copy_pieces<Work::pieces - 8>(run, to, 8, thread);
          barrier_arrive_after_copies(&shared.full[turn.buffer]);
        });
      }
    }
  }
  barrier_wait(&shared.empty[turn.buffer], turn.parity ^ 1u);
  if (thread == 0) {
    shared.first_key[turn.buffer] = -1;
    barrier_arrive(&shared.full[turn.buffer]);
  }
  barrier_arrive(&shared.full[turn.buffer]);
}

template <class Work, int Groups, int Buffers>
__device__ inline void consume_tiles(const Work& work, TileMemory<Groups, Buffers>& shared, const std::byte* tiles,
                                     int group, int thread) {
  using Memory = TileMemory<Groups, Buffers>;
  constexpr int columns = Work::columns;
  // How far scores may rise above `top` before sums are scaled anew: weights up to 2^8 are as exact as any.
  constexpr float slack = 8;
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int row = group * group_queries + warp * 16 + g;
  const Span seen[2] = {work.seen(row), work.seen(row + 8)};
  // What all of the warp's rows see.
  int all_first = max(seen[0].first, seen[1].first);
  int all_last = min(seen[0].last, seen[1].last);
#pragma unroll
  for (int step = 4; step < warp_size; step *= 2) {
    all_first = max(all_first, __shfl_xor_sync(all_lanes, all_first, step));
    all_last = min(all_last, __shfl_xor_sync(all_lanes, all_last, step));
  }
  const float scale = work.scale();
  const std::uint64_t q = key_descriptor(tiles + Memory::queries + group * tile_bytes(group_queries));

  float sums[columns / 2];
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) sums[i] = 0;
  float top[2] = {no_score, no_score};
  bool rounded = false;  // top · scale, of some row of the warp
  float total[2] = {0, 0};
  Turn<Buffers> turn;
  const auto release = [&] {
    barrier_arrive(&shared.empty[turn.buffer]);
    turn.next();
  };
  barrier_wait(&shared.queries_full, 0);
  while (true) {
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    const int first_key = shared.first_key[turn.buffer];
    if (first_key < 0) break;
    fence_async_proxy();
    float scores[64];
    start_scores<Work::columns / 16>(scores, q, half_tile_bytes(group_queries),
                                     key_descriptor(tiles + turn.buffer * Memory::buffer_bytes));
    wgmma_wait<0>();
    pin(scores);
    release();
    if (first_key < all_first || first_key + tile_keys > all_last) {
      hide(scores, j, 0, seen[0].first - first_key, seen[0].last - first_key);
      hide(scores, j, 1, seen[1].first - first_key, seen[1].last - first_key);
    }
    const float highest[2] = {quad_max(row_max(scores, 0)), quad_max(row_max(scores, 1))};
    if (__any_sync(all_lanes, (highest[0] - top[0]) * scale > slack || (highest[1] - top[1]) * scale > slack)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float next = fmaxf(top[r], highest[r]);
        const float factor = next == no_score ? 1.0f : power_of_two((top[r] - next) * scale);  // 0 at the start
        top[r] = next;
        total[r] *= factor;
#pragma unroll
        for (int n = 0; n < columns / 8; ++n) sums[4 * n + 2 * r] *= factor, sums[4 * n + 2 * r + 1] *= factor;
      }
      rounded = any_rounded(top[0] == no_score ? 0.0f : top[0] * scale, top[1] == no_score ? 0.0f : top[1] * scale);
    }
    const float from[2] = {top[0] == no_score ? 0.0f : top[0], top[1] == no_score ? 0.0f : top[1]};
    float shift[2] = {from[0] * scale, from[1] * scale};
    if (rounded) {
      lower(scores, from[0], from[1]);
      shift[0] = shift[1] = 0;
    }
    std::uint32_t p[32];
    weigh(scores, scale, shift[0], shift[1], total[0], total[1], p);
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    fence_async_proxy();
    start_values<columns>(sums, p, value_descriptor(tiles + turn.buffer * Memory::buffer_bytes), true);
    wgmma_wait<0>();
    pin(sums);
    release();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = quad_sum(total[r]);
    std::uint16_t* to = work.out(row + 8 * r);
    if (to == nullptr || all == 0) continue;  // no key at all: nothing is written
    const float factor = work.value_scale() / all;
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(to + 8 * n + 2 * j) =
          pack_bf16(sums[4 * n + 2 * r] * factor, sums[4 * n + 2 * r + 1] * factor);
    }
  }
}

#endif

template <class Work, int Groups, int Buffers>
__global__ void __launch_bounds__((Groups + 1) * 128, 1)
    attend_tiles_sm90(const __grid_constant__ typename Work::Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = TileMemory<Groups, Buffers>;
  std::byte* const tiles = tile_memory();
  Memory& shared = *reinterpret_cast<Memory*>(tiles + Memory::rest);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < Buffers; ++i) {
      barrier_init(&shared.full[i], warpgroup_size + 1);
      barrier_init(&shared.empty[i], Groups * warpgroup_size);
    }
    barrier_init(&shared.queries_full, warpgroup_size);
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous();
  const Work work(args);
  if (work.empty()) return;
  constexpr int producer = Work::fp8 ? 104 : Groups == 2 ? 40 : Work::columns > 80 ? 32 : 56;
  constexpr int consumer = Groups == 2 ? (Work::fp8 ? 200 : 232) : Work::columns > 80 ? 160 : 152;
  static_assert(!Work::fp8 || Groups == 2);
  if (thread < warpgroup_size) {
    give_registers<producer>();
    produce_tiles<Work, Groups, Buffers>(work, shared, tiles, thread);
  } else {
    take_registers<consumer>();
    consume_tiles<Work, Groups, Buffers>(work, shared, tiles, thread / warpgroup_size - 1, thread % warpgroup_size);
  }
#endif
}

}  // namespace m3::ops::cuda
