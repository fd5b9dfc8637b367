// Products with 9 to 64 rows of x on Hopper: a block a multiprocessor reads its share of W's rows once, up to 128 of them at
// a time, and all of x beside it, in stages of 128 columns that all its warps wait for together.
#pragma once

#include "src/ops/cuda/decode_sm90.cuh"

namespace m3::ops::cuda {

// `Rows` of W at a time, up to 128.
template <WeightFormat Format_, int Tiles, int Stages, int Rows>
struct SomeShape {
  static constexpr int rows = Rows;
  static constexpr WeightFormat format = Format_;
  static constexpr int tiles = Tiles;  // of eight items
  static constexpr int stages = Stages;
  static constexpr int items = 8 * Tiles;
  static constexpr bool scaled = Codec<Format_>::scaled;
  static constexpr int row_bytes = 2 * step_bytes(Format_);
  static constexpr int pieces = row_bytes / 16;
  static constexpr int value_bytes = rows * row_bytes;
  static constexpr int scale_bytes = scaled ? 4 * rows : 0;
  static constexpr int x_bytes = items * 256;
  static constexpr int stage_bytes = value_bytes + scale_bytes + x_bytes;
  static constexpr int shared_bytes = stages * stage_bytes;
  // Where piece p of a row of W stands: lanes that read at once meet all banks.
  __device__ static int place(int row, int piece) {
    return piece ^ ((row & 1) * (Format_ == WeightFormat::bf16 ? 1 : 4));
  }
};

// Units are rows, or pairs of them (gate and up); `rounds` tiles a block.
template <class Shape, bool Activated>
__global__ void __launch_bounds__(256, 1)
    matmul_some_sm90(const __grid_constant__ MatmulArgs args, int units, int rounds) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Codec_ = DecodeCodec<Shape::format>;
  __shared__ const std::byte* w_rows[Shape::rows];  // null: none
  __shared__ const std::byte* scale_rows[Shape::rows];
  __shared__ const std::uint16_t* x_rows[Shape::items];
  std::byte* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int chunks = args.columns / 128;
  const int segment = chunks >= k_segments ? chunks / k_segments : 1;
  const std::int64_t row_bytes = std::int64_t{chunks} * Shape::row_bytes;
  bool waited = false;

  for (int round = 0; round < rounds; ++round) {
    const std::int64_t tile = std::int64_t{round} * gridDim.x + blockIdx.x;
    const std::int64_t all = std::int64_t{rounds} * gridDim.x;
    const auto first = static_cast<int>(units * tile / all);
    const auto count = static_cast<int>(units * (tile + 1) / all) - first;
    __syncthreads();  // the stages before are read
    if (thread < Shape::rows) {
      const int unit = Activated ? thread / 16 * 8 + thread % 8 : thread;
      w_rows[thread] = nullptr;
      if (unit < count) {
        int row = first + unit;
        const WeightPart& part = args.inline_parts[Activated ? thread % 16 / 8 : part_at(args, row)];
        w_rows[thread] = part.values + row * row_bytes;
        if constexpr (Shape::scaled) scale_rows[thread] = part.scales + std::int64_t{row} * chunks * 4;
      }
    }
    __syncthreads();
    const auto copy_weights = [&](int chunk) {
      if (chunk >= chunks) return;
      std::byte* const stage = shared + chunk % Shape::stages * Shape::stage_bytes;
      const int piece = thread % Shape::pieces;
#pragma unroll
      for (int i = 0; i < (Shape::rows * Shape::pieces + 255) / 256; ++i) {
        const int row = thread / Shape::pieces + i * (256 / Shape::pieces);
        if (Shape::rows * Shape::pieces % 256 != 0 && row >= Shape::rows) break;
        if (const std::byte* from = w_rows[row]; from != nullptr) {
          copy_async_16(stage + row * Shape::row_bytes + Shape::place(row, piece) * 16,
                        from + chunk * Shape::row_bytes + piece * 16);
        }
      }
      if constexpr (Shape::scaled) {
        if (thread < Shape::rows && w_rows[thread] != nullptr) {
          copy_async_small<4>(stage + Shape::value_bytes + thread * 4, scale_rows[thread] + chunk * 4);
        }
      }
    };
    const auto copy_x = [&](int chunk) {
      if (chunk < chunks) {
        std::byte* const stage =
            shared + chunk % Shape::stages * Shape::stage_bytes + Shape::value_bytes + Shape::scale_bytes;
        const int piece = thread % 16;
#pragma unroll
        for (int i = 0; i < (Shape::items + 15) / 16; ++i) {
          const int row = thread / 16 + i * 16;
          if (row < Shape::items) {
            copy_async_16(stage + row * 256 + (piece ^ (row & 1)) * 16, x_rows[row] + chunk * 128 + piece * 8);
          }
        }
      }
      commit_copies();
    };
    for (int chunk = 0; chunk < Shape::stages - 1; ++chunk) copy_weights(chunk);
    if (!waited) {
      // Weights are on their way before the kernel ahead has ended.
      if (!args.old_x) {
        wait_grid();
        let_next_grid_begin();
        waited = true;
      }
      if (thread < Shape::items) x_rows[thread] = args.x + x_row(args, min(thread, args.items - 1)) * args.x_stride;
      __syncthreads();
    }
    for (int chunk = 0; chunk < Shape::stages - 1; ++chunk) copy_x(chunk);

    float acc[Shape::tiles][4] = {};
    float total[Shape::tiles][4] = {};
    int left = segment;
    const bool mine = warp * (Activated ? 8 : 16) < count;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      wait_copies<Shape::stages - 2>();
      __syncthreads();
      copy_weights(chunk + Shape::stages - 1);
      copy_x(chunk + Shape::stages - 1);
      if (!mine) continue;
      const std::byte* const stage = shared + chunk % Shape::stages * Shape::stage_bytes;
      const std::byte* const of_x = stage + Shape::value_bytes + Shape::scale_bytes;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t pairs[2][8];
        std::uint32_t codes[2] = {};
        if constexpr (Shape::scaled) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            codes[r] = *reinterpret_cast<const std::uint8_t*>(stage + Shape::value_bytes + (warp * 16 + r * 8 + g) * 4 +
                                                              step * 2 + j / 2);
          }
        }
        const bool rare = Shape::scaled && __any_sync(all_lanes, Codec_::rare(codes[0] | codes[1]));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = warp * 16 + r * 8 + g;
          const std::byte* from = stage + row * Shape::row_bytes;
          if constexpr (Shape::format == WeightFormat::bf16) {
            *reinterpret_cast<uint4*>(pairs[r]) =
                *reinterpret_cast<const uint4*>(from + Shape::place(row, step * 8 + 2 * j) * 16);
            *reinterpret_cast<uint4*>(pairs[r] + 4) =
                *reinterpret_cast<const uint4*>(from + Shape::place(row, step * 8 + 2 * j + 1) * 16);
          } else {
            std::uint32_t raw[4];
            *reinterpret_cast<uint4*>(raw) =
                *reinterpret_cast<const uint4*>(from + Shape::place(row, step * 4 + j) * 16);
#pragma unroll
            for (int i = 0; i < 4; ++i) spread_e4m3(raw[i], pairs[r][2 * i], pairs[r][2 * i + 1]);
            std::uint32_t factor = Codec_::factor(codes[r]);
            if (rare) {
              const uint2 two = Codec_::factors(codes[r]);
#pragma unroll
              for (int i = 0; i < 8; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], two.x);
              factor = two.y;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) pairs[r][i] = multiply_bf16(pairs[r][i], factor);
          }
        }
#pragma unroll
        for (int t = 0; t < Shape::tiles; ++t) {
          const int row = t * 8 + g;
          std::uint32_t x[8];
          *reinterpret_cast<uint4*>(x) =
              *reinterpret_cast<const uint4*>(of_x + row * 256 + ((step * 8 + 2 * j) ^ (row & 1)) * 16);
          *reinterpret_cast<uint4*>(x + 4) =
              *reinterpret_cast<const uint4*>(of_x + row * 256 + ((step * 8 + 2 * j + 1) ^ (row & 1)) * 16);
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
    if (!waited) {
      wait_grid();
      let_next_grid_begin();
      waited = true;
    }
    if (!mine) continue;
#pragma unroll
    for (int t = 0; t < Shape::tiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int item = t * 8 + 2 * j + c;
        if (item >= args.items) continue;
        const int from = x_row(args, item);
        const int to = result_row(args, item);
        if constexpr (Activated) {
          if (warp * 8 + g >= count) continue;
          const int row = first + warp * 8 + g;
          const float gate = round_bf16((total[t][c] + acc[t][c]) * factor_of(args, args.inline_parts[0], from, row));
          const float up =
              round_bf16((total[t][2 + c] + acc[t][2 + c]) * factor_of(args, args.inline_parts[1], from, row));
          static_cast<std::uint16_t*>(args.out)[to * args.out_stride + row] =
              narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
        } else {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int unit = warp * 16 + r * 8 + g;
            if (unit >= count) continue;
            int row = first + unit;
            const int part = part_at(args, row);
            store_result(args, args.inline_parts[part], from, to, row, total[t][2 * r + c] + acc[t][2 * r + c]);
          }
        }
      }
    }
  }
#endif
}

}  // namespace m3::ops::cuda
