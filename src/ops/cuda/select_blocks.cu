#include <algorithm>

#include "src/ops/cuda/attention.cuh"
#include "src/ops/cuda/batch.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int score_warps = 8;

struct ScoreLaunch {
  SelectArgs args;
  int first_token;  // of this launch
  int tokens;       // of this launch
  int tile_tokens;  // of one block of threads
  int blocks;       // of a row of scores
  int strip;        // key blocks of one block of threads
};

// scores[token, head, block] = the highest visible dot product. A block of threads takes up to 8 · Tiles columns, a
// column being a head of a token of its tile, over a strip of key blocks; a warp takes 16 keys of each.
template <bool Fp8, int Tiles>
__global__ void __launch_bounds__(256) select_blocks_score_sm80(const __grid_constant__ ScoreLaunch call) {
  wait_for_previous();
  using Row = CacheRow<Fp8>;
  constexpr int columns = 8 * Tiles;
  __shared__ __align__(16) std::uint16_t queries[columns][head_dim + 8];
  __shared__ float highest[score_warps][columns];
  __shared__ int limits[columns];     // keys at positions below are visible; 0: nothing
  __shared__ int sequences[columns];  // of each column
  const SelectArgs& args = call.args;
  const int heads = args.heads;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int first_token = call.first_token + static_cast<int>(blockIdx.y) * call.tile_tokens;
  const int last_token = min(first_token + call.tile_tokens, call.first_token + call.tokens);

  for (int column = static_cast<int>(threadIdx.x); column < columns; column += 256) {
    const int token = first_token + column / heads;
    limits[column] = 0;
    sequences[column] = -1;
    if (column / heads < call.tile_tokens && token < last_token) {
      const int sequence = live_sequence(args.batch, token);
      if (sequence >= 0) {
        sequences[column] = sequence;
        limits[column] = args.batch.positions[token] + 1;
      }
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < columns * head_dim; i += 256) {
    const int column = i / head_dim;
    const int token = first_token + column / heads;
    std::uint16_t value = 0;
    if (column / heads < call.tile_tokens && token < last_token) {
      value = args.index_q[token * args.stride + column % heads * head_dim + i % head_dim];
      if constexpr (Fp8) value = narrow_bf16(widen_e4m3(narrow_e4m3(widen_bf16(value))));
    }
    queries[column][i % head_dim] = value;
  }
  __syncthreads();

  // A tile may hold tokens of several sequences: one run of it at a time.
  for (int run = 0; run < columns;) {
    const int sequence = sequences[run];
    int run_end = run + heads;
    while (run_end < columns && sequences[run_end] == sequence) run_end += heads;
    if (sequence < 0) {
      run = run_end;
      continue;
    }
    const int run_limit = limits[min(run_end, columns) - 1];  // positions ascend inside a run
    const int first_block = static_cast<int>(blockIdx.x) * call.strip;
    const int last_block = min(first_block + call.strip, (run_limit + page_tokens - 1) / page_tokens);
    for (int block = first_block; block < last_block; ++block) {
      const int page = index_page(args.batch, sequence, block);
      float best[Tiles][2];
#pragma unroll
      for (int t = 0; t < Tiles; ++t) best[t][0] = best[t][1] = no_score;
      const int key = block * page_tokens + warp * 16;
      if (page >= 0 && key < run_limit) {
        const std::byte* rows = page_run(args.index_k, page, 0, Row::element_bytes);
        const int readable = run_limit - 1 - block * page_tokens;  // the last written row
        std::uint32_t k0[16], k1[16];
        Row::load_k(rows + min(warp * 16 + g, readable) * (head_dim * Row::element_bytes), j, k0);
        Row::load_k(rows + min(warp * 16 + g + 8, readable) * (head_dim * Row::element_bytes), j, k1);
#pragma unroll
        for (int t = 0; t < Tiles; ++t) {
          float s[4] = {};
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const uint4 q = *reinterpret_cast<const uint4*>(&queries[t * 8 + g][Row::k_dimension(c, j)]);
            mma_bf16(s, k0[4 * c], k1[4 * c], k0[4 * c + 1], k1[4 * c + 1], q.x, q.y);
            mma_bf16(s, k0[4 * c + 2], k1[4 * c + 2], k0[4 * c + 3], k1[4 * c + 3], q.z, q.w);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (key + g + i / 2 * 8 < limits[t * 8 + 2 * j + i % 2]) best[t][i % 2] = fmaxf(best[t][i % 2], s[i]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          for (int offset = 4; offset < 32; offset *= 2) {
            best[t][i] = fmaxf(best[t][i], __shfl_xor_sync(all_lanes, best[t][i], offset));
          }
          if (g == 0) highest[warp][t * 8 + 2 * j + i] = best[t][i];
        }
      }
      __syncthreads();
      for (int column = run + static_cast<int>(threadIdx.x); column < min(run_end, columns); column += 256) {
        float score = no_score;
        for (int w = 0; w < score_warps; ++w) score = fmaxf(score, highest[w][column]);
        const int token = first_token - call.first_token + column / heads;
        args.scores[(std::int64_t{token} * heads + column % heads) * call.blocks + block] = score;
      }
      __syncthreads();
    }
    run = run_end;
  }
}

// The same for few columns and many key blocks: a warp takes whole key blocks, so that nothing waits for other warps. 8
// columns a block of threads.
template <bool Fp8>
__global__ void __launch_bounds__(256, 2) select_blocks_stream_sm80(const __grid_constant__ ScoreLaunch call) {
  using Row = CacheRow<Fp8>;
  __shared__ __align__(16) std::uint16_t queries[8][head_dim + 8];
  const SelectArgs& args = call.args;
  const int heads = args.heads;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  wait_for_previous();
  const int first_token = call.first_token + static_cast<int>(blockIdx.y) * call.tile_tokens;
  const int last_token = min(first_token + call.tile_tokens, call.first_token + call.tokens);
  for (int i = static_cast<int>(threadIdx.x); i < 8 * head_dim; i += 256) {
    const int column = i / head_dim;
    const int token = first_token + column / heads;
    std::uint16_t value = 0;
    if (column / heads < call.tile_tokens && token < last_token) {
      value = args.index_q[token * args.stride + column % heads * head_dim + i % head_dim];
      if constexpr (Fp8) value = narrow_bf16(widen_e4m3(narrow_e4m3(widen_bf16(value))));
    }
    queries[column][i % head_dim] = value;
  }
  __syncthreads();
  std::uint32_t q[4][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint4 v = *reinterpret_cast<const uint4*>(&queries[g][Row::k_dimension(c, j)]);
    q[c][0] = v.x, q[c][1] = v.y, q[c][2] = v.z, q[c][3] = v.w;
  }
  for (int token = first_token; token < last_token; ++token) {
    const int sequence = live_sequence(args.batch, token);
    if (sequence < 0) continue;
    const int limit = args.batch.positions[token] + 1;
    const int first_block = static_cast<int>(blockIdx.x) * call.strip;
    const int last_block = min(first_block + call.strip, (limit + page_tokens - 1) / page_tokens);
    for (int block = first_block + warp; block < last_block; block += score_warps) {
      const int page = index_page(args.batch, sequence, block);
      float best[2] = {no_score, no_score};
      if (page >= 0) {
        const std::byte* rows = page_run(args.index_k, page, 0, Row::element_bytes);
        const int readable = limit - 1 - block * page_tokens;  // the last written row
#pragma unroll 2
        for (int m = 0; m < 8; ++m) {
          std::uint32_t k0[16], k1[16];
          Row::load_k(rows + min(m * 16 + g, readable) * (head_dim * Row::element_bytes), j, k0);
          Row::load_k(rows + min(m * 16 + g + 8, readable) * (head_dim * Row::element_bytes), j, k1);
          float s[4] = {};
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            mma_bf16(s, k0[4 * c], k1[4 * c], k0[4 * c + 1], k1[4 * c + 1], q[c][0], q[c][1]);
            mma_bf16(s, k0[4 * c + 2], k1[4 * c + 2], k0[4 * c + 3], k1[4 * c + 3], q[c][2], q[c][3]);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (m * 16 + g + i / 2 * 8 <= readable) best[i % 2] = fmaxf(best[i % 2], s[i]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        for (int offset = 4; offset < 32; offset *= 2) {
          best[i] = fmaxf(best[i], __shfl_xor_sync(all_lanes, best[i], offset));
        }
        const int column = 2 * j + i;
        if (g == 0 && column / heads == token - first_token) {
          args.scores[(std::int64_t{token - call.first_token} * heads + column % heads) * call.blocks + block] =
              best[i];
        }
      }
    }
  }
}

// Orders scores as integers; 0 is no candidate.
__device__ std::uint32_t key_of(float score) {
  std::uint32_t bits = __float_as_uint(score);
  if (bits == 0x80000000u) bits = 0;  // -0 ties with 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The highest key of the warp and, of those, the lowest block.
__device__ void warp_best(std::uint32_t& key, int& block) {
  const std::uint32_t highest = __reduce_max_sync(all_lanes, key);
  block = static_cast<int>(__reduce_min_sync(all_lanes, key == highest ? static_cast<unsigned>(block) : 0xffffffffu));
  key = highest;
}

// The choice of one token and head by `Warps` warps: every thread keeps the best of its own blocks, and the best of all
// is taken topk times.
template <int Warps>
__global__ void select_blocks_choose_sm80(const __grid_constant__ ScoreLaunch call, int rows) {
  wait_for_previous();
  auto* const row_scores = reinterpret_cast<float*>(dynamic_shared());
  __shared__ std::uint32_t best_keys[Warps];
  __shared__ int best_blocks[Warps];
  __shared__ int chosen[4][most_topk_blocks];
  constexpr int threads = Warps * warp_size;
  const SelectArgs& args = call.args;
  const int local = static_cast<int>(threadIdx.x) / threads;  // which row of this block of threads
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int row = static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x / threads) + local;
  if (row >= rows) return;
  const int token = call.first_token + row / args.heads;
  std::int32_t* ids = args.block_ids + (std::int64_t{call.first_token} * args.heads + row) * args.topk;
  const int sequence = live_sequence(args.batch, token);
  const int blocks = args.batch.positions[token] / page_tokens + 1;
  if (sequence < 0 || index_page(args.batch, sequence, blocks - 1) < 0) {
    for (int i = thread; i < args.topk; i += threads) ids[i] = -1;
    return;
  }
  // Forced blocks come first, whatever their score.
  const int local_begin = max(0, blocks - args.local_blocks);
  const int leading = min(min(args.init_blocks, local_begin), args.topk);
  const int trailing = min(blocks - local_begin, args.topk - leading);
  for (int i = thread; i < leading; i += threads) chosen[local][i] = i;
  for (int i = thread; i < trailing; i += threads) chosen[local][leading + i] = local_begin + i;
  int count = leading + trailing;

  float* scores = row_scores + local * call.blocks;
  const float* from = args.scores + std::int64_t{row} * call.blocks;
  std::uint32_t best = 0;
  int position = -1;
  const auto candidate = [&](int block) -> std::uint32_t {
    const float score = scores[block];
    return score != score ? 0 : key_of(score);  // NaN marks what is taken, forced or dropped
  };
  const auto find_best = [&] {
    best = 0;
    for (int block = thread; block < blocks; block += threads) {
      const std::uint32_t key = candidate(block);
      if (key > best) best = key, position = block;  // the lowest of equal ones
    }
  };
  for (int block = thread; block < blocks; block += threads) {
    float score = from[block];
    bool out = block < args.init_blocks || block >= local_begin;
    for (int i = 0; i < args.dropped_count; ++i) out = out || args.dropped[i] == block;
    scores[block] = out ? __uint_as_float(0x7fc00000u) : score;
  }
  find_best();
  while (count < args.topk) {
    std::uint32_t key = best;
    int winner = position;
    warp_best(key, winner);
    if constexpr (Warps > 1) {
      __syncthreads();
      if (thread % warp_size == 0) best_keys[thread / warp_size] = key, best_blocks[thread / warp_size] = winner;
      __syncthreads();
      key = thread % warp_size < Warps ? best_keys[thread % warp_size] : 0;
      winner = thread % warp_size < Warps ? best_blocks[thread % warp_size] : -1;
      warp_best(key, winner);
    }
    if (key == 0) break;
    if (winner == position && best != 0) {
      chosen[local][count] = position;
      scores[position] = __uint_as_float(0x7fc00000u);
      find_best();
    }
    ++count;
  }
  if constexpr (Warps > 1) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  for (int i = thread; i < args.topk; i += threads) {
    if (i >= count) {
      ids[i] = -1;
      continue;
    }
    int place = 0;
    for (int other = 0; other < count; ++other) place += chosen[local][other] < chosen[local][i] ? 1 : 0;
    ids[place] = chosen[local][i];
  }
}

std::int64_t blocks_of(std::int64_t context) { return (context + page_tokens - 1) / page_tokens; }

template <bool Fp8>
void launch_scores(ScoreLaunch& call, cudaStream_t stream) {
  const int heads = call.args.heads;
  // Few tokens, or tokens that share little: tiles of 8 columns.
  const bool wide = heads > 8 || (call.tokens >= 16 && call.args.batch.longest_query >= 8);
  const int columns = wide ? 64 : 8;
  call.tile_tokens = columns / heads;
  const int tiles = (call.tokens + call.tile_tokens - 1) / call.tile_tokens;
  // Strips so short that some 1000 blocks of threads come out.
  call.strip = std::clamp(static_cast<int>(std::int64_t{call.blocks} * tiles / 1024), 1, 64);
  const dim3 grid(static_cast<unsigned>((call.blocks + call.strip - 1) / call.strip), static_cast<unsigned>(tiles));
  if (wide) {
    launch(select_blocks_score_sm80<Fp8, 8>, grid, 256, 0, stream, call);
  } else if (std::int64_t{call.blocks} * tiles >= 1024) {
    // Enough key blocks that each warp has some of its own.
    call.strip = std::clamp(static_cast<int>(std::int64_t{call.blocks} * tiles / 1056), 8, 64);
    const dim3 strips(static_cast<unsigned>((call.blocks + call.strip - 1) / call.strip), static_cast<unsigned>(tiles));
    launch(select_blocks_stream_sm80<Fp8>, strips, 256, 0, stream, call);
  } else {
    launch(select_blocks_score_sm80<Fp8, 1>, grid, 256, 0, stream, call);
  }
}

}  // namespace

std::int64_t select_score_floats(std::int64_t tokens, std::int64_t heads, std::int64_t context) {
  constexpr std::int64_t enough = std::int64_t{32} << 20;
  const std::int64_t one = heads * blocks_of(context);
  return std::max(one, std::min(enough, tokens * one));
}

cudaError_t launch_select_blocks(const SelectArgs& args, cudaStream_t stream) {
  if (args.batch.tokens == 0) return cudaSuccess;
  if (select_decode_takes_sm90(args)) return launch_select_decode_sm90(args, stream);
  if (select_prefill_takes_sm90(args)) return launch_select_prefill_sm90(args, stream);
  if (args.heads > most_index_heads || args.topk > most_topk_blocks) return cudaErrorInvalidValue;
  ScoreLaunch call{args, 0, 0, 0, 0, 0};
  call.blocks = static_cast<int>(blocks_of(args.batch.longest_context));
  const std::int64_t most =
      std::min<std::int64_t>(args.score_floats / (std::int64_t{args.heads} * call.blocks), args.batch.tokens);
  if (most < 1) return cudaErrorInvalidValue;
  for (int first = 0; first < args.batch.tokens; first += static_cast<int>(most)) {
    call.first_token = first;
    call.tokens = static_cast<int>(std::min<std::int64_t>(most, args.batch.tokens - first));
    if (args.index_k.dtype == DType::f8_e4m3) {
      launch_scores<true>(call, stream);
    } else {
      launch_scores<false>(call, stream);
    }
    const int rows = call.tokens * args.heads;
    const int bytes = call.blocks * static_cast<int>(sizeof(float));
    if (call.blocks <= 1024) {
      launch(select_blocks_choose_sm80<1>, static_cast<unsigned>((rows + 3) / 4), 128,
             static_cast<std::size_t>(bytes) * 4, stream, call, rows);
    } else {
      const cudaError_t error =
          cudaFuncSetAttribute(select_blocks_choose_sm80<8>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (error != cudaSuccess) return error;
      launch(select_blocks_choose_sm80<8>, static_cast<unsigned>(rows), 256, static_cast<std::size_t>(bytes), stream,
             call, rows);
    }
  }
  return cudaGetLastError();
}

}  // namespace m3::ops::cuda
