// Results of matmul_sm90.cuh: from the registers through shared memory to rows of the result.
#pragma once

#include "src/ops/cuda/matmul_wide_tiles_sm90.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// x · Φ(x), by a Chebyshev fit of erfc whose relative error stays under 2e-7 (bf16 comes of it), quicker than erfcf.
__device__ inline float gelu(float x) {
  const float z = fabsf(x) * 0.70710678f;
  const float t = __fdividef(1.0f, fmaf(0.5f, z, 1.0f));
  float fit = fmaf(t, 0.17087277f, -0.82215223f);
  fit = fmaf(t, fit, 1.48851587f);
  fit = fmaf(t, fit, -1.13520398f);
  fit = fmaf(t, fit, 0.27886807f);
  fit = fmaf(t, fit, -0.18628806f);
  fit = fmaf(t, fit, 0.09678418f);
  fit = fmaf(t, fit, 0.37409196f);
  fit = fmaf(t, fit, 1.00002368f);
  fit = fmaf(t, fit, -1.26551223f);
  const float tail = t * __expf(fmaf(-z, z, fit));  // erfc(z)
  return x * (0.5f * (x < 0 ? tail : 2.0f - tail));
}

// As `activate`, with the machine's own exponential and quotient: the result is rounded to bf16.
__device__ inline float activate_fast(float gate, float up, float alpha, float limit, float beta) {
  const float g = gate > limit ? limit : gate;  // NaN stays
  const float u = up < -limit ? -limit : (up > limit ? limit : up);
  return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + beta);
}

// The sums of 16 items at a time through shared memory, then whole runs of a result's row by 16 bytes.
template <WideStore Kind, WeightFormat Format>
__device__ inline void store(const Sums& sums, const WideArgs& wide, const Shared<Format>& shared, int turn) {
  using Layout = WideLayout<Format>;
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
  read_place(table + Layout::place, place);
  const int first_row = place.row + group * run;
  const int rows = args.inline_parts[place.part].rows;
  const int column = args.inline_parts[place.part].first_column + first_row;
  float factors[2][2], bias[2][2] = {};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = m * 64 + warp * 16 + r * 8 + g;
      factors[m][r] = load_float(table + Layout::row_factors + (group * 128 + local) * 4);
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
  const std::uint32_t item_factors = table + Layout::token_factors + 2 * j * 4;
  const std::uint32_t from = staging + thread / pieces * pitch + thread % pieces * 16;
  const int piece_row = first_row + thread % pieces * (16 / element);
  const bool whole = wide.vector_stores != 0 && piece_row + 16 / element <= rows;
  auto* const out =
      static_cast<std::byte*>(args.out) + (column + thread % pieces * (16 / element)) * std::int64_t{element};
  const std::int64_t stride = args.out_stride * element;
  constexpr int together = 128 / pieces;  // items whose runs the warpgroup copies at a time
#pragma unroll
  for (int c = 0; c < (wide_items + chunk - 1) / chunk; ++c) {
    if (c * chunk >= place.count) break;
    const int half_staging = c % 2 * Layout::staging_bytes;
#pragma unroll
    for (int half = 0; half < chunk / 8; ++half) {
      const int t = c * (chunk / 8) + half;
      if (t >= wide_items / 8) break;
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
      auto* const result = out + static_cast<int>(load_word(table + Layout::token_rows + item * 4)) * stride;
      uint4 numbers = load_words4(piece);
      if constexpr (Kind == WideStore::gelu) {
        numbers = {pack_bf16(gelu(low_bf16(numbers.x)), gelu(high_bf16(numbers.x))),
                   pack_bf16(gelu(low_bf16(numbers.y)), gelu(high_bf16(numbers.y))),
                   pack_bf16(gelu(low_bf16(numbers.z)), gelu(high_bf16(numbers.z))),
                   pack_bf16(gelu(low_bf16(numbers.w)), gelu(high_bf16(numbers.w)))};
      }
      if (whole) {
        *reinterpret_cast<uint4*>(result) = numbers;
      } else {
        const std::uint32_t words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
        for (int e = 0; e < 16 / element; ++e) {
          if (piece_row + e >= rows) continue;
          if constexpr (element == 4) {
            reinterpret_cast<std::uint32_t*>(result)[e] = words[e];
          } else {
            reinterpret_cast<std::uint16_t*>(result)[e] = static_cast<std::uint16_t>(words[e / 2] >> (e % 2 * 16));
          }
        }
      }
    }
  }
  sync_threads_of(1 + group, 128);  // before the staging is written again
}

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
