// Attention of single tokens on Hopper, over chosen blocks or all of them. A cluster of up to 16 blocks of threads takes a
// token and KV head and shares its blocks of keys out. Each leaves its sums where they are joined, in the shared memory
// of the block of threads whose rows they are: one exchange, one launch. Where a context is long enough for more blocks
// of threads than a cluster has, the sums meet in memory, and the last to end joins them.
//
// Of a block of keys a warp takes the scores of 16 keys. The eight warps agree on each head's highest score, weights go
// to shared memory, and every warp multiplies all 128 keys with its own 16 dimensions of V, so that no sums cross warps.
// K and V come by asynchronous copies into a ring of buffers, their 16-byte pieces exchanged by row, so that matrices of
// eight rows meet all banks. e4m3 codes become f16, which holds them exactly, in one instruction a pair; queries, times a
// power of two a head, and weights are f16 then, too.
#include <algorithm>
#include <type_traits>

#include "src/ops/cuda/attend.cuh"
#include "src/ops/cuda/attend_sm90.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/tensor_map.h"

namespace m3::ops::cuda {

namespace {

constexpr int decode_warps = 8;
constexpr int decode_threads = decode_warps * warp_size;
constexpr int most_cached_pages = 2 * decode_threads;

// What follows the ring in shared memory.
template <bool Fp8, int Buffers>
struct DecodeMemory {
  static constexpr int element_bytes = Fp8 ? 1 : 2;
  static constexpr int row_bytes = head_dim * element_bytes;
  static constexpr int buffer_bytes = page_tokens * row_bytes;
  static constexpr int weights_stride = page_tokens * 2 + 16;

  alignas(16) std::byte weights[group_rows * weights_stride];  // at first the queries [16][256]
  // From the blocks of threads of the cluster, [part · own rows + row].
  alignas(16) float values[group_rows][head_dim];
  alignas(16) float sums[group_rows][decode_warps];  // by warp
  float shifts[group_rows];
  static constexpr unsigned joined_bytes = sizeof(values) + sizeof(sums) + sizeof(shifts);

  alignas(16) float highest[group_rows][decode_warps];
  int pages[most_cached_pages];  // the sequence's
  std::uint64_t full[Buffers], queries_full, joined_full;
  bool last;
};
template <bool Fp8, int Buffers>
constexpr int decode_bytes = Buffers* DecodeMemory<Fp8, Buffers>::buffer_bytes +
                             static_cast<int>(sizeof(DecodeMemory<Fp8, Buffers>));

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// --- instructions ----------------------------------------------------------------------------------------------------

__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// The same place in the shared memory of another block of the cluster.
__device__ inline std::uint32_t address_of_rank(const void* own, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
  return there;
}
// Stores there, counted by a barrier there.
__device__ inline void store_there(std::uint32_t address, float value, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(value),
               "r"(barrier)
               : "memory");
}
__device__ inline void store_there(std::uint32_t address, const float2& value, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(value.x), "f"(value.y), "r"(barrier)
               : "memory");
}
__device__ inline void store_there(std::uint32_t address, const float4& value, std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// Four matrices [8][16 bytes], a row's address from each lane: of matrix i lane 4g + j gets bytes 4j … of row g, or, as
// [8][8] pairs of bytes turned round, pair g of rows 2j and 2j + 1.
__device__ inline void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_turned(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Four e4m3 codes as two pairs of f16, exactly.
__device__ inline void widen_to_f16(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  asm("{\n.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}
__device__ inline std::uint32_t pack_f16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// As mma_bf16, of f16 where `Half`.
template <bool Half>
__device__ inline void multiply_tile(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (Half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    mma_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
  }
}

// --- blocks of keys --------------------------------------------------------------------------------------------------

// Which blocks a token attends.
template <bool Sparse>
struct BlockList {
  const AttendArgs& args;
  int token, kv_head, sequence, end, begin, first, count;

  __device__ BlockList(const AttendArgs& a, int t, int h, int s, int position)
      : args(a), token(t), kv_head(h), sequence(s), end(position + 1) {
    begin = !Sparse && args.window > 0 ? max(0, end - args.window) : 0;
    first = begin / page_tokens;
    count = Sparse ? args.topk : (end + page_tokens - 1) / page_tokens - first;
  }
  __device__ int block(int entry) const {
    if (entry >= count) return -1;
    if (!Sparse) return first + entry;
    return args.block_ids[(std::int64_t{token} * args.kv_heads + kv_head) * args.topk + entry];
  }
  __device__ int page(int block) const { return block < 0 ? -1 : kv_page(args.batch, sequence, block); }
  // Keys of a block that the token sees: first, past the last.
  __device__ int2 seen(int block) const {
    return {max(0, begin - block * page_tokens), min(page_tokens, end - block * page_tokens)};
  }
};

// The share of one block of threads, entries rank, rank + ranks, … of the list, 32 at a time: a lane holds one.
struct Share {
  int base, block, page;  // of the 32: the first entry; of this lane's
  unsigned present = 0;

  template <bool Sparse>
  __device__ void hold(const BlockList<Sparse>& list, int own_block, int own_page) {
    block = own_block;
    const int2 seen = list.seen(block);
    page = seen.y <= seen.x ? -1 : own_page;
    present = __ballot_sync(all_lanes, page >= 0);
  }
  template <bool Sparse>
  __device__ bool next(const BlockList<Sparse>& list, int ranks, int lane, int& next_page, int2& seen) {
    while (present == 0) {
      base += warp_size * ranks;
      if (base >= list.count) return false;
      const int own = list.block(base + lane * ranks);
      hold(list, own, list.page(own));
    }
    const int from = __ffs(static_cast<int>(present)) - 1;
    present &= present - 1;
    next_page = __shfl_sync(all_lanes, page, from);
    seen = list.seen(__shfl_sync(all_lanes, block, from));
    return true;
  }
};

// All threads: the first `rows` rows of a page and head into a buffer, zeros behind them.
template <bool Fp8>
__device__ inline void bring_rows(std::uint32_t buffer, const std::byte* from, int rows, std::uint64_t policy) {
  constexpr int pieces = Fp8 ? 8 : 16;  // of a row
  constexpr int step_rows = decode_threads / pieces;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / pieces;
  const std::uint32_t to = buffer + tile_piece<page_tokens>(row, thread % pieces);
  from += thread * 16;
#pragma unroll
  for (int i = 0; i < pieces / 2; ++i) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to + i * step_rows * 128),
                 "l"(from + i * decode_threads * 16), "r"(row + i * step_rows < rows ? 16 : 0), "l"(policy)
                 : "memory");
  }
}

// One thread: all rows of a page and head by the tensor copies.
template <bool Fp8>
__device__ inline void bring_tile(std::uint32_t buffer, const TensorMap& map, int row, std::uint64_t* full,
                                  std::uint64_t policy) {
#pragma unroll
  for (int half = 0; half < (Fp8 ? 1 : 2); ++half) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
        "%3}], "
        "[%4], %5;" ::"r"(buffer + half * half_tile_bytes(page_tokens)),
        "l"(&map), "r"(half * 64), "r"(row), "r"(shared_address(full)), "l"(policy)
        : "memory");
  }
}

// Queries of 16 heads as the products take them, and what they lack in each of this lane's rows g and g + 8. With e4m3
// keys, chunk s multiplies dimensions 16 s + 4 j … + 3.
template <bool Fp8>
__device__ inline void read_queries(const std::byte* rows, int lane, std::uint32_t (&q)[8][4], float (&lacking)[2]) {
  lacking[0] = lacking[1] = 1;
  if constexpr (!Fp8) {
    const int row = lane & 15;
    const std::uint32_t at = shared_address(rows) + row * 256;
#pragma unroll
    for (int s = 0; s < 8; ++s) load_matrices(q[s], at + (((2 * s + lane / 16) ^ (row & 7)) << 4));
  } else {
    const int g = lane / 4;
    const int j = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint2 raw[8];
      std::uint32_t most = 0;
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        raw[s] = *reinterpret_cast<const uint2*>(rows + (g + 8 * r) * 256 + (((2 * s + j / 2) ^ g) << 4) + j % 2 * 8);
        most = __vmaxu2(most, __vmaxu2(raw[s].x & 0x7fff7fffu, raw[s].y & 0x7fff7fffu));
      }
      most = max(most & 0xffffu, most >> 16);
      most = max(most, __shfl_xor_sync(all_lanes, most, 1));
      most = max(most, __shfl_xor_sync(all_lanes, most, 2));
      // The largest becomes 2^14 …; those that lose bits are smaller by 2^30.
      const std::uint32_t exponent = max(most >> 7, 15u);
      const float factor = __uint_as_float((268 - exponent) << 23);
      lacking[r] = __uint_as_float((exponent - 14) << 23);
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        q[s][r] = pack_f16(low_bf16(raw[s].x) * factor, high_bf16(raw[s].x) * factor);
        q[s][2 + r] = pack_f16(low_bf16(raw[s].y) * factor, high_bf16(raw[s].y) * factor);
      }
    }
  }
}

// Scores of a warp's 16 keys, 16 · warp …: tile n holds keys 8 n + 2 j, + 1 of rows g and g + 8.
template <bool Fp8>
__device__ inline void score_keys(const std::uint32_t (&q)[8][4], std::uint32_t buffer, int warp, int lane,
                                  float (&scores)[2][4]) {
  float sums[2][2][4] = {};
  const std::uint32_t row = buffer + (16 * warp + lane / 16 * 8 + lane % 8) * 128;
  const std::uint32_t piece = (lane / 8 % 2 ^ lane % 8) << 4;
  if constexpr (Fp8) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t k[4];  // keys 0 …: pieces 2 s, 2 s + 1; keys 8 …
      load_matrices(k, row + (piece ^ (s << 5)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t low, high;
        widen_to_f16(k[i], low, high);
        multiply_tile<true>(sums[i / 2][i % 2], q[2 * s + i % 2], low, high);
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      std::uint32_t k[4];
      load_matrices(k, row + s / 4 * half_tile_bytes(page_tokens) + (piece ^ (s % 4 << 5)));
      multiply_tile<false>(sums[0][s % 2], q[s], k[0], k[1]);
      multiply_tile<false>(sums[1][s % 2], q[s], k[2], k[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = sums[n][0][i] + sums[n][1][i];
  }
}

// acc += weights [16][128] · this warp's 16 dimensions of V. Dimensions of tile t at columns 2 j, + 1: 16 warp + 8 t +
// 2 j, + 1; of e4m3 16 warp + 4 j + t, + 2.
template <bool Fp8>
__device__ inline void add_values(float (&acc)[2][4], std::uint32_t weights, int weights_stride, std::uint32_t buffer,
                                  int warp, int lane) {
  float odd[2][4] = {};
  weights += (lane & 15) * weights_stride + lane / 16 * 16;
  if constexpr (Fp8) {
    const std::uint32_t at = buffer + lane * 128 + ((warp ^ lane % 8) << 4);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t v[4], p[2][4];
      load_matrices(p[0], weights + s * 64);
      load_matrices(p[1], weights + s * 64 + 32);
      load_matrices_turned(v, at + s * 32 * 128);  // keys 32 s + 8 i + 2 j, + 1: dimensions 2 g, + 1
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t low[2], high[2];
        widen_to_f16(__byte_perm(v[2 * i], 0, 0x3120), low[0], high[0]);
        widen_to_f16(__byte_perm(v[2 * i + 1], 0, 0x3120), low[1], high[1]);
        multiply_tile<true>(i == 0 ? acc[0] : odd[0], p[i], low[0], low[1]);
        multiply_tile<true>(i == 0 ? acc[1] : odd[1], p[i], high[0], high[1]);
      }
    }
  } else {
    const std::uint32_t at = buffer + warp / 4 * half_tile_bytes(page_tokens) + (lane & 15) * 128 +
                             (((warp % 4 * 2 + lane / 16) ^ lane % 8) << 4);
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      std::uint32_t v[4], p[4];
      load_matrices(p, weights + s * 32);
      load_matrices_turned(v, at + s * 16 * 128);
      multiply_tile<false>(s % 2 == 0 ? acc[0] : odd[0], p, v[0], v[1]);
      multiply_tile<false>(s % 2 == 0 ? acc[1] : odd[1], p, v[2], v[3]);
    }
  }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[t][i] += odd[t][i];
  }
}

// store(dimension, float2 or float4) of this lane's values of row g + 8 r, times `factor`.
template <bool Fp8, typename Store>
__device__ inline void store_values(const float (&acc)[2][4], int r, float factor, int warp, int j,
                                    const Store& store) {
  if constexpr (Fp8) {
    store(16 * warp + 4 * j, float4{acc[0][2 * r] * factor, acc[1][2 * r] * factor, acc[0][2 * r + 1] * factor,
                                    acc[1][2 * r + 1] * factor});
  } else {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      store(16 * warp + 8 * t + 2 * j, float2{acc[t][2 * r] * factor, acc[t][2 * r + 1] * factor});
    }
  }
}

// --- joining ---------------------------------------------------------------------------------------------------------

__device__ inline float sum_of_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}
__device__ inline float max_of_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
}

// A row of `parts` (up to 64) summed under their own highest scores: one warp joins them, a lane 4 dimensions.
struct JoinedRow {
  float highest = no_score, total = 0;
  float4 value = {0, 0, 0, 0};

  // highest_of(part) and sum_of(part): of a part that this lane asks for; values_of(part): its 4 dimensions of any part.
  template <int Ahead, typename HighestOf, typename SumOf, typename ValuesOf>
  __device__ void join(int parts, int lane, const HighestOf& highest_of, const SumOf& sum_of,
                       const ValuesOf& values_of) {
    float own[2], factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      own[half] = lane + half * warp_size < parts ? highest_of(lane + half * warp_size) : no_score;
      highest = fmaxf(highest, own[half]);
    }
    for (int offset = warp_size / 2; offset > 0; offset /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(all_lanes, highest, offset));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factors[half] = own[half] == no_score ? 0.0f : power_of_two(own[half] - highest);
      if (lane + half * warp_size < parts) total += factors[half] * sum_of(lane + half * warp_size);
    }
    total = warp_sum(total);
    for (int first = 0; first < parts; first += Ahead) {
      float4 values[Ahead];
#pragma unroll
      for (int i = 0; i < Ahead; ++i) {
        values[i] = first + i < parts ? values_of(first + i) : float4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < Ahead; ++i) {
        const int part = first + i;  // those past the last have the factor 0
        const float factor = __shfl_sync(all_lanes, part < warp_size ? factors[0] : factors[1], part % warp_size);
        value.x += values[i].x * factor, value.y += values[i].y * factor;
        value.z += values[i].z * factor, value.w += values[i].w * factor;
      }
    }
  }
  __device__ void write(std::uint16_t* out, float v_scale, int lane) const {
    if (total == 0) return;  // no key at all: nothing is written
    const float factor = v_scale / total;
    *reinterpret_cast<uint2*>(out + 4 * lane) =
        uint2{pack_bf16(value.x * factor, value.y * factor), pack_bf16(value.z * factor, value.w * factor)};
  }
};

// The rows of a token and KV head through memory: each block of threads has left its part there, the last to end joins
// all.
__device__ inline void join_in_memory(const AttendArgs& args, bool& shared_last, unsigned* counters, int unit,
                                      int ranks, int thread, std::uint16_t* out) {
  const int lane = thread % warp_size;
  const Partial* parts = args.partials + std::int64_t{unit} * ranks;
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    shared_last = atomicInc(&counters[unit], static_cast<unsigned>(ranks - 1)) == static_cast<unsigned>(ranks - 1);
  }
  __syncthreads();
  if (!shared_last) return;
  __threadfence();
#pragma unroll
  for (int i = 0; i < group_rows / decode_warps; ++i) {
    const int row = thread / warp_size + i * decode_warps;
    JoinedRow joined;
    joined.join<8>(
        ranks, lane, [&](int r) { return __ldcg(&parts[r].highest[row]); },
        [&](int r) { return __ldcg(&parts[r].sum[row]); },
        [&](int r) { return __ldcg(reinterpret_cast<const float4*>(&parts[r].values[row][4 * lane])); });
    joined.write(out + row * head_dim, args.v_scale, lane);
  }
}

#endif

struct Maps {
  TensorMap k, v;
};

template <bool Fp8, bool Sparse, int Buffers, int BlocksPerSm, bool Tensor>
__global__ void __launch_bounds__(decode_threads, BlocksPerSm)
    attend_decode_sm90(const __grid_constant__ AttendArgs args, unsigned* counters, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = DecodeMemory<Fp8, Buffers>;
  std::byte* const ring = tile_memory();
  auto& shared = *reinterpret_cast<Memory*>(ring + Buffers * Memory::buffer_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  const int token = args.first_token + static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const auto ranks = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  if (thread == 0) {
    for (int i = 0; i < Buffers; ++i) barrier_init(&shared.full[i], Tensor ? 1 : decode_threads);
    barrier_init(&shared.queries_full, decode_threads);
    barrier_init(&shared.joined_full, 1);
    fence_barrier_init();
    barrier_expect(&shared.joined_full, Memory::joined_bytes);
    if (Tensor) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&maps.k) : "memory");
      asm volatile("prefetch.tensormap [%0];" ::"l"(&maps.v) : "memory");
    }
  }
  const bool clustered = ranks > 1 && counters == nullptr;
  if (clustered) {
    __syncwarp();
    cluster_arrive();
  }
  // No kernel writes where tokens stand and their pages; `block_ids` come from the one before.
  const int sequence = args.batch.sequence_of_token[token];
  const int position = args.batch.positions[token];
  const bool placed = sequence >= 0 && sequence < args.batch.sequences && position >= 0;
  const BlockList<Sparse> list(args, token, kv_head, sequence, position);
  const int context = placed ? args.batch.context_lengths[sequence] : 0;
  const int own_page = placed ? list.page(position / page_tokens) : -1;
  const int pages = position / page_tokens + 1;
  const bool cached = Sparse && pages <= most_cached_pages;
  int held_pages[2] = {-1, -1};
  Share ahead;
  ahead.base = rank;
  int block = -1, page = -1;
  if (placed) {
    if (cached) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (thread + i * decode_threads < pages) held_pages[i] = list.page(thread + i * decode_threads);
      }
    } else if (!Sparse) {
      block = list.block(rank + lane * ranks);
      page = list.page(block);
    }
  }
  wait_for_previous();
  if (Sparse && placed) block = list.block(rank + lane * ranks);
  if (position >= context || own_page < 0) {
    if (clustered) cluster_wait();
    return;
  }
  const std::byte* queries =
      reinterpret_cast<const std::byte*>(args.q + token * args.q_stride + kv_head * group_rows * head_dim);
  copy_async_16(shared.weights + thread / 16 * 256 + ((thread % 16 ^ (thread / 16 & 7)) << 4), queries + thread * 16);
  if (cached) {
#pragma unroll
    for (int i = 0; i < 2; ++i) shared.pages[thread + i * decode_threads] = held_pages[i];
  }
  __syncthreads();
  barrier_arrive_after_copies(&shared.queries_full);
  if (Sparse) page = block < 0 || block >= pages ? -1 : cached ? shared.pages[block] : list.page(block);
  ahead.hold(list, block, page);
  Share here = ahead;

  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const std::uint32_t ring_address = shared_address(ring);
  Turn<Buffers> fill, turn;
  int filled_page = -1;
  int2 filled = {0, 0};
  bool values_next = false, more = true;
  const auto bring = [&] {  // K of the share's next block, then its V
    if (!values_next && more) more = ahead.next(list, ranks, lane, filled_page, filled);
    if (more && Tensor) {
      if (thread == 0) {
        const PagePart& part = values_next ? args.v : args.k;
        const std::int64_t row = (filled_page * part.page_bytes >> (Fp8 ? 7 : 8)) + kv_head * page_tokens;
        barrier_expect(&shared.full[fill.buffer], Memory::buffer_bytes);
        bring_tile<Fp8>(ring_address + fill.buffer * Memory::buffer_bytes, values_next ? maps.v : maps.k,
                        static_cast<int>(row), &shared.full[fill.buffer], policy);
      }
    } else if (more) {
      bring_rows<Fp8>(ring_address + fill.buffer * Memory::buffer_bytes,
                      page_run(values_next ? args.v : args.k, filled_page, kv_head, Memory::element_bytes), filled.y,
                      policy);
      barrier_arrive_after_copies(&shared.full[fill.buffer]);
    }
    values_next = !values_next;
    fill.next();
  };
#pragma unroll 1
  for (int i = 0; i < Buffers; ++i) bring();

  std::uint32_t q[8][4];
  float scale[2];
  barrier_wait(&shared.queries_full, 0);
  read_queries<Fp8>(shared.weights, lane, q, scale);
  scale[0] *= args.scale, scale[1] *= args.scale;
  float acc[2][4] = {};
  float shift[2] = {no_score, no_score};
  float sum[2] = {0, 0};
  int2 seen;
  const std::uint32_t weights_address = shared_address(shared.weights);
  for (bool begun = false; here.next(list, ranks, lane, page, seen); begun = true) {
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    float scores[2][4];
    score_keys<Fp8>(q, ring_address + turn.buffer * Memory::buffer_bytes, warp, lane, scores);
    turn.next();
    float own[2] = {no_score, no_score};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 16 * warp + 8 * n + 2 * j + i % 2;
        scores[n][i] = key >= seen.x && key < seen.y ? scores[n][i] * scale[i / 2] : no_score;
        own[i / 2] = fmaxf(own[i / 2], scores[n][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own[r] = quad_max(own[r]);
      if (j == 0) shared.highest[g + 8 * r][warp] = own[r];
    }
    if (Tensor) fence_async_proxy();
    __syncthreads();  // these keys have been read, and the values and weights before
#pragma unroll 1
    for (int free = begun ? 2 : 1; free > 0; --free) bring();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float highest = fmaxf(shift[r], max_of_eight(shared.highest[g + 8 * r]));
      const float base = highest == no_score ? 0.0f : highest;
      const float factor = power_of_two(shift[r] - base);
      shift[r] = highest;
      sum[r] *= factor;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        acc[n][2 * r] *= factor, acc[n][2 * r + 1] *= factor;
        const float a = power_of_two(scores[n][2 * r] - base), b = power_of_two(scores[n][2 * r + 1] - base);
        sum[r] += a + b;
        *reinterpret_cast<std::uint32_t*>(shared.weights + (g + 8 * r) * Memory::weights_stride +
                                          (16 * warp + 8 * n + 2 * j) * 2) = Fp8 ? pack_f16(a, b) : pack_bf16(a, b);
      }
    }
    __syncthreads();
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    if (Tensor && seen.y < page_tokens) {
      // Rows that nobody wrote may hold what a weight of zero does not hide.
      std::byte* values = ring + turn.buffer * Memory::buffer_bytes;
      for (int i = seen.y * 8 + thread; i < page_tokens * 8; i += decode_threads) {
        *reinterpret_cast<uint4*>(values + i * 16) = uint4{0, 0, 0, 0};
        if (!Fp8) *reinterpret_cast<uint4*>(values + half_tile_bytes(page_tokens) + i * 16) = uint4{0, 0, 0, 0};
      }
      __syncthreads();
    }
    add_values<Fp8>(acc, weights_address, Memory::weights_stride, ring_address + turn.buffer * Memory::buffer_bytes,
                    warp, lane);
    turn.next();
  }
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);

  std::uint16_t* out = args.out + token * args.out_stride + kv_head * group_rows * head_dim;
  if (!clustered) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (j == 0) shared.sums[g + 8 * r][warp] = sum[r];
    }
    __syncthreads();
    if (counters == nullptr) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float total = sum_of_eight(shared.sums[g + 8 * r]);
        if (total == 0) continue;  // no key at all: nothing is written
        std::uint16_t* row = out + (g + 8 * r) * head_dim;
        store_values<Fp8>(acc, r, args.v_scale / total, warp, j, [&](int dimension, const auto& v) {
          if constexpr (Fp8) {
            *reinterpret_cast<uint2*>(row + dimension) = uint2{pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
          } else {
            *reinterpret_cast<std::uint32_t*>(row + dimension) = pack_bf16(v.x, v.y);
          }
        });
      }
      return;
    }
    const int unit = static_cast<int>(blockIdx.z) * args.kv_heads + kv_head;
    Partial& part = args.partials[std::int64_t{unit} * ranks + rank];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = g + 8 * r;
      store_values<Fp8>(acc, r, 1, warp, j, [&](int dimension, const auto& v) {
        *reinterpret_cast<std::remove_cvref_t<decltype(v)>*>(&part.values[row][dimension]) = v;
      });
      if (warp == 0 && j == 0) part.highest[row] = shift[r], part.sum[row] = sum_of_eight(shared.sums[row]);
    }
    join_in_memory(args, shared.last, counters, unit, ranks, thread, out);
    return;
  }
  __syncwarp();
  // All have begun.
  cluster_wait();
  // Of a block of threads.
  const int rows = group_rows / ranks;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = g + 8 * r;
    const int at = rank * rows + row % rows;
    const int owner = row / rows;
    const std::uint32_t full = address_of_rank(&shared.joined_full, owner);
    store_values<Fp8>(acc, r, 1, warp, j, [&](int dimension, const auto& v) {
      store_there(address_of_rank(&shared.values[at][dimension], owner), v, full);
    });
    if (j == 0) store_there(address_of_rank(&shared.sums[at][warp], owner), sum[r], full);
    if (warp == 0 && j == 0) store_there(address_of_rank(&shared.shifts[at], owner), shift[r], full);
  }
  barrier_wait(&shared.joined_full, 0);
  for (int row = warp; row < rows; row += decode_warps) {
    JoinedRow joined;
    joined.join<8>(
        ranks, lane, [&](int part) { return shared.shifts[part * rows + row]; },
        [&](int part) { return sum_of_eight(shared.sums[part * rows + row]); },
        [&](int part) { return *reinterpret_cast<const float4*>(&shared.values[part * rows + row][4 * lane]); });
    joined.write(out + (rank * rows + row) * head_dim, args.v_scale, lane);
  }
#endif
}

template <bool Fp8, bool Sparse, int Buffers, int BlocksPerSm, bool Tensor = false>
cudaError_t launch_decode(const AttendArgs& args, int ranks, unsigned* counters, cudaStream_t stream) {
  constexpr int bytes = decode_bytes<Fp8, Buffers>;
  const auto kernel = attend_decode_sm90<Fp8, Sparse, Buffers, BlocksPerSm, Tensor>;
  static int allowed = 0;
  if (allowed == 0) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(ranks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ranks), static_cast<unsigned>(args.kv_heads),
                        static_cast<unsigned>(args.batch.tokens));
  config.blockDim = dim3(decode_threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = ranks > 1 && counters == nullptr ? 2 : 1;
  Maps maps = {};
  if constexpr (Tensor) {
    constexpr int row_bytes = DecodeMemory<Fp8, Buffers>::row_bytes;
    if (args.k.page_bytes % row_bytes != 0 || args.v.page_bytes % row_bytes != 0) return cudaErrorNotSupported;
    constexpr std::int64_t many = 0x7fffffff;
    if (!encode_tensor_map(maps.k, args.k.data, Fp8 ? 1 : 2, many, head_dim, row_bytes, page_tokens, Fp8 ? 128 : 64,
                           128) ||
        !encode_tensor_map(maps.v, args.v.data, Fp8 ? 1 : 2, many, head_dim, row_bytes, page_tokens, Fp8 ? 128 : 64,
                           128))
      return cudaErrorNotSupported;
  }
  return cudaLaunchKernelEx(&config, kernel, args, counters, maps);
}

constexpr int most_tokens = 65535;  // of a grid
constexpr int most_parts = 64;      // JoinedRow

bool has_room(const AttendCall& call, int units, int ranks) {
  return call.counters_size >= units &&
         call.workspace_bytes >= std::int64_t{units} * ranks * static_cast<std::int64_t>(sizeof(Partial));
}

}  // namespace

std::int64_t attend_decode_sm90_bytes() {
  return runs_on_hopper() ? std::int64_t{2} * multiprocessors() * static_cast<std::int64_t>(sizeof(Partial)) : 0;
}

bool attend_decode_takes_sm90(const AttendCall& call) {
  return runs_on_hopper() && !call.deterministic && call.args.query_heads == group_rows * call.args.kv_heads &&
         call.batch.tokens <= most_tokens && call.q_stride % 8 == 0 && call.out_stride % 4 == 0;
}

cudaError_t launch_attend_decode_sm90(const AttendCall& call, cudaStream_t stream) {
  if (call.batch.tokens == 0) return cudaSuccess;
  const bool fp8 = call.pages.k.dtype == DType::f8_e4m3;
  const bool sparse = call.block_ids != nullptr;
  AttendArgs args = {};
  args.batch = call.batch;
  args.q = call.q;
  args.q_stride = call.q_stride;
  args.k = call.pages.k;
  args.v = call.pages.v;
  args.scale = call.args.scale * (fp8 ? call.pages.k_scale : 1.0f) * log2_e;
  args.v_scale = fp8 ? call.pages.v_scale : 1.0f;
  args.query_heads = call.args.query_heads;
  args.kv_heads = call.args.kv_heads;
  args.window = sparse ? 0 : call.args.window;
  args.block_ids = call.block_ids;
  args.topk = call.args.topk;
  args.out = call.out;
  args.out_stride = call.out_stride;
  // Blocks of threads a token and KV head: chosen blocks of few tokens do best with one of these a multiprocessor at most
  // and small clusters, all of a context with two.
  const int units = args.batch.tokens * args.kv_heads;
  const int most = std::max(1, 2 * multiprocessors() / units);
  const int entries = sparse ? args.topk : (args.batch.longest_context + page_tokens - 1) / page_tokens;
  int ranks = 1;
  while (ranks < (sparse ? 8 : 16) && ranks * 2 <= (sparse ? multiprocessors() / units : most)) ranks *= 2;
  unsigned* counters = nullptr;
  // Long contexts of few tokens keep more busy than a cluster has: their sums meet in memory.
  const int wide = std::min(most, most_parts);
  if (wide > 2 * ranks && entries >= 8 * wide && has_room(call, units, wide)) {
    ranks = wide;
    counters = call.counters;
    args.partials = static_cast<Partial*>(call.workspace);
  }
  if (fp8)
    return sparse ? launch_decode<true, true, 6, 2>(args, ranks, counters, stream)
                  : launch_decode<true, false, 6, 2>(args, ranks, counters, stream);
  return sparse ? launch_decode<false, true, 3, 2>(args, ranks, counters, stream)
                : launch_decode<false, false, 3, 2>(args, ranks, counters, stream);
}

}  // namespace m3::ops::cuda
