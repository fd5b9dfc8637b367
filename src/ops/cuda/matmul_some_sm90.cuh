// Products with 9 to 63 rows of x and bf16 weights on Hopper: a block a multiprocessor reads its share of W's rows once, up to
// 80 of them, and all of x beside it, in stages of 128 columns that all its warps wait for together.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"

namespace m3::ops::cuda {

template <int Tiles, int Stages>
struct SomeShape {
  static constexpr int tiles = Tiles;  // of eight items
  static constexpr int stages = Stages;
  static constexpr int items = 8 * Tiles;
  static constexpr int row_bytes = 256;  // of a stage
  static constexpr int value_bytes = some_rows * row_bytes;
  static constexpr int stage_bytes = value_bytes + items * row_bytes;
  static constexpr int shared_bytes = stages * stage_bytes;
  // Where piece p of a row stands: lanes that read at once meet all banks.
  __device__ static int place(int row, int piece) { return (piece ^ (row & 1)) * 16; }
};

template <class Shape>
__global__ void __launch_bounds__(256, 1) matmul_some_sm90(const __grid_constant__ MatmulArgs args, int rows) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ const std::byte* w_rows[some_rows];  // null: none
  __shared__ const std::uint16_t* x_rows[Shape::items];
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int chunks = args.columns / 128;
  const int segment = chunks >= k_segments ? chunks / k_segments : 1;
  const auto first = static_cast<int>(std::int64_t{rows} * blockIdx.x / gridDim.x);
  const int count = static_cast<int>(std::int64_t{rows} * (blockIdx.x + 1) / gridDim.x) - first;
  if (thread < some_rows) {
    w_rows[thread] = nullptr;
    if (thread < count) {
      int row = first + thread;
      const WeightPart& part = args.inline_parts[part_at(args, row)];
      w_rows[thread] = part.values + row * (std::int64_t{chunks} * Shape::row_bytes);
    }
  }
  __syncthreads();
  const int piece = thread % 16;
  const auto copy_weights = [&](int chunk) {
    if (chunk >= chunks) return;
    std::byte* const stage = shared + chunk % Shape::stages * Shape::stage_bytes;
#pragma unroll
    for (int row = thread / 16; row < some_rows; row += 16) {
      if (const std::byte* from = w_rows[row]; from != nullptr) {
        copy_async_16(stage + row * Shape::row_bytes + Shape::place(row, piece),
                      from + chunk * Shape::row_bytes + piece * 16);
      }
    }
  };
  const auto copy_x = [&](int chunk) {
    if (chunk < chunks) {
      std::byte* const stage = shared + chunk % Shape::stages * Shape::stage_bytes + Shape::value_bytes;
#pragma unroll
      for (int row = thread / 16; row < Shape::items; row += 16) {
        copy_async_16(stage + row * Shape::row_bytes + Shape::place(row, piece), x_rows[row] + chunk * 128 + piece * 8);
      }
    }
    commit_copies();
  };
  // Weights are on their way before the kernel ahead has ended.
  for (int chunk = 0; chunk < Shape::stages - 1; ++chunk) copy_weights(chunk);
  wait_grid();
  let_next_grid_begin();
  if (thread < Shape::items) x_rows[thread] = args.x + x_row(args, min(thread, args.items - 1)) * args.x_stride;
  __syncthreads();
  for (int chunk = 0; chunk < Shape::stages - 1; ++chunk) copy_x(chunk);

  float acc[Shape::tiles][4] = {};
  float total[Shape::tiles][4] = {};
  int left = segment;
  const bool mine = warp * 16 < count;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_copies<Shape::stages - 2>();
    __syncthreads();
    copy_weights(chunk + Shape::stages - 1);
    copy_x(chunk + Shape::stages - 1);
    if (!mine) continue;
    const std::byte* const stage = shared + chunk % Shape::stages * Shape::stage_bytes;
    const auto load = [&](const std::byte* rows_at, int row, int step, std::uint32_t* pairs) {
      const std::byte* from = rows_at + row * Shape::row_bytes;
      *reinterpret_cast<uint4*>(pairs) = *reinterpret_cast<const uint4*>(from + Shape::place(row, step * 8 + 2 * j));
      *reinterpret_cast<uint4*>(pairs + 4) =
          *reinterpret_cast<const uint4*>(from + Shape::place(row, step * 8 + 2 * j + 1));
    };
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t pairs[2][8];
#pragma unroll
      for (int r = 0; r < 2; ++r) load(stage, warp * 16 + r * 8 + g, step, pairs[r]);
#pragma unroll
      for (int t = 0; t < Shape::tiles; ++t) {
        std::uint32_t x[8];
        load(stage + Shape::value_bytes, t * 8 + g, step, x);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          mma_bf16(acc[t], pairs[0][i], pairs[1][i], pairs[0][i + 1], pairs[1][i + 1], x[i], x[i + 1]);
        }
      }
    }
    if (--left == 0) {
      left = segment;
#pragma unroll
      for (int t = 0; t < Shape::tiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[t][i] += acc[t][i], acc[t][i] = 0;
      }
    }
  }
  wait_copies<0>();
  if (!mine) return;
#pragma unroll
  for (int t = 0; t < Shape::tiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int item = t * 8 + 2 * j + i % 2;
      const int at = warp * 16 + i / 2 * 8 + g;
      if (item >= args.items || at >= count) continue;
      int row = first + at;
      const int part = part_at(args, row);
      store_result(args, args.inline_parts[part], x_row(args, item), result_row(args, item), row,
                   total[t][i] + acc[t][i]);
    }
  }
#endif
}

}  // namespace m3::ops::cuda
