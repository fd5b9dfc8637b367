// Attention of single tokens on Hopper: what its kernel (attend_decode_sm90.cu) is made of. Device code.
#pragma once

#include "src/ops/cuda/attend.cuh"
#include "src/ops/cuda/attend_sm90.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int decode_warps = 8;
constexpr int decode_threads = decode_warps * warp_size;

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

// Has an address ready here, not where it is first used.
template <typename T>
__device__ inline void settle(T*& address) {
  asm volatile("" : "+l"(address));
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
  int sequence, end, begin, first, count;
  const std::int32_t* ids;

  __device__ BlockList(const AttendArgs& a, int t, int h, int s, int position)
      : args(a), sequence(s), end(position + 1) {
    ids = Sparse ? args.block_ids + (std::int64_t{t} * args.kv_heads + h) * args.topk : nullptr;
    begin = !Sparse && args.window > 0 ? max(0, end - args.window) : 0;
    first = begin / page_tokens;
    count = Sparse ? args.topk : (end + page_tokens - 1) / page_tokens - first;
  }
  __device__ int block(int entry) const {
    if (entry >= count) return -1;
    if (!Sparse) return first + entry;
    return __ldcg(ids + entry);
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

// All threads: the first `rows` rows of a page and head into a buffer, zeros behind them. `from`: this thread's first 16
// bytes.
template <bool Fp8>
__device__ inline void bring_rows(std::uint32_t buffer, const std::byte* from, int rows, std::uint64_t policy) {
  constexpr int pieces = Fp8 ? 8 : 16;  // of a row
  constexpr int step_rows = decode_threads / pieces;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / pieces;
  const std::uint32_t to = buffer + tile_piece<page_tokens>(row, thread % pieces);
#pragma unroll
  for (int i = 0; i < pieces / 2; ++i) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to + i * step_rows * 128),
                 "l"(from + i * decode_threads * 16), "r"(row + i * step_rows < rows ? 16 : 0), "l"(policy)
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

// This warp's 16 dimensions of V, as the products take them.
template <bool Fp8>
__device__ inline void read_values(std::uint32_t (&v)[Fp8 ? 4 : 8][4], std::uint32_t buffer, int warp, int lane) {
  if constexpr (Fp8) {
    const std::uint32_t at = buffer + lane * 128 + ((warp ^ lane % 8) << 4);
#pragma unroll  // keys 32 s + 8 i + 2 j, + 1: dimensions 2 g, + 1
    for (int s = 0; s < 4; ++s) load_matrices_turned(v[s], at + s * 32 * 128);
  } else {
    const std::uint32_t at = buffer + warp / 4 * half_tile_bytes(page_tokens) + (lane & 15) * 128 +
                             (((warp % 4 * 2 + lane / 16) ^ lane % 8) << 4);
#pragma unroll
    for (int s = 0; s < 8; ++s) load_matrices_turned(v[s], at + s * 16 * 128);
  }
}

// acc += weights [16][128] · those values. Dimensions of tile t at columns 2 j, + 1: 16 warp + 8 t + 2 j, + 1; of e4m3
// 16 warp + 4 j + t, + 2.
template <bool Fp8>
__device__ inline void add_values(float (&acc)[2][4], std::uint32_t weights, int weights_stride,
                                  const std::uint32_t (&v)[Fp8 ? 4 : 8][4], int lane) {
  float odd[2][4] = {};
  weights += (lane & 15) * weights_stride + lane / 16 * 16;
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    std::uint32_t p[4];
    load_matrices(p, weights + s * 32);
    auto& even_or_odd = s % 2 == 0 ? acc : odd;
    if constexpr (Fp8) {
      std::uint32_t low[2], high[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) widen_to_f16(__byte_perm(v[s / 2][s % 2 * 2 + i], 0, 0x3120), low[i], high[i]);
      multiply_tile<true>(even_or_odd[0], p, low[0], low[1]);
      multiply_tile<true>(even_or_odd[1], p, high[0], high[1]);
    } else {
      multiply_tile<false>(even_or_odd[0], p, v[s][0], v[s][1]);
      multiply_tile<false>(even_or_odd[1], p, v[s][2], v[s][3]);
    }
  }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[t][i] += odd[t][i];
  }
}

// Four dimensions of row g + 8 r from `first_dimension` on, for each lane.
template <bool Fp8>
__device__ inline int first_dimension(int warp, int j) {
  return 16 * warp + (Fp8 ? 4 * j : 4 * (j / 2) + 8 * (j % 2));
}
template <bool Fp8>
__device__ inline float4 row_values(const float (&acc)[2][4], int r, int j) {
  const float a = acc[0][2 * r], b = acc[0][2 * r + 1], c = acc[1][2 * r], d = acc[1][2 * r + 1];
  if constexpr (Fp8) {
    return {a, c, b, d};
  } else {
    const bool odd = j % 2 != 0;  // neighbours exchange a pair: even lanes keep tile 0, odd ones tile 1
    const float x = __shfl_xor_sync(all_lanes, odd ? a : c, 1);
    const float y = __shfl_xor_sync(all_lanes, odd ? b : d, 1);
    return odd ? float4{x, y, c, d} : float4{a, b, x, y};
  }
}

__device__ inline float sum_of_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}
__device__ inline float max_of_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
}

__device__ inline void write_values(std::uint16_t* out, const float4& v, float factor) {
  *reinterpret_cast<uint2*>(out) = uint2{pack_bf16(v.x * factor, v.y * factor), pack_bf16(v.z * factor, v.w * factor)};
}

#endif

}  // namespace

}  // namespace m3::ops::cuda
