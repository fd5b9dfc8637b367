// Attention of single tokens on Hopper, over chosen blocks or all of them. A cluster of 1, 2, 4, 8 or 16 blocks of threads
// takes a token and KV head and shares its blocks of keys out; their sums meet through distributed shared memory, so that
// one launch does it all. Where a context is long enough for more blocks of threads than a cluster has, the sums meet in
// memory, and the last to end joins them. In each, one thread has K and V brought by bulk copies through a ring of
// buffers, and four warps take 32 keys of each block: their scores and weights never leave the warp.
#include <algorithm>

#include "src/ops/cuda/attend.cuh"
#include "src/ops/cuda/attend_sm90.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int consumer_warps = 4;
[[maybe_unused]] constexpr int warp_keys = page_tokens / consumer_warps;
constexpr int decode_threads = (consumer_warps + 1) * warp_size;
[[maybe_unused]] constexpr int consumer_threads = consumer_warps * warp_size;

template <bool Fp8>
struct DecodeMemory {
  static constexpr int element_bytes = Fp8 ? 1 : 2;
  static constexpr int row_bytes = head_dim * element_bytes;
  static constexpr int buffer_bytes = page_tokens * row_bytes;
  static constexpr int buffers = Fp8 ? 6 : 3;

  std::uint64_t full[buffers], empty[buffers];
  int2 seen[buffers];  // keys of the block that the token sees: first, past the last (0: no block follows)
  float highest[consumer_warps][group_rows], sum[consumer_warps][group_rows];  // of each warp
  bool last;
};
template <bool Fp8>
constexpr int decode_bytes =
    DecodeMemory<Fp8>::buffers * DecodeMemory<Fp8>::buffer_bytes + static_cast<int>(sizeof(DecodeMemory<Fp8>));

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// All threads of the cluster: what they wrote to shared memory is seen by all.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Likewise where nobody needs to see what others wrote.
__device__ inline void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// The float at the same place of shared memory of another block of the cluster.
__device__ inline float load_of_rank(const float* own, int rank) {
  float value;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(value)
      : "r"(shared_address(own)), "r"(rank)
      : "memory");
  return value;
}

__device__ inline float4 load_four_of_rank(const float* own, int rank) {
  float4 value;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(shared_address(own)), "r"(rank)
      : "memory");
  return value;
}

// Rows of K and V lie as in memory. Lanes that would meet the same banks read their pieces in another order.
template <bool Fp8>
struct DecodeRow : CacheRow<Fp8> {
  // As CacheRow::load_k.
  __device__ static void load_k(const std::byte* row, int j, bool odd, std::uint32_t (&pairs)[16]) {
    if constexpr (Fp8) {
      const uint4 a = *reinterpret_cast<const uint4*>(row + (odd ? 64 : 0) + j * 16);
      const uint4 b = *reinterpret_cast<const uint4*>(row + (odd ? 0 : 64) + j * 16);
      widen_e4m3x4(odd ? b.x : a.x, pairs[0], pairs[1]);
      widen_e4m3x4(odd ? b.y : a.y, pairs[2], pairs[3]);
      widen_e4m3x4(odd ? b.z : a.z, pairs[4], pairs[5]);
      widen_e4m3x4(odd ? b.w : a.w, pairs[6], pairs[7]);
      widen_e4m3x4(odd ? a.x : b.x, pairs[8], pairs[9]);
      widen_e4m3x4(odd ? a.y : b.y, pairs[10], pairs[11]);
      widen_e4m3x4(odd ? a.z : b.z, pairs[12], pairs[13]);
      widen_e4m3x4(odd ? a.w : b.w, pairs[14], pairs[15]);
    } else {
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        const uint4 a = *reinterpret_cast<const uint4*>(row + (odd ? c + 1 : c) * 64 + j * 16);
        const uint4 b = *reinterpret_cast<const uint4*>(row + (odd ? c : c + 1) * 64 + j * 16);
        pairs[4 * c] = odd ? b.x : a.x, pairs[4 * c + 1] = odd ? b.y : a.y;
        pairs[4 * c + 2] = odd ? b.z : a.z, pairs[4 * c + 3] = odd ? b.w : a.w;
        pairs[4 * c + 4] = odd ? a.x : b.x, pairs[4 * c + 5] = odd ? a.y : b.y;
        pairs[4 * c + 6] = odd ? a.z : b.z, pairs[4 * c + 7] = odd ? a.w : b.w;
      }
    }
  }
  // 16 dimensions 16g … of a value, as 8 pairs.
  __device__ static void load_v(const std::byte* row, int g, bool odd, std::uint32_t (&pairs)[8]) {
    if constexpr (Fp8) {
      const uint4 v = *reinterpret_cast<const uint4*>(row + g * 16);
      widen_e4m3x4(v.x, pairs[0], pairs[1]);
      widen_e4m3x4(v.y, pairs[2], pairs[3]);
      widen_e4m3x4(v.z, pairs[4], pairs[5]);
      widen_e4m3x4(v.w, pairs[6], pairs[7]);
    } else {
      const uint4 a = *reinterpret_cast<const uint4*>(row + g * 32 + (odd ? 16 : 0));
      const uint4 b = *reinterpret_cast<const uint4*>(row + g * 32 + (odd ? 0 : 16));
      pairs[0] = odd ? b.x : a.x, pairs[1] = odd ? b.y : a.y, pairs[2] = odd ? b.z : a.z, pairs[3] = odd ? b.w : a.w;
      pairs[4] = odd ? a.x : b.x, pairs[5] = odd ? a.y : b.y, pairs[6] = odd ? a.z : b.z, pairs[7] = odd ? a.w : b.w;
    }
  }
  __device__ static int out_dimension(int t, int n) { return n * 16 + t; }
};

// Which blocks a token attends, and the share of one block of threads: entries rank, rank + ranks, … of the token's list,
// or of all blocks from the window's first on.
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
};

// One warp. `block` and `page` of this lane's first entry, rank + lane · ranks, have been looked up.
template <bool Fp8, bool Sparse>
__device__ inline void bring_blocks(const AttendArgs& args, DecodeMemory<Fp8>& shared, std::byte* buffers,
                                    const BlockList<Sparse>& list, int block, int page, int rank, int ranks, int lane) {
  using Memory = DecodeMemory<Fp8>;
  Turn<Memory::buffers> turn;
  for (int base = rank; base < list.count; base += warp_size * ranks) {
    if (base != rank) {
      block = list.block(base + lane * ranks);
      page = list.page(block);
    }
    const int seen_last = min(page_tokens, list.end - block * page_tokens);
    const int seen_first = max(0, list.begin - block * page_tokens);
    if (seen_last <= seen_first) page = -1;
    unsigned present = __ballot_sync(all_lanes, page >= 0);
    while (present != 0) {
      const int from = __ffs(static_cast<int>(present)) - 1;
      present &= present - 1;
      const int from_page = __shfl_sync(all_lanes, page, from);
      const int2 seen = {__shfl_sync(all_lanes, seen_first, from), __shfl_sync(all_lanes, seen_last, from)};
      if (lane == 0) {
        const auto bytes = static_cast<unsigned>(seen.y * Memory::row_bytes);
#pragma unroll
        for (int values = 0; values < 2; ++values) {
          barrier_wait(&shared.empty[turn.buffer], turn.parity ^ 1u);
          shared.seen[turn.buffer] = seen;
          barrier_expect(&shared.full[turn.buffer], bytes);
          copy_bulk_once(buffers + turn.buffer * Memory::buffer_bytes,
                         page_run(values != 0 ? args.v : args.k, from_page, list.kv_head, Memory::element_bytes), bytes,
                         &shared.full[turn.buffer]);
          turn.next();
        }
      }
    }
  }
  if (lane == 0) {
    barrier_wait(&shared.empty[turn.buffer], turn.parity ^ 1u);
    shared.seen[turn.buffer] = {0, 0};
    barrier_arrive(&shared.full[turn.buffer]);
  }
}

// A warp's keys of all blocks of this block of threads. Leaves each warp's sums [4][16][128] where the ring was.
template <bool Fp8>
__device__ inline void attend_blocks(const AttendArgs& args, DecodeMemory<Fp8>& shared, std::byte* buffers, int token,
                                     int kv_head, int thread) {
  using Memory = DecodeMemory<Fp8>;
  using Row = DecodeRow<Fp8>;
  constexpr float slack = 8;  // as in attend_tiles_sm90.cuh
  const int warp = thread / warp_size;
  const int lane = thread % warp_size;
  const int g = lane / 4;
  const int j = lane % 4;
  std::uint32_t q[8][4];
  load_tile_queries<Fp8>(args, token, kv_head, lane, q);
  float acc[16][4] = {};
  float shift[2] = {no_score, no_score};
  float sum[2] = {0, 0};
  Turn<Memory::buffers> turn;
  const auto release = [&] {
    fence_async_proxy();  // these reads end before a bulk copy overwrites what they read
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.empty[turn.buffer]);
    turn.next();
  };
  while (true) {
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    const int2 seen = shared.seen[turn.buffer];
    if (seen.y == 0) break;
    const int first_key = warp * warp_keys;
    const int safe = seen.y - 1;  // rows past it were not brought
    float scores[4][4] = {};
    const std::byte* rows = buffers + turn.buffer * Memory::buffer_bytes;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      std::uint32_t k[16];
      Row::load_k(rows + min(first_key + 8 * n + g, safe) * Memory::row_bytes, j, g % 2 != 0, k);
#pragma unroll
      for (int i = 0; i < 8; ++i) mma_bf16(scores[n], q[i][0], q[i][1], q[i][2], q[i][3], k[2 * i], k[2 * i + 1]);
    }
    release();
    float highest[2] = {no_score, no_score};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 8 * n + 2 * j + i % 2;
        scores[n][i] = key >= seen.x && key < seen.y ? scores[n][i] * args.scale : no_score;
        highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
      }
    }
    highest[0] = quad_max(highest[0]);
    highest[1] = quad_max(highest[1]);
    if (__any_sync(all_lanes, highest[0] > shift[0] + slack || highest[1] > shift[1] + slack)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float next = fmaxf(shift[r], highest[r]);
        const float factor = next == no_score ? 1.0f : power_of_two(shift[r] - next);
        shift[r] = next;
        sum[r] *= factor;
#pragma unroll
        for (int t = 0; t < 16; ++t) acc[t][2 * r] *= factor, acc[t][2 * r + 1] *= factor;
      }
    }
    std::uint32_t p[2][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[i] = power_of_two(scores[n][i] - (shift[i / 2] == no_score ? 0.0f : shift[i / 2]));
        sum[i / 2] += weights[i];
      }
      p[n / 2][n % 2 * 2] = pack_bf16(weights[0], weights[1]);
      p[n / 2][n % 2 * 2 + 1] = pack_bf16(weights[2], weights[3]);
    }
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    rows = buffers + turn.buffer * Memory::buffer_bytes;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t v[4][8];  // keys 2j, 2j + 1, 8 + 2j, 8 + 2j + 1
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 16 * step + i / 2 * 8 + 2 * j + i % 2;
        Row::load_v(rows + min(key, safe) * Memory::row_bytes, g, j % 2 != 0, v[i]);
      }
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        mma_bf16(acc[2 * w], p[step][0], p[step][1], p[step][2], p[step][3], __byte_perm(v[0][w], v[1][w], 0x5410),
                 __byte_perm(v[2][w], v[3][w], 0x5410));
        mma_bf16(acc[2 * w + 1], p[step][0], p[step][1], p[step][2], p[step][3], __byte_perm(v[0][w], v[1][w], 0x7632),
                 __byte_perm(v[2][w], v[3][w], 0x7632));
      }
    }
    release();
  }

  auto* sums = reinterpret_cast<float(*)[group_rows][head_dim]>(buffers);
  sync_threads_of(1, consumer_threads);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = quad_sum(sum[r]);
    if (j == 0) shared.highest[warp][g + 8 * r] = shift[r], shared.sum[warp][g + 8 * r] = all;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < 16; t += 4) {
        *reinterpret_cast<float4*>(&sums[warp][g + 8 * r][Row::out_dimension(t, 2 * j + half)]) =
            float4{acc[t][2 * r + half], acc[t + 1][2 * r + half], acc[t + 2][2 * r + half], acc[t + 3][2 * r + half]};
      }
    }
  }
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

// The rows of a token and KV head through memory: each block of threads leaves its part there, the last to end joins all.
template <bool Fp8>
__device__ inline void join_in_memory(const AttendArgs& args, DecodeMemory<Fp8>& shared, const std::byte* buffers,
                                      unsigned* counters, int unit, int rank, int ranks, int thread,
                                      std::uint16_t* out) {
  const auto* sums = reinterpret_cast<const float(*)[group_rows][head_dim]>(buffers);
  const int lane = thread % warp_size;
  const int warp = thread / warp_size;
  Partial* parts = args.partials + std::int64_t{unit} * ranks;
  if (thread < consumer_threads) {
    for (int row = warp; row < group_rows; row += consumer_warps) {
      JoinedRow joined;
      joined.join<consumer_warps>(
          consumer_warps, lane, [&](int w) { return shared.highest[w][row]; },
          [&](int w) { return shared.sum[w][row]; },
          [&](int w) { return *reinterpret_cast<const float4*>(&sums[w][row][4 * lane]); });
      *reinterpret_cast<float4*>(&parts[rank].values[row][4 * lane]) = joined.value;
      if (lane == 0) parts[rank].highest[row] = joined.highest, parts[rank].sum[row] = joined.total;
    }
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    shared.last = atomicInc(&counters[unit], static_cast<unsigned>(ranks - 1)) == static_cast<unsigned>(ranks - 1);
  }
  __syncthreads();
  if (!shared.last || thread >= consumer_threads) return;
  __threadfence();
#pragma unroll
  for (int i = 0; i < group_rows / consumer_warps; ++i) {
    const int row = warp + i * consumer_warps;
    JoinedRow joined;
    joined.join<8>(
        ranks, lane, [&](int r) { return __ldcg(&parts[r].highest[row]); },
        [&](int r) { return __ldcg(&parts[r].sum[row]); },
        [&](int r) { return __ldcg(reinterpret_cast<const float4*>(&parts[r].values[row][4 * lane])); });
    joined.write(out + row * head_dim, args.v_scale, lane);
  }
}

#endif

template <bool Fp8, bool Sparse>
__global__ void __launch_bounds__(decode_threads, 2)
    attend_decode_sm90(const __grid_constant__ AttendArgs args, unsigned* counters) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = DecodeMemory<Fp8>;
  std::byte* const buffers = tile_memory();
  auto& shared = *reinterpret_cast<Memory*>(buffers + Memory::buffers * Memory::buffer_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  const int token = args.first_token + static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const auto ranks = static_cast<int>(gridDim.x);  // the cluster's size
  const int rank = static_cast<int>(blockIdx.x);
  if (thread == 0) {
    for (int i = 0; i < Memory::buffers; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], consumer_warps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  // No kernel writes where tokens stand; `block_ids` come from the one before.
  const int sequence = args.batch.sequence_of_token[token];
  const int position = args.batch.positions[token];
  const bool placed = sequence >= 0 && sequence < args.batch.sequences && position >= 0;
  const int lane = thread % warp_size;
  const BlockList<Sparse> list(args, token, kv_head, sequence, position);
  const int context = placed ? args.batch.context_lengths[sequence] : 0;
  const int own_page = placed ? list.page(position / page_tokens) : -1;
  wait_for_previous();
  int block = -1, page = -1;
  if (placed && thread >= consumer_threads) {
    block = list.block(rank + lane * ranks);
    page = list.page(block);
  }
  if (position >= context || own_page < 0) return;
  if (thread < consumer_threads) {
    attend_blocks<Fp8>(args, shared, buffers, token, kv_head, thread);
  } else {
    bring_blocks<Fp8, Sparse>(args, shared, buffers, list, block, page, rank, ranks, lane);
  }
  __syncwarp();
  std::uint16_t* out = args.out + token * args.out_stride + kv_head * group_rows * head_dim;
  if (counters != nullptr) {
    __syncthreads();
    join_in_memory<Fp8>(args, shared, buffers, counters, static_cast<int>(blockIdx.z) * args.kv_heads + kv_head, rank,
                        ranks, thread, out);
    return;
  }
  if (ranks > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  if (thread < consumer_threads) {
    const auto* sums = reinterpret_cast<const float(*)[group_rows][head_dim]>(buffers);
    const int rows = group_rows / ranks;
    for (int row = rank * rows + thread / warp_size; row < (rank + 1) * rows; row += consumer_warps) {
      JoinedRow joined;
      joined.join<8>(
          ranks * consumer_warps, lane,
          [&](int part) { return load_of_rank(&shared.highest[part % consumer_warps][row], part / consumer_warps); },
          [&](int part) { return load_of_rank(&shared.sum[part % consumer_warps][row], part / consumer_warps); },
          [&](int part) {
            return load_four_of_rank(&sums[part % consumer_warps][row][4 * lane], part / consumer_warps);
          });
      joined.write(out + row * head_dim, args.v_scale, lane);
    }
    __syncwarp();
  }
  if (ranks > 1) cluster_sync_relaxed();  // shared memory stays until all have read it
#endif
}

template <bool Fp8, bool Sparse>
cudaError_t launch_decode(const AttendArgs& args, int ranks, unsigned* counters, cudaStream_t stream) {
  constexpr int bytes = decode_bytes<Fp8>;
  const auto kernel = attend_decode_sm90<Fp8, Sparse>;
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
  return cudaLaunchKernelEx(&config, kernel, args, counters);
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
    return sparse ? launch_decode<true, true>(args, ranks, counters, stream)
                  : launch_decode<true, false>(args, ranks, counters, stream);
  return sparse ? launch_decode<false, true>(args, ranks, counters, stream)
                : launch_decode<false, false>(args, ranks, counters, stream);
}

}  // namespace m3::ops::cuda
