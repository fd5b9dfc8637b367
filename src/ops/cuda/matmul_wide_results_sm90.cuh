// Results of matmul_sm90.cuh: from the registers through shared memory to rows of the result.
#pragma once

#include "src/ops/cuda/matmul_wide_tiles_sm90.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

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

// What the shapes of results differ in.
template <WeightFormat Format, WideStore Kind>
struct WideRun {
  static constexpr bool by_rows = WideLayout<Format>::by_rows;
  static constexpr bool activated = Kind == WideStore::activated;
  static constexpr int chunk = Kind == WideStore::floats ? 8 : by_rows && activated ? 32 : 16;  // items at a time
  static constexpr int rows = (by_rows ? 64 : 128) / (activated ? 2 : 1);  // of a warpgroup's result
  static constexpr int element = Kind == WideStore::floats ? 4 : 2;        // bytes
  static constexpr int pitch = rows * element + 16;
  static constexpr int pieces = rows * element / 16;
  static_assert(chunk * pitch <= WideLayout<Format>::staging_bytes);
};

// The sums of some items at a time through shared memory, then whole runs of a result's row by 16 bytes.
template <WideStore Kind, bool Arranged, WeightFormat Format>
__device__ inline void store(const Sums<Format>& sums, const WideArgs& wide, const Shared<Format>& shared, int turn) {
  using Layout = WideLayout<Format>;
  using Run = WideRun<Format, Kind>;
  constexpr bool by_rows = Layout::by_rows;
  constexpr bool activated = Run::activated;
  constexpr int chunk = Run::chunk, run = Run::rows, element = Run::element, pitch = Run::pitch, pieces = Run::pieces;
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
  // Of this thread's rows: 8 apart, or gate and up; by items of two blocks of 64.
  constexpr int row_blocks = by_rows ? 1 : 2;
  float factors[row_blocks][2], bias[row_blocks][2] = {};
#pragma unroll
  for (int m = 0; m < row_blocks; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = by_rows ? first_row_of<Kind, Arranged>(block_thread) + r * (activated ? 64 : 8)
                                : group * row_blocks * 64 + m * 64 + warp * 16 + r * 8 + g;
      factors[m][r] = load_float(table + Layout::row_factors + local * 4);
      const int from_first = local - group * row_blocks * 64;
      if (!activated && args.bias != nullptr && first_row + from_first < rows) bias[m][r] = args.bias[column + from_first];
    }
  }
  const std::uint32_t staging = shared.staging(group);
  // Where this lane writes: matrix `lane / 8` of four (or two), or its own numbers.
  const int matrix = lane / 8;
  std::uint32_t to = staging;
  if constexpr (Kind == WideStore::floats) {
    to += 2 * j * pitch + (warp * 16 + g) * 4;
  } else if constexpr (by_rows && activated) {  // matrices: eights of items
    to += lane * pitch + warp * 16;
  } else if constexpr (by_rows) {  // matrices: two eights of rows of two eights of items
    to += (matrix / 2 * 8 + lane % 8) * pitch + (warp * 16 + matrix % 2 * 8) * 2;
  } else {
    to += lane % 8 * pitch + ((activated ? 0 : matrix / 2 * 64) + warp * 16 + matrix % 2 * 8) * 2;
  }
  const std::uint32_t from = staging + thread / pieces * pitch + thread % pieces * 16;
  const int piece_row = first_row + thread % pieces * (16 / element);
  const bool whole = wide.vector_stores != 0 && piece_row + 16 / element <= rows;
  auto* const out =
      static_cast<std::byte*>(args.out) + (column + thread % pieces * (16 / element)) * std::int64_t{element};
  const std::int64_t stride = args.out_stride * element;
  constexpr int together = 128 / pieces;  // items whose runs the warpgroup copies at a time
  constexpr int eights = Layout::half_items / 8;
  int used = 0;  // of the two halves of the staging
#pragma unroll
  for (int h = 0; h < (by_rows ? 2 : 1); ++h) {
    const int second = second_of<Format>(place.copied);
    const int first_item = h == 0 ? 0 : second;
    const int items = by_rows && h == 0 ? min(place.count, second) : place.count - first_item;
    const std::uint32_t item_factors = table + Layout::token_factors + (first_item + 2 * j) * 4;
    // What eight `t` of items adds up to, in the order of the sums; `m`: the block of rows.
    const auto scaled = [&](int t, int m, float(&values)[4]) {
      const uint2 both = load_words2(item_factors + t * 32);
      const float factor[2] = {__uint_as_float(both.x), __uint_as_float(both.y)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = fmaf(sums[by_rows ? h : m][t * 4 + i], factors[m][i / 2] * factor[i % 2], bias[m][i / 2]);
      }
    };
    const auto activated_pair = [&](float gate0, float gate1, float up0, float up1) {
      return pack_bf16(activate_fast(round_bf16(gate0), round_bf16(up0), args.alpha, args.limit, args.beta),
                       activate_fast(round_bf16(gate1), round_bf16(up1), args.alpha, args.limit, args.beta));
    };
#pragma unroll
    for (int c = 0; c < (eights * 8 + chunk - 1) / chunk; ++c) {
      if (c * chunk >= items) break;
      const int half_staging = used % 2 * Layout::staging_bytes;
      ++used;
      const std::uint32_t place_to = to + half_staging;
      if constexpr (by_rows && Kind != WideStore::floats) {
        std::uint32_t words[4] = {};
#pragma unroll
        for (int e = 0; e < chunk / 8; ++e) {
          const int t = c * (chunk / 8) + e;
          if (t >= eights) break;
          float values[4];
          scaled(t, 0, values);
          if constexpr (activated) {
            words[e] = activated_pair(values[0], values[1], values[2], values[3]);
          } else {
            words[2 * e] = pack_bf16(values[0], values[1]);
            words[2 * e + 1] = pack_bf16(values[2], values[3]);
          }
        }
        store_matrices_transposed(place_to, words[0], words[1], words[2], words[3]);
      } else {
#pragma unroll
        for (int e = 0; e < chunk / 8; ++e) {
          const int t = c * (chunk / 8) + e;
          if (t >= eights) break;
          float values[row_blocks][4];
#pragma unroll
          for (int m = 0; m < row_blocks; ++m) scaled(t, m, values[m]);
          if constexpr (Kind == WideStore::floats) {
#pragma unroll
            for (int m = 0; m < row_blocks; ++m) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                store_float(place_to + i % 2 * pitch + (m * 64 + i / 2 * 8) * 4, values[m][i]);
              }
            }
          } else if constexpr (!activated) {
            store_matrices_transposed(place_to + e * 8 * pitch, pack_bf16(values[0][0], values[0][1]),
                                      pack_bf16(values[0][2], values[0][3]), pack_bf16(values[1][0], values[1][1]),
                                      pack_bf16(values[1][2], values[1][3]));
          } else {
            store_matrices_transposed_two(
                place_to + e * 8 * pitch,
                activated_pair(values[0][0], values[0][1], values[1][0], values[1][1]),
                activated_pair(values[0][2], values[0][3], values[1][2], values[1][3]));
          }
        }
      }
      sync_threads_of(1 + group, 128);
#pragma unroll
      for (int i = 0; i < (chunk + together - 1) / together; ++i) {
        const int item = c * chunk + i * together + thread / pieces;
        if (item >= items || (chunk < together && thread / pieces >= chunk)) continue;
        const std::uint32_t piece = from + half_staging + i * together * pitch;
        const std::uint32_t row = load_word(table + Layout::token_rows + (first_item + item) * 4);
        auto* const result = out + static_cast<int>(row) * stride;
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
  }
  sync_threads_of(1 + group, 128);  // before the staging is written again
}

}  // namespace wide

#endif

}  // namespace m3::ops::cuda
