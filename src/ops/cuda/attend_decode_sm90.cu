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
#include "src/ops/cuda/attend_decode_sm90.cuh"

#include <algorithm>

#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int most_cached_pages = 2 * decode_threads;

// What follows the ring in shared memory.
template <bool Fp8, int Buffers>
struct DecodeMemory {
  static constexpr int element_bytes = Fp8 ? 1 : 2;
  static constexpr int buffer_bytes = page_tokens * head_dim * element_bytes;
  static constexpr int weights_stride = page_tokens * 2 + 16;

  alignas(16) std::byte weights[group_rows * weights_stride];  // at first the queries [16][256]
  // From the blocks of threads of the cluster, [part · own rows + row]; padded, so that two rows meet all banks.
  alignas(16) float values[group_rows][head_dim + 16];
  float2 ends[group_rows];  // sum, highest score
  static constexpr unsigned joined_bytes = group_rows * head_dim * sizeof(float) + sizeof(ends);

  // Of the warps.
  alignas(16) float highest[group_rows][decode_warps];
  alignas(16) float sums[group_rows][decode_warps];
  float shifts[group_rows];
  int pages[most_cached_pages];  // the sequence's
  std::uint64_t full[Buffers], queries_full, joined_full;
  bool last;
};
template <bool Fp8, int Buffers>
constexpr int decode_bytes = Buffers* DecodeMemory<Fp8, Buffers>::buffer_bytes +
                             static_cast<int>(sizeof(DecodeMemory<Fp8, Buffers>));

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// --- joining ---------------------------------------------------------------------------------------------------------

// The rows of one block of threads of a cluster, 16 dimensions a warp. Lane l has sum and highest score of part and row
// l % 16, and values of those of l / 4 and l / 4 + 8, which are of the same row.
template <typename Memory>
__device__ inline void join_in_cluster(const Memory& shared, int rows, std::uint16_t* out, float v_scale, int warp,
                                       int lane) {
  const float2 end = shared.ends[lane % group_rows];
  const int dimension = 16 * warp + lane % 4 * 4;
  const int entry = lane / 4;
  const float4 a = *reinterpret_cast<const float4*>(&shared.values[entry][dimension]);
  const float4 b = *reinterpret_cast<const float4*>(&shared.values[entry + 8][dimension]);
  float highest = end.y;
#pragma unroll
  for (int offset = 1; offset < group_rows; offset *= 2) {
    if (offset >= rows) highest = fmaxf(highest, __shfl_xor_sync(all_lanes, highest, offset));
  }
  const float factor = end.y == no_score ? 0.0f : power_of_two(end.y - highest);
  float total = factor * end.x;
#pragma unroll
  for (int offset = 1; offset < group_rows; offset *= 2) {
    if (offset >= rows) total += __shfl_xor_sync(all_lanes, total, offset);
  }
  const float of_a = __shfl_sync(all_lanes, factor, entry), of_b = __shfl_sync(all_lanes, factor, entry + 8);
  float4 v = {a.x * of_a + b.x * of_b, a.y * of_a + b.y * of_b, a.z * of_a + b.z * of_b, a.w * of_a + b.w * of_b};
#pragma unroll
  for (int offset = 1; offset < group_rows / 2; offset *= 2) {
    if (offset >= rows) {
      v.x += __shfl_xor_sync(all_lanes, v.x, 4 * offset);
      v.y += __shfl_xor_sync(all_lanes, v.y, 4 * offset);
      v.z += __shfl_xor_sync(all_lanes, v.z, 4 * offset);
      v.w += __shfl_xor_sync(all_lanes, v.w, 4 * offset);
    }
  }
  total = __shfl_sync(all_lanes, total, entry);
  if (entry >= rows || total == 0) return;  // no key at all: nothing is written
  write_values(out + entry * head_dim + dimension, v, v_scale / total);
}

// A row of `parts` (up to 64) summed under their own highest scores: one warp joins them, a lane 4 dimensions.
struct JoinedRow {
  float highest = no_score, total = 0;
  float4 value = {0, 0, 0, 0};

  // highest_of(part) and sum_of(part): of a part that this lane asks for; values_of(part): its 4 dimensions of any part.
  template <typename HighestOf, typename SumOf, typename ValuesOf>
  __device__ void join(int parts, int lane, const HighestOf& highest_of, const SumOf& sum_of,
                       const ValuesOf& values_of) {
    constexpr int ahead = 8;
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
    for (int first = 0; first < parts; first += ahead) {
      float4 values[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        values[i] = first + i < parts ? values_of(first + i) : float4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const int part = first + i;  // those past the last have the factor 0
        const float factor = __shfl_sync(all_lanes, part < warp_size ? factors[0] : factors[1], part % warp_size);
        value.x += values[i].x * factor, value.y += values[i].y * factor;
        value.z += values[i].z * factor, value.w += values[i].w * factor;
      }
    }
  }
  __device__ void write(std::uint16_t* out, float v_scale, int lane) const {
    if (total == 0) return;  // no key at all: nothing is written
    write_values(out + 4 * lane, value, v_scale / total);
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
    joined.join(
        ranks, lane, [&](int r) { return __ldcg(&parts[r].highest[row]); },
        [&](int r) { return __ldcg(&parts[r].sum[row]); },
        [&](int r) { return __ldcg(reinterpret_cast<const float4*>(&parts[r].values[row][4 * lane])); });
    joined.write(out + row * head_dim, args.v_scale, lane);
  }
}

#endif

template <bool Fp8, bool Sparse, int Buffers, int BlocksPerSm>
__global__ void __launch_bounds__(decode_threads, BlocksPerSm)
    attend_decode_sm90(const __grid_constant__ AttendArgs args, unsigned* counters) {
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
    for (int i = 0; i < Buffers; ++i) barrier_init(&shared.full[i], decode_threads);
    barrier_init(&shared.queries_full, decode_threads);
    barrier_init(&shared.joined_full, 1);
    fence_barrier_init();
    barrier_expect(&shared.joined_full, Memory::joined_bytes);
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
  BlockList<Sparse> list(args, token, kv_head, sequence, position);
  const int context = placed ? args.batch.context_lengths[sequence] : 0;
  const int own_page = placed ? list.page(position / page_tokens) : -1;
  const int pages = position / page_tokens + 1;
  const bool cached = Sparse && pages <= most_cached_pages;
  Share ahead;
  ahead.base = rank;
  int block = -1, page = -1;
  if (placed && cached) {
    for (int i = thread; i < pages; i += decode_threads) shared.pages[i] = list.page(i);
  } else if (placed && !Sparse) {
    block = list.block(rank + lane * ranks);
    page = list.page(block);
  }
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const std::byte* queries =
      reinterpret_cast<const std::byte*>(args.q + token * args.q_stride + kv_head * group_rows * head_dim) +
      thread * 16;
  const std::byte* keys = page_run(args.k, 0, kv_head, Memory::element_bytes) + thread * 16;
  const std::byte* values = page_run(args.v, 0, kv_head, Memory::element_bytes) + thread * 16;
  settle(list.ids), settle(queries), settle(keys), settle(values);
  __syncthreads();  // pages and barriers
  wait_for_previous();
  if (position >= context || own_page < 0) {
    if (clustered) cluster_wait();
    return;
  }
  if (Sparse) block = list.block(rank + lane * ranks);  // ahead of the queries: pages, keys and values wait for it
  copy_async_16(shared.weights + thread / 16 * 256 + ((thread % 16 ^ (thread / 16 & 7)) << 4), queries);
  barrier_arrive_after_copies(&shared.queries_full);
  if (Sparse) page = block < 0 || block >= pages ? -1 : cached ? shared.pages[block] : list.page(block);
  ahead.hold(list, block, page);
  Share here = ahead;

  const std::uint32_t ring_address = shared_address(ring);
  Turn<Buffers> fill, turn;
  int filled_page = -1;
  int2 filled = {0, 0};
  bool values_next = false, more = true;
  const auto bring = [&] {  // K of the share's next block, then its V
    if (!values_next && more) more = ahead.next(list, ranks, lane, filled_page, filled);
    if (more) {
      bring_rows<Fp8>(ring_address + fill.buffer * Memory::buffer_bytes,
                      values_next ? values + filled_page * args.v.page_bytes : keys + filled_page * args.k.page_bytes,
                      filled.y, policy);
      barrier_arrive_after_copies(&shared.full[fill.buffer]);
    }
    values_next = !values_next;
    fill.next();
  };
#pragma unroll 1
  for (int i = 0; i < Buffers; ++i) bring();
  if (clustered) {
    __syncwarp();
    cluster_wait();  // all have begun: sums may be sent
  }

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
#pragma unroll 1
  while (here.next(list, ranks, lane, page, seen)) {
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
    __syncthreads();  // these keys have been read, and the queries or the weights before
    bring();
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
    std::uint32_t v[Fp8 ? 4 : 8][4];
    barrier_wait(&shared.full[turn.buffer], turn.parity);
    read_values<Fp8>(v, ring_address + turn.buffer * Memory::buffer_bytes, warp, lane);
    turn.next();
    __syncthreads();  // the weights are there, these values have been read
    bring();
    add_values<Fp8>(acc, weights_address, Memory::weights_stride, v, lane);
  }

  // Sums of the warps meet while values are on their way.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = quad_sum(sum[r]);
    if (j == 0) shared.sums[g + 8 * r][warp] = sum[r];
    if (warp == 0 && j == 0) shared.shifts[g + 8 * r] = shift[r];
  }
  const int dimension = first_dimension<Fp8>(warp, j);
  std::uint16_t* out = args.out + token * args.out_stride + kv_head * group_rows * head_dim;
  if (clustered) {
    const int rows = group_rows / ranks;  // of a block of threads; ranks is a power of two
    const int rows_bits = __ffs(rows) - 1;
    const auto place = [&](int row) { return rank * rows + (row & (rows - 1)); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = g + 8 * r;
      const int owner = row >> rows_bits;
      store_there(address_of_rank(&shared.values[place(row)][dimension], owner), row_values<Fp8>(acc, r, j),
                  address_of_rank(&shared.joined_full, owner));
    }
    __syncthreads();
    if (thread < group_rows) {
      const int owner = thread >> rows_bits;
      store_there(address_of_rank(&shared.ends[place(thread)], owner),
                  float2{sum_of_eight(shared.sums[thread]), shared.shifts[thread]},
                  address_of_rank(&shared.joined_full, owner));
    }
    __syncwarp();
    barrier_wait(&shared.joined_full, 0);
    join_in_cluster(shared, rows, out + rank * rows * head_dim, args.v_scale, warp, lane);
    return;
  }
  __syncthreads();
  if (counters == nullptr) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float4 own = row_values<Fp8>(acc, r, j);
      const float total = sum_of_eight(shared.sums[g + 8 * r]);
      if (total != 0) write_values(out + (g + 8 * r) * head_dim + dimension, own, args.v_scale / total);
    }
    return;
  }
  const int unit = static_cast<int>(blockIdx.z) * args.kv_heads + kv_head;
  Partial& part = args.partials[std::int64_t{unit} * ranks + rank];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = g + 8 * r;
    *reinterpret_cast<float4*>(&part.values[row][dimension]) = row_values<Fp8>(acc, r, j);
    if (warp == 0 && j == 0) part.highest[row] = shift[r], part.sum[row] = sum_of_eight(shared.sums[row]);
  }
  join_in_memory(args, shared.last, counters, unit, ranks, thread, out);
#endif
}

template <bool Fp8, bool Sparse, int Buffers, int BlocksPerSm>
cudaError_t launch_decode(const AttendArgs& args, int ranks, unsigned* counters, cudaStream_t stream) {
  constexpr int bytes = decode_bytes<Fp8, Buffers>;
  const auto kernel = attend_decode_sm90<Fp8, Sparse, Buffers, BlocksPerSm>;
  static int allowed = 0;
  if (allowed == 0) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(ranks);
  const dim3 grid(blocks, static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(args.batch.tokens));
  // Two blocks of threads on one multiprocessor bring theirs no faster than one.
  const bool spread = static_cast<int>(blocks * grid.y * grid.z) <= multiprocessors() / 2;
  const ClusterLaunch clusters(counters == nullptr ? blocks : 1, grid, decode_threads, bytes, stream, spread);
  return cudaLaunchKernelEx(&clusters.config, kernel, args, counters);
}

// Blocks of one to a multiprocessor, of which few fit a cluster, or of two.
template <bool Fp8, bool Sparse>
cudaError_t launch_decode(const AttendArgs& args, int ranks, bool deep, unsigned* counters, cudaStream_t stream) {
  return deep ? launch_decode < Fp8, Sparse, Fp8 ? 12 : 6, 1 > (args, ranks, counters, stream) : launch_decode < Fp8,
         Sparse, Fp8 ? 4 : 3, 2 > (args, ranks, counters, stream);
}

constexpr int most_tokens = 65535;  // of a grid
constexpr int most_parts = 64;      // JoinedRow
constexpr int most_ranks = 16;      // of a cluster, and rows to share out

bool has_room(const AttendCall& call, int units, int ranks) {
  return call.counters_size >= units &&
         call.workspace_bytes >= std::int64_t{units} * ranks * static_cast<std::int64_t>(sizeof(Partial));
}

}  // namespace

std::int64_t attend_decode_sm90_bytes() {
  return runs_on_hopper() ? std::int64_t{1} * multiprocessors() * static_cast<std::int64_t>(sizeof(Partial)) : 0;
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
  // A block of threads a multiprocessor, as nearly as a power of two comes to it: more of them gain nothing (16 tokens of
  // 8K, bf16: 20.1 µs with 2 a token and KV head, 27 with 4), half of them lose a tenth (8 tokens: 16.8 against 14.9).
  const int units = args.batch.tokens * args.kv_heads;
  int entries = (args.batch.longest_context + page_tokens - 1) / page_tokens;
  if (sparse) entries = std::min(entries, args.topk);
  if (args.window > 0) entries = std::min(entries, args.window / page_tokens + 2);
  int ranks = 1;
  while (ranks < most_ranks && ranks < entries && 2 * ranks * units <= multiprocessors()) ranks *= 2;
  unsigned* counters = nullptr;
  // Long contexts of few tokens keep more busy than a cluster has: their sums meet in memory, which takes 2 µs more.
  const int wide = std::min(multiprocessors() / units, most_parts);
  if (wide > 2 * ranks && entries >= 4 * wide && has_room(call, units, wide)) {
    ranks = wide;
    counters = call.counters;
    args.partials = static_cast<Partial*>(call.workspace);
  }
  // Twice the buffers for long shares at one block of threads a multiprocessor. Clusters of four and more do not all fit
  // then: 8 tokens took 17.9 µs with them, 14.9 without.
  const bool deep = (ranks <= 2 || counters != nullptr) && ranks * units <= multiprocessors() && entries >= 8 * ranks;
  if (fp8) {
    return sparse ? launch_decode<true, true>(args, ranks, deep, counters, stream)
                  : launch_decode<true, false>(args, ranks, deep, counters, stream);
  }
  return sparse ? launch_decode<false, true>(args, ranks, deep, counters, stream)
                : launch_decode<false, false>(args, ranks, deep, counters, stream);
}

}  // namespace m3::ops::cuda
