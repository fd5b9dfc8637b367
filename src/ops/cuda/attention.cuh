// Softmax attention of up to 16 query heads that share a KV head over runs of 128 cached keys: the arithmetic of both
// attention operations, on tensor cores, straight from the pages without shared memory (sm_80 and later).
//
// Lane 4g + j holds, of Q (the 16 heads): rows g and g + 8; of a chunk of 64 keys, the scores of rows g and g + 8 at
// keys 8n + 2j and 8n + 2j + 1; of the result, 32 consecutive or two times 16 dimensions (`out_dimension`).
#pragma once

#include "src/ops/cuda/device.cuh"

namespace m3::ops::cuda {

inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float no_score = -__builtin_huge_valf();

// How K and V rows of 128 elements lie in registers. `k_dimension(c, j)`: the first of the eight consecutive dimensions
// that lane j holds in chunk c of four.
template <bool Fp8>
struct CacheRow {
  static constexpr int element_bytes = Fp8 ? 1 : 2;
  __device__ static int k_dimension(int c, int j) { return Fp8 ? c / 2 * 64 + j * 16 + c % 2 * 8 : c * 32 + j * 8; }

  // The 32 dimensions of a key that lane j multiplies, as 16 pairs.
  __device__ static void load_k(const std::byte* row, int j, std::uint32_t (&pairs)[16]) {
    if constexpr (Fp8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v = *reinterpret_cast<const uint4*>(row + half * 64 + j * 16);
        widen_e4m3x4(v.x, pairs[half * 8 + 0], pairs[half * 8 + 1]);
        widen_e4m3x4(v.y, pairs[half * 8 + 2], pairs[half * 8 + 3]);
        widen_e4m3x4(v.z, pairs[half * 8 + 4], pairs[half * 8 + 5]);
        widen_e4m3x4(v.w, pairs[half * 8 + 6], pairs[half * 8 + 7]);
      }
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint4 v = *reinterpret_cast<const uint4*>(row + (c * 32 + j * 8) * 2);
        pairs[c * 4] = v.x, pairs[c * 4 + 1] = v.y, pairs[c * 4 + 2] = v.z, pairs[c * 4 + 3] = v.w;
      }
    }
  }

  // 16 dimensions of a value for lanes of group g, as 8 pairs: bf16 8g + (0..7) and 64 + 8g + (0..7); fp8 16g + (0..15).
  __device__ static void load_v(const std::byte* row, int g, std::uint32_t (&pairs)[8]) {
    if constexpr (Fp8) {
      const uint4 v = *reinterpret_cast<const uint4*>(row + g * 16);
      widen_e4m3x4(v.x, pairs[0], pairs[1]);
      widen_e4m3x4(v.y, pairs[2], pairs[3]);
      widen_e4m3x4(v.z, pairs[4], pairs[5]);
      widen_e4m3x4(v.w, pairs[6], pairs[7]);
    } else {
      const uint4 a = *reinterpret_cast<const uint4*>(row + g * 16);
      const uint4 b = *reinterpret_cast<const uint4*>(row + 128 + g * 16);
      pairs[0] = a.x, pairs[1] = a.y, pairs[2] = a.z, pairs[3] = a.w;
      pairs[4] = b.x, pairs[5] = b.y, pairs[6] = b.z, pairs[7] = b.w;
    }
  }

  // Dimension of result tile t (of 16) at column n (of 8).
  __device__ static int out_dimension(int t, int n) {
    return Fp8 ? n * 16 + t : (t < 8 ? n * 8 + t : 64 + n * 8 + t - 8);
  }
};

// Running softmax of 16 rows over keys, for this lane's rows g and g + 8. Scores count in powers of two.
struct SoftmaxState {
  float highest[2] = {no_score, no_score};
  float sum[2] = {0, 0};  // this lane's share
  float acc[16][4] = {};  // [result tile][row g: 2j, 2j + 1; row g + 8: 2j, 2j + 1]
};

// Q [16, 128] of this lane's rows, as eight instructions take it: four registers each.
template <bool Fp8>
__device__ inline void load_queries(const std::uint16_t* row0, const std::uint16_t* row1, int j,
                                    std::uint32_t (&q)[8][4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int at = CacheRow<Fp8>::k_dimension(c, j);
    uint4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
    if (row0 != nullptr) a = *reinterpret_cast<const uint4*>(row0 + at);
    if (row1 != nullptr) b = *reinterpret_cast<const uint4*>(row1 + at);
    q[2 * c][0] = a.x, q[2 * c][1] = b.x, q[2 * c][2] = a.y, q[2 * c][3] = b.y;
    q[2 * c + 1][0] = a.z, q[2 * c + 1][1] = b.z, q[2 * c + 1][2] = a.w, q[2 * c + 1][3] = b.w;
  }
}

// 64 keys at k_run, v_run (rows of one page and head): visible are those from first[r] to before last[r] for the lane's
// row r; the first `readable` (at least one, the same in all lanes) have been written. `scale` takes a dot product to a
// power of two.
template <bool Fp8>
__device__ inline void attend_chunk(const std::uint32_t (&q)[8][4], const std::byte* k_run, const std::byte* v_run,
                                    const int (&first)[2], const int (&last)[2], int readable, float scale, int lane,
                                    SoftmaxState& state) {
  using Row = CacheRow<Fp8>;
  constexpr int row_bytes = 128 * Row::element_bytes;
  const int g = lane / 4;
  const int j = lane % 4;
  // Slots past the last written token hold anything: read a written key's row instead, its weight is zero.
  const int safe_last = readable - 1;
  float scores[8][4] = {};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    std::uint32_t k[16];
    Row::load_k(k_run + min(8 * n + g, safe_last) * row_bytes, j, k);
#pragma unroll
    for (int i = 0; i < 8; ++i) mma_bf16(scores[n], q[i][0], q[i][1], q[i][2], q[i][3], k[2 * i], k[2 * i + 1]);
  }
  float highest[2] = {state.highest[0], state.highest[1]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * n + 2 * j + i % 2;
      const int r = i / 2;
      scores[n][i] = key >= first[r] && key < last[r] ? scores[n][i] * scale : no_score;
      highest[r] = fmaxf(highest[r], scores[n][i]);
    }
  }
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    highest[r] = fmaxf(highest[r], __shfl_xor_sync(all_lanes, highest[r], 1));
    highest[r] = fmaxf(highest[r], __shfl_xor_sync(all_lanes, highest[r], 2));
    shift[r] = highest[r] == no_score ? 0.0f : highest[r];
    const float factor = exp2f(state.highest[r] - shift[r]);  // 0 at the start
    state.highest[r] = highest[r];
    state.sum[r] *= factor;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      state.acc[t][2 * r] *= factor;
      state.acc[t][2 * r + 1] *= factor;
    }
  }
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 16 keys
    std::uint32_t p[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float(&s)[4] = scores[2 * step + half];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[i] = exp2f(s[i] - shift[i / 2]);
        state.sum[i / 2] += s[i];
      }
      p[2 * half] = pack_bf16(s[0], s[1]);
      p[2 * half + 1] = pack_bf16(s[2], s[3]);
    }
    std::uint32_t v[4][8];  // keys 2j, 2j + 1, 8 + 2j, 8 + 2j + 1
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 16 * step + i / 2 * 8 + 2 * j + i % 2;
      Row::load_v(v_run + min(key, safe_last) * row_bytes, g, v[i]);
    }
#pragma unroll
    for (int t = 0; t < 16; t += 2) {
      const int w = t / 2;
      mma_bf16(state.acc[t], p[0], p[1], p[2], p[3], __byte_perm(v[0][w], v[1][w], 0x5410),
               __byte_perm(v[2][w], v[3][w], 0x5410));
      mma_bf16(state.acc[t + 1], p[0], p[1], p[2], p[3], __byte_perm(v[0][w], v[1][w], 0x7632),
               __byte_perm(v[2][w], v[3][w], 0x7632));
    }
  }
}

// The whole row's sum in each lane.
__device__ inline void finish_sums(SoftmaxState& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.sum[r] += __shfl_xor_sync(all_lanes, state.sum[r], 1);
    state.sum[r] += __shfl_xor_sync(all_lanes, state.sum[r], 2);
  }
}

}  // namespace m3::ops::cuda
