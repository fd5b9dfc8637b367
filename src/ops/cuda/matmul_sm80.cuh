// The tensor-core products of matmul.h for one weight format: `decode` for few rows of x, `prefill` for many.
#pragma once

#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

// Which part a tile of rows belongs to, and the first row of it there.
struct TilePlace {
  int part;
  int row;
};
template <int TileRows>
__device__ inline TilePlace place_tile(const MatmulArgs& args, int tile) {
  int part = 0;
  for (; part + 1 < args.parts; ++part) {
    const int tiles = (args.inline_parts[part].rows + TileRows - 1) / TileRows;
    if (tile < tiles) break;
    tile -= tiles;
  }
  return {part, tile * TileRows};
}

__device__ inline int x_row(const MatmulArgs& args, int item) {
  return args.list != nullptr ? args.list[item] / args.list_divisor : item;
}

// One number of the result: its row factor, bias and destination.
__device__ inline void store_result(const MatmulArgs& args, const WeightPart& weight, int item, int row, float sum) {
  float factor = weight.tensor_scale;
  if (weight.row_scales != nullptr) factor = weight.tensor_scale * weight.row_scales[row];
  if (args.token_scales != nullptr) factor = args.token_scales[x_row(args, item)] * factor;
  float value = sum * factor;
  const int column = weight.first_column + row;
  if (args.bias != nullptr) value += args.bias[column];
  const std::int64_t to = args.result_by_list ? args.list[item] : item;
  const std::int64_t at = to * args.out_stride + column;
  if (args.store == Store::bf16) {
    static_cast<std::uint16_t*>(args.out)[at] = narrow_bf16(value);
  } else if (args.store == Store::f32) {
    static_cast<float*>(args.out)[at] = value;
  } else {
    static_cast<float*>(args.out)[at] = (args.scaling * args.pair_weights[to]) * value;
  }
}

// 16 rows of W and up to 8 · Tiles items a block; each of the eight warps sums one segment of K.
template <WeightFormat Format, int Tiles>
__global__ void __launch_bounds__(256) matmul_decode_sm80(const __grid_constant__ MatmulArgs args) {
  using Format_ = Codec<Format>;
  __shared__ float sums[k_segments][16][8 * Tiles + 1];
  const TilePlace place = place_tile<16>(args, static_cast<int>(blockIdx.x));
  int begin = static_cast<int>(blockIdx.y) * 8 * Tiles;
  int end = args.items;
  int stride = end;  // one pass
  WeightPart weight = args.inline_parts[place.part];
  if (args.groups > 0) {
    const int group = args.active[blockIdx.y];
    if (group < 0) return;
    begin = args.group_begin[group];
    end = args.group_begin[group + 1];
    stride = 8 * Tiles;
    weight = args.table[group * args.parts + place.part];
  }
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int steps = args.columns / step_columns;
  const int segment = (steps + k_segments - 1) / k_segments;
  const int first_step = warp * segment;
  const int last_step = min(steps, first_step + segment);
  const int last_row = weight.rows - 1;
  const std::int64_t row_bytes = std::int64_t{steps} * step_bytes(Format);
  const std::int64_t scale_bytes = args.columns / Format_::scale_columns;
  const int row0 = min(place.row + g, last_row);
  const int row1 = min(place.row + g + 8, last_row);
  const std::byte* const values0 = weight.values + row0 * row_bytes + j * Format_::lane_bytes;
  const std::byte* const values1 = weight.values + row1 * row_bytes + j * Format_::lane_bytes;
  const std::uint8_t* const scales0 =
      Format_::scaled ? reinterpret_cast<const std::uint8_t*>(weight.scales) + row0 * scale_bytes : nullptr;
  const std::uint8_t* const scales1 =
      Format_::scaled ? reinterpret_cast<const std::uint8_t*>(weight.scales) + row1 * scale_bytes : nullptr;

  for (int at = begin; at < end; at += stride) {
    const std::uint16_t* x[Tiles];
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      x[t] = args.x + x_row(args, min(at + t * 8 + g, end - 1)) * args.x_stride + j * 16;
    }
    float acc[Tiles][4] = {};
#pragma unroll(Tiles == 1 ? 4 : 2)
    for (int step = first_step; step < last_step; ++step) {
      std::uint32_t raw0[Format_::words], raw1[Format_::words];
      Format_::load_global(values0 + std::int64_t{step} * step_bytes(Format), raw0);
      Format_::load_global(values1 + std::int64_t{step} * step_bytes(Format), raw1);
      std::uint32_t scale0 = 0, scale1 = 0;
      if constexpr (Format_::scaled) {
        scale0 = __ldg(scales0 + Format_::scale_index(step, j));
        scale1 = __ldg(scales1 + Format_::scale_index(step, j));
      }
      std::uint32_t activations[Tiles][8];
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        const auto* from = reinterpret_cast<const uint4*>(x[t] + step * step_columns);
        Format_::arrange(from[0], from[1], activations[t]);
      }
#pragma unroll
      for (int piece = 0; piece < Format_::pieces; ++piece) {
        std::uint32_t pairs0[8], pairs1[8];
        Format_::widen(raw0, scale0, piece, pairs0);
        Format_::widen(raw1, scale1, piece, pairs1);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
#pragma unroll
          for (int t = 0; t < Tiles; ++t) {
            mma_bf16(acc[t], pairs0[i], pairs1[i], pairs0[i + 1], pairs1[i + 1], activations[t][i],
                     activations[t][i + 1]);
          }
        }
      }
    }
    __syncthreads();  // the sums of the pass before are read
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      sums[warp][g][t * 8 + 2 * j] = acc[t][0];
      sums[warp][g][t * 8 + 2 * j + 1] = acc[t][1];
      sums[warp][g + 8][t * 8 + 2 * j] = acc[t][2];
      sums[warp][g + 8][t * 8 + 2 * j + 1] = acc[t][3];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 16 * 8 * Tiles; i += 256) {
      const int row = i % 16;
      const int item = i / 16;
      float total = 0;
#pragma unroll
      for (int s = 0; s < k_segments; ++s) total += sums[s][row][item];
      if (at + item < end && place.row + row <= last_row) {
        store_result(args, weight, at + item, place.row + row, total);
      }
    }
  }
}

inline constexpr int prefill_stages = 3;
template <WeightFormat Format>
__host__ __device__ constexpr int prefill_stage_bytes() {
  return prefill_tile * (step_columns * 2 + step_bytes(Format));
}

// 128 items by 128 rows a block: copies of the next steps run under the products of this one. Eight warps of 64 rows by
// 32 items.
template <WeightFormat Format>
__global__ void __launch_bounds__(256) matmul_prefill_sm80(const __grid_constant__ MatmulArgs args, int row_tiles,
                                                           int item_tiles) {
  using Format_ = Codec<Format>;
  extern __shared__ __align__(128) std::byte shared[];
  constexpr int x_bytes = prefill_tile * step_columns * 2;
  constexpr int w_step = step_bytes(Format);

  // Neighbouring blocks share rows of W over a band of 16 item tiles, whose x stays in the L2 meanwhile.
  constexpr int band = 16;
  const int block = static_cast<int>(blockIdx.x);
  const int first_tile = block / (band * row_tiles) * band;
  const int tiles = min(band, item_tiles - first_tile);
  const int inside = block % (band * row_tiles);
  const int item_tile = first_tile + inside % tiles;
  const TilePlace place = place_tile<prefill_tile>(args, inside / tiles);

  int begin = item_tile * prefill_tile;
  int end = args.items;
  WeightPart weight = args.inline_parts[place.part];
  if (args.groups > 0) {
    const int group = args.tile_group[item_tile];
    if (group < 0) return;
    begin = args.tile_begin[item_tile];
    end = args.group_begin[group + 1];
    weight = args.table[group * args.parts + place.part];
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int warp_row = warp / 4 * 64;
  const int warp_item = warp % 4 * 32;
  const int steps = args.columns / step_columns;
  const int segment = (steps + k_segments - 1) / k_segments;
  const int last_row = weight.rows - 1;
  const std::int64_t row_bytes = std::int64_t{steps} * w_step;
  const std::int64_t scale_bytes = args.columns / Format_::scale_columns;

  // What this thread copies of every step: four chunks of 16 bytes of x, and its share of W.
  const std::uint16_t* x_from[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int item = min(begin + (thread + i * 256) / 8, end - 1);
    x_from[i] = args.x + x_row(args, item) * args.x_stride + thread % 8 * 8;
  }
  constexpr int w_chunks = w_step / 16;  // a row's chunks of a step
  constexpr int w_copies = prefill_tile * w_chunks / 256;
  const std::byte* w_from[w_copies];
#pragma unroll
  for (int i = 0; i < w_copies; ++i) {
    const int row = min(place.row + (thread + i * 256) / w_chunks, last_row);
    w_from[i] = weight.values + row * row_bytes + thread % w_chunks * 16;
  }
  const auto copy_step = [&](int step) {
    if (step < steps) {
      std::byte* const stage = shared + step % prefill_stages * prefill_stage_bytes<Format>();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = (thread + i * 256) / 8;
        copy_async_16(stage + row * 128 + ((thread % 8) ^ (row & 1)) * 16, x_from[i] + step * step_columns);
      }
#pragma unroll
      for (int i = 0; i < w_copies; ++i) {
        const int row = (thread + i * 256) / w_chunks;
        // Rows of 128 bytes: odd ones swap neighbouring chunks, so that two rows meet all banks.
        const int chunk = w_step == 128 ? (thread % w_chunks) ^ (row & 1) : thread % w_chunks;
        copy_async_16(stage + x_bytes + row * w_step + chunk * 16, w_from[i] + std::int64_t{step} * w_step);
      }
    }
    commit_copies();
  };

  float acc[4][4][4] = {};
  float totals[4][4][4] = {};
#pragma unroll
  for (int stage = 0; stage < prefill_stages - 1; ++stage) copy_step(stage);
  int segment_left = segment;
  for (int step = 0; step < steps; ++step) {
    wait_copies<prefill_stages - 2>();
    __syncthreads();
    copy_step(step + prefill_stages - 1);
    const std::byte* const stage = shared + step % prefill_stages * prefill_stage_bytes<Format>();
    std::uint32_t activations[4][8];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int row = warp_item + t * 8 + g;
      const std::byte* from = stage + row * 128;
      Format_::arrange(*reinterpret_cast<const uint4*>(from + ((2 * j) ^ (row & 1)) * 16),
                       *reinterpret_cast<const uint4*>(from + ((2 * j + 1) ^ (row & 1)) * 16), activations[t]);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      std::uint32_t pairs[2][8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + m * 16 + half * 8 + g;
        const std::byte* from = stage + x_bytes + row * w_step;
        std::uint32_t raw[Format_::words];
        if constexpr (Format_::words == 8) {
          *reinterpret_cast<uint4*>(raw) = *reinterpret_cast<const uint4*>(from + ((2 * j) ^ (row & 1)) * 16);
          *reinterpret_cast<uint4*>(raw + 4) = *reinterpret_cast<const uint4*>(from + ((2 * j + 1) ^ (row & 1)) * 16);
        } else if constexpr (Format_::words == 4) {
          *reinterpret_cast<uint4*>(raw) = *reinterpret_cast<const uint4*>(from + j * 16);
        } else {
          *reinterpret_cast<uint2*>(raw) = *reinterpret_cast<const uint2*>(from + j * 8);
        }
        std::uint32_t scale = 0;
        if constexpr (Format_::scaled) {
          const auto* scales = reinterpret_cast<const std::uint8_t*>(weight.scales);
          scale = __ldg(scales + min(place.row + row, last_row) * scale_bytes + Format_::scale_index(step, j));
        }
        Format_::widen(raw, scale, 0, pairs[half]);
      }
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          mma_bf16(acc[m][t], pairs[0][i], pairs[1][i], pairs[0][i + 1], pairs[1][i + 1], activations[t][i],
                   activations[t][i + 1]);
        }
      }
    }
    if (--segment_left == 0 || step + 1 == steps) {
      segment_left = segment;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            totals[m][t][i] += acc[m][t][i];
            acc[m][t][i] = 0;
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = place.row + warp_row + m * 16 + i / 2 * 8 + g;
        const int item = begin + warp_item + t * 8 + 2 * j + i % 2;
        if (row <= last_row && item < end) store_result(args, weight, item, row, totals[m][t][i]);
      }
    }
  }
}

template <int TileRows>
int tiles_of(const MatmulArgs& args) {
  int tiles = 0;
  for (int part = 0; part < args.parts; ++part) tiles += (args.inline_parts[part].rows + TileRows - 1) / TileRows;
  return tiles;
}

template <WeightFormat Format, int Tiles>
cudaError_t launch_decode(const MatmulArgs& args, cudaStream_t stream) {
  const int groups = args.groups > 0 ? (args.groups < args.items ? args.groups : args.items)
                                     : (args.items + 8 * Tiles - 1) / (8 * Tiles);
  const dim3 grid(static_cast<unsigned>(tiles_of<16>(args)), static_cast<unsigned>(groups));
  matmul_decode_sm80<Format, Tiles><<<grid, 256, 0, stream>>>(args);
  return cudaGetLastError();
}

// Up to these many items (a group) weights are read by the decode kernel.
inline constexpr int decode_items = 32;
inline constexpr int decode_items_a_group = 6;

template <WeightFormat Format>
cudaError_t matmul_of(const MatmulArgs& args, cudaStream_t stream) {
  if (args.groups > 0) {
    if (Codec<Format>::pieces > 1 || args.items <= decode_items_a_group * args.groups) {
      return launch_decode<Format, 1>(args, stream);
    }
  } else {
    if (args.items <= 8) return launch_decode<Format, 1>(args, stream);
    if (args.items <= decode_items || Codec<Format>::pieces > 1) return launch_decode<Format, 4>(args, stream);
  }
  if constexpr (Codec<Format>::pieces == 1) {
    constexpr int bytes = prefill_stages * prefill_stage_bytes<Format>();
    const cudaError_t error = cudaFuncSetAttribute(matmul_prefill_sm80<Format>,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    const int row_tiles = tiles_of<prefill_tile>(args);
    const int item_tiles = prefill_tiles(args.items, args.groups);
    // Bands of 16 item tiles; the last may be shorter, and its blocks past the end do not exist.
    const auto blocks = static_cast<unsigned>(row_tiles) * static_cast<unsigned>(item_tiles);
    matmul_prefill_sm80<Format><<<blocks, 256, bytes, stream>>>(args, row_tiles, item_tiles);
    return cudaGetLastError();
  }
  return cudaErrorInvalidValue;
}

}  // namespace m3::ops::cuda
