// The tensor-core products of matmul.h for one weight format: `decode` for few rows of x, `prefill` for many.
#pragma once

#include <type_traits>

#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/launch.cuh"
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
  return args.list != nullptr && args.x_by_list ? args.list[item] / args.list_divisor : item;
}
__device__ inline int result_row(const MatmulArgs& args, int item) {
  return args.result_by_list ? args.list[item] : item;
}

// What multiplies the sum of row `row` for row `x_row` of x.
__device__ inline float factor_of(const MatmulArgs& args, const WeightPart& weight, int x_row, int row) {
  float factor = weight.tensor_scale;
  if (weight.row_scales != nullptr) factor = weight.tensor_scale * weight.row_scales[row];
  return args.token_scales != nullptr ? args.token_scales[x_row] * factor : factor;
}

// One number of the result: its row factor, bias and destination.
__device__ inline void store_result(const MatmulArgs& args, const WeightPart& weight, int x_row, int to, int row,
                                    float sum) {
  float value = sum * factor_of(args, weight, x_row, row);
  const int column = weight.first_column + row;
  if (args.bias != nullptr) value += args.bias[column];
  const std::int64_t at = to * args.out_stride + column;
  if (args.store == Store::bf16) {
    static_cast<std::uint16_t*>(args.out)[at] = narrow_bf16(value);
  } else if (args.store == Store::f32) {
    static_cast<float*>(args.out)[at] = value;
  } else {
    static_cast<float*>(args.out)[at] = (args.scaling * args.pair_weights[to]) * value;
  }
}

// Experts without lists: the items of the expert that item `first` chose, ascending, and their number; 0 where an earlier
// item chose it too, or where it has no group. A block of 256 threads.
__device__ inline int collect_items(const MatmulArgs& args, int first, int (&items)[direct_items], int& group) {
  __shared__ int counts[direct_items / warp_size];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int expert = args.expert_ids[first];
  const int place = expert - args.first_expert;
  if (place < 0 || place >= args.expert_count) return 0;
  group = args.group_of_expert != nullptr ? args.group_of_expert[place] : place;
  const bool own = thread < args.items && args.expert_ids[thread] == expert;
  const unsigned votes = __ballot_sync(all_lanes, own);
  if (lane == 0) counts[thread / warp_size] = __popc(votes);
  if (__syncthreads_or(own && thread < first ? 1 : 0) != 0 || group < 0) return 0;
  int before = 0, total = 0;
  for (int w = 0; w < direct_items / warp_size; ++w) {
    if (w < thread / warp_size) before += counts[w];
    total += counts[w];
  }
  if (own) items[before + __popc(votes & ((1u << lane) - 1))] = thread;
  __syncthreads();
  return total;
}

// How the decode kernel stages weights: each of its eight warps has a ring of its own in shared memory.
template <WeightFormat Format, int Sets>
struct DecodeRing {
  static constexpr int stage_bytes = Sets * 16 * step_bytes(Format);  // a step of 16 · Sets rows
  static constexpr int stages = stage_bytes >= 4096 ? 3 : stage_bytes >= 2048 ? 4 : stage_bytes >= 1024 ? 6 : 8;
  static constexpr int bytes = stages * stage_bytes;  // of a warp
  static constexpr int scale_unit = Format == WeightFormat::nvfp4 ? 4
                                    : Codec<Format>::scaled       ? 2
                                                                  : 0;  // a row and step
};

// Shared memory of the decode kernel: the rings, or the segments' sums after them; then the scales of the warps' segments.
template <WeightFormat Format, int Tiles, int Sets>
__host__ __device__ constexpr int decode_ring_bytes() {
  constexpr int rings = k_segments * DecodeRing<Format, Sets>::bytes;
  constexpr int sums = k_segments * 16 * Sets * (8 * Tiles + 1) * 4;
  return rings > sums ? rings : sums;
}
template <WeightFormat Format, int Sets>
int decode_scale_bytes(int columns) {
  const int segment = (columns / step_columns + k_segments - 1) / k_segments;
  return k_segments * 16 * Sets * segment * DecodeRing<Format, Sets>::scale_unit;
}

// 16 · Sets rows of W and up to 8 · Tiles items a block; each of the eight warps sums one segment of K. `Activated`: the
// two sets are the same 16 rows of gate and of up, and the result is stored activated.
template <WeightFormat Format, int Tiles, int Sets, bool Activated>
__global__ void __launch_bounds__(256, 2) matmul_decode_sm80(const __grid_constant__ MatmulArgs args) {
  using Format_ = Codec<Format>;
  using Ring = DecodeRing<Format, Sets>;
  constexpr int step_size = step_bytes(Format);
  std::byte* const shared = dynamic_shared();
  __shared__ int items[direct_items];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int steps = args.columns / step_columns;
  const int segment = (steps + k_segments - 1) / k_segments;
  const int first_step = warp * segment;
  const int last_step = min(steps, first_step + segment);
  const std::int64_t row_bytes = std::int64_t{steps} * step_size;
  const std::int64_t scale_bytes = args.columns / Format_::scale_columns;
  const TilePlace place = place_tile < Activated ? 16 : 16 * Sets > (args, static_cast<int>(blockIdx.x));
  WeightPart weights[Activated ? 2 : 1];
#pragma unroll
  for (int m = 0; m < (Activated ? 2 : 1); ++m) weights[m] = args.inline_parts[place.part + m];
  const int last_row = weights[0].rows - 1;
  std::byte* const ring = shared + warp * Ring::bytes;
  auto* const scale_rows = reinterpret_cast<std::uint8_t*>(shared + decode_ring_bytes<Format, Tiles, Sets>()) +
                           warp * 16 * Sets * segment * Ring::scale_unit;

  // What this lane copies of a step: chunks of 16 bytes.
  constexpr int row_chunks = step_size / 16;
  constexpr int copies = 16 * Sets * row_chunks / warp_size;
  const std::byte* from[copies];
  const auto begin_copies = [&] {
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const int local = (lane + i * warp_size) / row_chunks;
      const int row = min(place.row + (Activated ? local % 16 : local), last_row);
      from[i] = weights[Activated ? local / 16 : 0].values + row * row_bytes + (lane + i * warp_size) % row_chunks * 16;
    }
  };
  const auto copy_step = [&](int step) {
    if (step < last_step) {
      std::byte* const stage = ring + (step - first_step) % Ring::stages * Ring::stage_bytes;
#pragma unroll
      for (int i = 0; i < copies; ++i) {
        const int row = (lane + i * warp_size) / row_chunks;
        const int chunk = (lane + i * warp_size) % row_chunks;
        copy_async_16(stage + row * step_size + (step_size >= 128 ? chunk ^ (row & 1) : chunk) * 16,
                      from[i] + std::int64_t{step} * step_size);
      }
    }
    commit_copies();
  };
  const auto fill_ring = [&] {
    for (int stage = 0; stage < Ring::stages - 1; ++stage) copy_step(first_step + stage);
  };
  const auto copy_scales = [&] {
    if constexpr (Format_::scaled) {
      using Unit = std::conditional_t<Ring::scale_unit == 4, std::uint32_t, std::uint16_t>;
      for (int i = lane; i < 16 * Sets * segment; i += warp_size) {
        const int local = i / segment;
        const int step = first_step + i % segment;
        const int row = min(place.row + (Activated ? local % 16 : local), last_row);
        const auto* base =
            reinterpret_cast<const Unit*>(weights[Activated ? local / 16 : 0].scales + row * scale_bytes);
        reinterpret_cast<Unit*>(scale_rows)[i] = step < last_step ? __ldg(base + step) : Unit{0};
      }
      __syncwarp();
    }
  };

  // Weights are constants: they are on their way before the kernel ahead has ended.
  if (args.groups == 0) {
    begin_copies();
    fill_ring();
    copy_scales();
  }
  wait_for_previous();

  int begin = static_cast<int>(blockIdx.y) * 8 * Tiles;
  int end = args.items;
  int stride = end;  // one pass
  const bool direct = args.expert_ids != nullptr;
  if (args.groups > 0) {
    int group = -1;
    if (direct) {
      begin = 0;
      end = collect_items(args, static_cast<int>(blockIdx.y), items, group);
      if (end == 0) return;
    } else {
      group = args.active[blockIdx.y];
      if (group < 0) return;
      begin = args.group_begin[group];
      end = args.group_begin[group + 1];
    }
    stride = 8 * Tiles;
#pragma unroll
    for (int m = 0; m < (Activated ? 2 : 1); ++m) weights[m] = args.table[group * args.parts + place.part + m];
    begin_copies();
    fill_ring();
    copy_scales();
  }
  const auto row_of_x = [&](int item) { return direct ? items[item] / args.list_divisor : x_row(args, item); };
  const auto row_of_result = [&](int item) { return direct ? items[item] : result_row(args, item); };

  for (int at = begin; at < end; at += stride) {
    if (at > begin) {
      __syncthreads();  // the sums of the pass before are read
      fill_ring();
    }
    const std::uint16_t* x[Tiles];
#pragma unroll
    for (int t = 0; t < Tiles; ++t) x[t] = args.x + row_of_x(min(at + t * 8 + g, end - 1)) * args.x_stride + j * 16;
    float acc[Sets][Tiles][4] = {};
    for (int step = first_step; step < last_step; ++step) {
      std::uint32_t activations[Tiles][8];
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        const auto* of_x = reinterpret_cast<const uint4*>(x[t] + step * step_columns);
        Format_::arrange(of_x[0], of_x[1], activations[t]);
      }
      wait_copies<Ring::stages - 2>();
      __syncwarp();
      copy_step(step + Ring::stages - 1);
      const std::byte* const stage = ring + (step - first_step) % Ring::stages * Ring::stage_bytes;
#pragma unroll
      for (int m = 0; m < Sets; ++m) {
        std::uint32_t raw[2][Format_::words];
        std::uint32_t scale[2] = {};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = m * 16 + r * 8 + g;
          Format_::load_shared(stage + row * step_size, row, j, raw[r]);
          if constexpr (Format_::scaled) {
            scale[r] = scale_rows[(row * segment + step - first_step) * Ring::scale_unit + Format_::scale_index(0, j)];
          }
        }
#pragma unroll
        for (int piece = 0; piece < Format_::pieces; ++piece) {
          std::uint32_t pairs0[8], pairs1[8];
          Format_::widen(raw[0], scale[0], piece, pairs0);
          Format_::widen(raw[1], scale[1], piece, pairs1);
#pragma unroll
          for (int i = 0; i < 8; i += 2) {
#pragma unroll
            for (int t = 0; t < Tiles; ++t) {
              mma_bf16(acc[m][t], pairs0[i], pairs1[i], pairs0[i + 1], pairs1[i + 1], activations[t][i],
                       activations[t][i + 1]);
            }
          }
        }
      }
    }
    wait_copies<0>();
    __syncthreads();  // the rings are read: their memory takes the sums
    auto* const sums = reinterpret_cast<float*>(shared);
    constexpr int width = 8 * Tiles + 1;
#pragma unroll
    for (int m = 0; m < Sets; ++m) {
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[((warp * Sets + m) * 16 + g + i / 2 * 8) * width + t * 8 + 2 * j + i % 2] = acc[m][t][i];
        }
      }
    }
    __syncthreads();
    constexpr int results = Activated ? 16 : 16 * Sets;  // rows
    for (int i = static_cast<int>(threadIdx.x); i < results * 8 * Tiles; i += 256) {
      const int row = i % results;
      const int item = i / results;
      float total[Activated ? 2 : 1] = {};
#pragma unroll
      for (int m = 0; m < (Activated ? 2 : 1); ++m) {
#pragma unroll
        for (int s = 0; s < k_segments; ++s) total[m] += sums[(s * Sets * 16 + m * 16 + row) * width + item];
      }
      if (at + item >= end || place.row + row > last_row) continue;
      const int x_at = row_of_x(at + item);
      const int to = row_of_result(at + item);
      if constexpr (Activated) {
        const float gate = round_bf16(total[0] * factor_of(args, weights[0], x_at, place.row + row));
        const float up = round_bf16(total[1] * factor_of(args, weights[1], x_at, place.row + row));
        static_cast<std::uint16_t*>(args.out)[to * args.out_stride + place.row + row] =
            narrow_bf16(activate(gate, up, args.alpha, args.limit, args.beta));
      } else {
        store_result(args, weights[0], x_at, to, place.row + row, total[0]);
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
__global__ void __launch_bounds__(256)
    matmul_prefill_sm80(const __grid_constant__ MatmulArgs args, int row_tiles, int item_tiles) {
  wait_for_previous();
  using Format_ = Codec<Format>;
  std::byte* const shared = dynamic_shared();
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
        Format_::load_shared(from, row, j, raw);
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
        if (row <= last_row && item < end) {
          store_result(args, weight, x_row(args, item), result_row(args, item), row, totals[m][t][i]);
        }
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

template <WeightFormat Format, int Tiles, int Sets, bool Activated = false>
cudaError_t launch_decode(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const int bytes = decode_ring_bytes<Format, Tiles, Sets>() + decode_scale_bytes<Format, Sets>(args.columns);
  const auto kernel = matmul_decode_sm80<Format, Tiles, Sets, Activated>;
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  int groups = (args.items + 8 * Tiles - 1) / (8 * Tiles);
  if (args.groups > 0) groups = args.expert_ids != nullptr || args.items < args.groups ? args.items : args.groups;
  const int tiles = Activated ? (args.inline_parts[0].rows + 15) / 16 : tiles_of<16 * Sets>(args);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(groups));
  return launch(kernel, grid, 256, static_cast<std::size_t>(bytes), stream, args);
}

// Up to these many items (a group) weights are read by the decode kernel.
inline constexpr int decode_items = 32;
inline constexpr int decode_items_a_group = 6;

template <WeightFormat Format>
cudaError_t matmul_of(const MatmulArgs& args, cudaStream_t stream) {
  if (args.store == Store::activated) return launch_decode<Format, 1, 2, true>(args, stream);
  if (args.groups > 0) {
    if (args.expert_ids != nullptr || Codec<Format>::pieces > 1 || args.items <= decode_items_a_group * args.groups) {
      return launch_decode<Format, 1, 1>(args, stream);
    }
  } else {
    if (args.items <= 8) return launch_decode<Format, 1, 1>(args, stream);
    if (args.items <= decode_items || Codec<Format>::pieces > 1) return launch_decode<Format, 4, 2>(args, stream);
  }
  if constexpr (Codec<Format>::pieces == 1) {
    static int allowed = 0;
    constexpr int bytes = prefill_stages * prefill_stage_bytes<Format>();
    const cudaError_t error = allow_shared(matmul_prefill_sm80<Format>, bytes, allowed);
    if (error != cudaSuccess) return error;
    const int row_tiles = tiles_of<prefill_tile>(args);
    const int item_tiles = prefill_tiles(args.items, args.groups);
    // Bands of 16 item tiles; the last may be shorter, and its blocks past the end do not exist.
    const auto blocks = static_cast<unsigned>(row_tiles) * static_cast<unsigned>(item_tiles);
    return launch(matmul_prefill_sm80<Format>, blocks, 256, bytes, stream, args, row_tiles, item_tiles);
  }
  return cudaErrorInvalidValue;
}

}  // namespace m3::ops::cuda
