// Results of matmul_sm90.cuh: from the registers through shared memory to rows of the result.
#pragma once

#include "src/ops/cuda/matmul_wide_tiles_sm90.cuh"

namespace m3::ops::cuda {

struct SharedLayout {
  static constexpr bool by_rows = false;  // the blocks of a cluster divide the items
  static constexpr int items = 152;       // at most, of a block
  static constexpr int cluster_items = items * wide_cluster;
  static constexpr int blocks = 4;  // of 64 rows of W
  static constexpr int block_bytes = 64 * 128;
  static constexpr int weight_bytes = blocks * block_bytes;
  static constexpr int stage_bytes = weight_bytes + items * 128;
  static constexpr int stages = 4;
  static constexpr int staging_bytes = 16 * (128 * 2 + 16);  // of a warpgroup, twice
  using Table = TileTable<items, blocks * 64>;
  // Places.
  static constexpr int staging = stages * stage_bytes;
  static constexpr int tables = staging + 4 * staging_bytes;
  static constexpr int barriers = tables + 2 * Table::bytes;
  static constexpr int bytes = barriers + (4 + 2 * stages) * 8 + 896;  // to align 128 bytes by to 1024
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

struct Stages : Shared<SharedLayout> {
  using Layout = SharedLayout;
  __device__ std::uint32_t weights(int stage) const { return at(stage * Layout::stage_bytes); }
  __device__ std::uint32_t x(int stage) const { return weights(stage) + Layout::weight_bytes; }
  __device__ std::uint32_t full(int stage) const { return barrier(4 + stage); }
  __device__ std::uint32_t empty(int stage) const { return full(Layout::stages + stage); }
};

// What a thread adds up: two blocks of 64 rows of W.
using Sums = float[2][SharedLayout::items / 2];

// x · Φ(x) = max(x, 0) - |x| · Φ(-|x|), the latter t · 2^(P(t) - x² / (2 ln 2)) with t = 1 / (1 + |x| / 5): P fitted for
// 0 … 14, to a relative error under 1e-5 (bf16 comes of it).
__device__ inline float gelu(float x) {
  float a, t, power;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(fabsf(x)), "f"(1e30f));  // infinity is a number then
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(a, 0.2f, 1.0f)));
  float fit = fmaf(t, -0.84380965f, 1.98169032f);
  fit = fmaf(t, fit, -1.07363130f);
  fit = fmaf(t, fit, 1.25051371f);
  fit = fmaf(t, fit, 1.32330110f);
  fit = fmaf(t, fit, -3.63807647f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(a * -0.72134752f, a, fit)));
  return fmaf(-a, t * power, fmaxf(x, 0.0f));
}

// As `activate`, with the machine's own exponential and quotient: the result is rounded to bf16.
__device__ inline float activate_fast(float gate, float up, float alpha, float limit, float beta) {
  const float g = gate > limit ? limit : gate;  // NaN stays
  const float u = up < -limit ? -limit : (up > limit ? limit : up);
  return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + beta);
}

// 16 bytes of a row of the result; where they cannot be written at once, the first `count` numbers of them one by one.
template <int Element>
__device__ inline void store_piece(std::byte* to, const uint4& numbers, bool whole, int count) {
  if (whole) {
    *reinterpret_cast<uint4*>(to) = numbers;
    return;
  }
  const std::uint32_t words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
  for (int e = 0; e < 16 / Element; ++e) {
    if (e >= count) continue;
    if constexpr (Element == 4) {
      reinterpret_cast<std::uint32_t*>(to)[e] = words[e];
    } else {
      reinterpret_cast<std::uint16_t*>(to)[e] = static_cast<std::uint16_t>(words[e / 2] >> (e % 2 * 16));
    }
  }
}

// The sums of 16 items at a time through shared memory, then whole runs of a result's row by 16 bytes.
template <WideStore Kind>
__device__ inline void store(const Sums& sums, const WideArgs& wide, const Stages& shared, int turn) {
  using Layout = SharedLayout;
  using Table = Layout::Table;
  constexpr bool activated = Kind == WideStore::activated;
  constexpr int chunk = Kind == WideStore::floats ? 8 : 16;   // items
  constexpr int run = activated ? 64 : 128;                   // rows of W of a warpgroup's result
  constexpr int element = Kind == WideStore::floats ? 4 : 2;  // bytes
  constexpr int pitch = run * element + 16;
  constexpr int pieces = run * element / 16;
  const MatmulArgs& args = wide.args;
  const int block_thread = fresh(static_cast<int>(threadIdx.x));
  const int thread = block_thread % 128;
  const int group = block_thread / 128;
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const std::uint32_t table = shared.table(turn);
  Place place;
  read_place(table + Table::place, place);
  const int first_row = place.row + group * run;
  const int rows = args.inline_parts[place.part].rows;
  const int column = args.inline_parts[place.part].first_column + first_row;
  float factors[2][2], bias[2][2] = {};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = m * 64 + warp * 16 + r * 8 + g;
      factors[m][r] = load_float(table + Table::row_factors + (group * 128 + local) * 4);
      if (!activated && args.bias != nullptr && first_row + local < rows) bias[m][r] = args.bias[column + local];
    }
  }
  const std::uint32_t staging = shared.staging(group);
  // Where this lane writes: matrix `lane / 8` of four (or two), or its own numbers.
  const int matrix = lane / 8;
  const std::uint32_t to =
      staging + (Kind == WideStore::floats
                     ? 2 * j * pitch + (warp * 16 + g) * 4
                     : lane % 8 * pitch + ((activated ? 0 : matrix / 2 * 64) + warp * 16 + matrix % 2 * 8) * 2);
  const std::uint32_t item_factors = table + Table::token_factors + 2 * j * 4;
  const std::uint32_t from = staging + thread / pieces * pitch + thread % pieces * 16;
  const int piece_row = first_row + thread % pieces * (16 / element);
  const bool whole = wide.vector_stores != 0 && piece_row + 16 / element <= rows;
  auto* const out =
      static_cast<std::byte*>(args.out) + (column + thread % pieces * (16 / element)) * std::int64_t{element};
  const std::int64_t stride = args.out_stride * element;
  constexpr int together = 128 / pieces;  // items whose runs the warpgroup copies at a time
#pragma unroll
  for (int c = 0; c < (Layout::items + chunk - 1) / chunk; ++c) {
    if (c * chunk >= place.count) break;
    const int half_staging = c % 2 * Layout::staging_bytes;
#pragma unroll
    for (int half = 0; half < chunk / 8; ++half) {
      const int t = c * (chunk / 8) + half;
      if (t >= Layout::items / 8) break;
      const uint2 both = load_words2(item_factors + t * 32);
      const float factor[2] = {__uint_as_float(both.x), __uint_as_float(both.y)};
      float values[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[m][i] = fmaf(sums[m][t * 4 + i], factors[m][i / 2] * factor[i % 2], bias[m][i / 2]);
        }
      }
      if constexpr (Kind == WideStore::floats) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            store_float(to + half_staging + i % 2 * pitch + (m * 64 + i / 2 * 8) * 4, values[m][i]);
          }
        }
      } else if constexpr (!activated) {
        store_matrices_transposed(to + half_staging + half * 8 * pitch, pack_bf16(values[0][0], values[0][1]),
                                  pack_bf16(values[0][2], values[0][3]), pack_bf16(values[1][0], values[1][1]),
                                  pack_bf16(values[1][2], values[1][3]));
      } else {
        float inner[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          inner[i] =
              activate_fast(round_bf16(values[0][i]), round_bf16(values[1][i]), args.alpha, args.limit, args.beta);
        }
        store_matrices_transposed_two(to + half_staging + half * 8 * pitch, pack_bf16(inner[0], inner[1]),
                                      pack_bf16(inner[2], inner[3]));
      }
    }
    sync_threads_of(1 + group, 128);
#pragma unroll
    for (int i = 0; i < chunk / together; ++i) {
      const int item = c * chunk + i * together + thread / pieces;
      if (item >= place.count) continue;
      const std::uint32_t piece = from + half_staging + i * together * pitch;
      auto* const result = out + static_cast<int>(load_word(table + Table::token_rows + item * 4)) * stride;
      uint4 numbers = load_words4(piece);
      if constexpr (Kind == WideStore::gelu) {
        numbers = {pack_bf16(gelu(low_bf16(numbers.x)), gelu(high_bf16(numbers.x))),
                   pack_bf16(gelu(low_bf16(numbers.y)), gelu(high_bf16(numbers.y))),
                   pack_bf16(gelu(low_bf16(numbers.z)), gelu(high_bf16(numbers.z))),
                   pack_bf16(gelu(low_bf16(numbers.w)), gelu(high_bf16(numbers.w)))};
      }
      store_piece<element>(result, numbers, whole, rows - piece_row);
    }
  }
  sync_threads_of(1 + group, 128);  // before the staging is written again
}

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
