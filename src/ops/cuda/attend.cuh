// Both attention operations as two launches: `partial` cuts the keys of a token and KV head into splits, one block of
// threads each, and `merge` joins the splits in ascending order. Where a split begins depends on positions alone, so a
// token's bits do not depend on its batch.
#pragma once

#include "src/ops/cuda/attention.cuh"
#include "src/ops/cuda/batch.cuh"

namespace m3::ops::cuda {

inline constexpr int attend_warps = 4;
inline constexpr int group_rows = 16;  // query heads of one block of threads

// A split's outcome for 16 query heads: highest score and sum a head, then Σ p·v.
struct Partial {
  float highest[group_rows];
  float sum[group_rows];
  float values[group_rows][head_dim];
};

struct AttendArgs {
  Batch batch;
  const std::uint16_t* q;
  std::int64_t q_stride;
  PagePart k, v;
  float scale;    // of dot products, to powers of two
  float v_scale;  // of the result
  int query_heads, kv_heads;
  int window;
  const std::int32_t* block_ids;  // sparse: [T, kv_heads, topk]
  int topk;
  int first_token;  // of this launch
  int splits;
  Partial* partials;  // [tokens of the launch, kv_heads · row tiles, splits]
  std::uint16_t* out;
  std::int64_t out_stride;
};

// Heads of a KV head's group beyond 16 make further tiles of rows.
__host__ __device__ inline int row_tiles(int query_heads, int kv_heads) {
  return (query_heads / kv_heads + group_rows - 1) / group_rows;
}

// Joins the warps' states in order and writes the block's partial.
template <bool Fp8>
__device__ inline void write_partial(SoftmaxState& state, float (&shared)[attend_warps][group_rows][head_dim],
                                     float (&marks)[2][attend_warps][group_rows], Partial& to) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  finish_sums(state);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = g + 8 * r;
    if (j == 0) marks[0][warp][row] = state.highest[r], marks[1][warp][row] = state.sum[r];
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      shared[warp][row][CacheRow<Fp8>::out_dimension(t, 2 * j)] = state.acc[t][2 * r];
      shared[warp][row][CacheRow<Fp8>::out_dimension(t, 2 * j + 1)] = state.acc[t][2 * r + 1];
    }
  }
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);  // 128 threads, 128 dimensions
  for (int row = 0; row < group_rows; ++row) {
    float highest = no_score;
    for (int w = 0; w < attend_warps; ++w) highest = fmaxf(highest, marks[0][w][row]);
    float value = 0, sum = 0;
    for (int w = 0; w < attend_warps; ++w) {
      if (marks[0][w][row] == no_score && marks[1][w][row] == 0) continue;
      const float factor = exp2f(marks[0][w][row] - highest);
      value += shared[w][row][column] * factor;
      sum += marks[1][w][row] * factor;
    }
    to.values[row][column] = value;
    if (column == 0) to.highest[row] = highest, to.sum[row] = sum;
  }
}

// One token and tile of 16 query heads: a block of 128 threads, a thread a dimension.
__device__ inline void merge_partials(const AttendArgs& args, int token, int tile, const Partial* partials,
                                      int splits) {
  const int group = args.query_heads / args.kv_heads;
  const int tiles = row_tiles(args.query_heads, args.kv_heads);
  const int first_head = tile / tiles * group + tile % tiles * group_rows;
  const int heads = min(group_rows, group - tile % tiles * group_rows);
  const int column = static_cast<int>(threadIdx.x);
  for (int row = 0; row < heads; ++row) {
    float highest = no_score;
    for (int s = 0; s < splits; ++s) highest = fmaxf(highest, partials[s].highest[row]);
    float value = 0, sum = 0;
    for (int s = 0; s < splits; ++s) {
      const float own = partials[s].highest[row];
      if (own == no_score && partials[s].sum[row] == 0) continue;
      const float factor = exp2f(own - highest);
      value += partials[s].values[row][column] * factor;
      sum += partials[s].sum[row] * factor;
    }
    if (sum == 0) return;  // no key at all: nothing is written
    args.out[token * args.out_stride + (first_head + row) * head_dim + column] =
        narrow_bf16(value / sum * args.v_scale);
  }
}

// The queries of a tile of heads; rows past the group are zeros.
template <bool Fp8>
__device__ inline void load_tile_queries(const AttendArgs& args, int token, int tile, int lane,
                                         std::uint32_t (&q)[8][4]) {
  const int group = args.query_heads / args.kv_heads;
  const int tiles = row_tiles(args.query_heads, args.kv_heads);
  const int first = tile % tiles * group_rows;
  const int g = lane / 4;
  const std::uint16_t* base = args.q + token * args.q_stride + (tile / tiles * group + first) * head_dim;
  load_queries<Fp8>(first + g < group ? base + g * head_dim : nullptr,
                    first + g + 8 < group ? base + (g + 8) * head_dim : nullptr, lane % 4, q);
}

}  // namespace m3::ops::cuda
