// The router's products for many tokens on Hopper, in fp32 throughout: the gate is split into bf16 pieces once a call (three
// for fp32, exactly), laid out as wgmma takes them; a block of threads multiplies 64 tokens by all experts. Four blocks of a
// cluster share each stage of the gate: every one fetches a quarter for all. x goes from memory to registers.
#include <algorithm>

#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int chunk_columns = 64;                              // of a stage
constexpr int most_experts = 128;                              // the product's width
constexpr int piece_bytes = most_experts * chunk_columns * 2;  // of a chunk
constexpr int tile_tokens = 64;
constexpr int stages = 4;
constexpr int cluster_size = 4;

// Slot `slot` of a chunk holds this column of it: a lane's 16 bytes of x, eight columns, feed two products.
__device__ int column_of_slot(int slot) {
  const int step = slot / 16 % 2, in = slot % 16;
  return slot / 32 * 32 + in % 8 / 2 * 8 + step * 4 + in / 8 * 2 + in % 2;
}

// pieces [chunk][Pieces][128 experts][64 slots], rows of 128 bytes whose 16-byte parts are permuted (wgmma.cuh).
template <int Pieces>
__global__ void __launch_bounds__(256)
    route_split_gate_sm90(const std::byte* gate, int experts, int columns, std::byte* pieces) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);  // [chunk][expert][8]
  const int part = at % 8, expert = at / 8 % most_experts, chunk = at / 8 / most_experts;
  const bool there = chunk * chunk_columns < columns;
  float values[8] = {};
  for (int i = 0; there && expert < experts && i < 8; ++i) {
    const std::int64_t from = std::int64_t{expert} * columns + chunk * chunk_columns + column_of_slot(part * 8 + i);
    values[i] = Pieces == 1 ? widen_bf16(reinterpret_cast<const std::uint16_t*>(gate)[from])
                            : reinterpret_cast<const float*>(gate)[from];
  }
  wait_for_previous();
  if (!there) return;
#pragma unroll
  for (int p = 0; p < Pieces; ++p) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t low = __float_as_uint(values[2 * i]), high = __float_as_uint(values[2 * i + 1]);
      pairs[i] = __byte_perm(low, high, 0x7632);
      values[2 * i] -= __uint_as_float(low & 0xffff0000u);
      values[2 * i + 1] -= __uint_as_float(high & 0xffff0000u);
    }
    *reinterpret_cast<uint4*>(pieces + (std::int64_t{chunk} * Pieces + p) * piece_bytes + expert * 128 +
                              (part ^ (expert % 8)) * 16) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ void cluster_barrier() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }
__device__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Arrives at the same barrier of another block of the cluster.
__device__ void arrive_at_block(std::uint64_t* own, unsigned rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(own)),
      "r"(rank)
      : "memory");
}
// Into the same place of all blocks of the cluster; each one's barrier counts the bytes.
__device__ void copy_to_cluster(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>((1 << cluster_size) - 1))
      : "memory");
}

#endif

// sums [gridDim.y, tokens, experts]: the chunks dealt out to gridDim.y.
template <int Pieces>
__global__ void __launch_bounds__(warpgroup_size + warp_size, 1)
    route_products_sm90(const std::byte* pieces, int experts, int chunks, const std::uint16_t* x, std::int64_t x_stride,
                        int tokens, float factor, float* sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int stage_bytes = Pieces * piece_bytes;
  extern __shared__ __align__(128) std::byte unaligned[];
  std::byte* const ring = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ std::uint64_t full[stages], empty[stages];
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(static_cast<unsigned>(chunks) * blockIdx.y / gridDim.y);
  const int last = static_cast<int>(static_cast<unsigned>(chunks) * (blockIdx.y + 1) / gridDim.y);
  if (thread == 0) {
    for (int s = 0; s < stages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], cluster_size * 4);
    }
    fence_barrier_init();
  }
  cluster_barrier();
  wait_for_previous();
  if (thread >= warpgroup_size) {
    if (thread == warpgroup_size) {
      const unsigned rank = cluster_rank();
      int stage = 0;
      unsigned phase = 1;
      constexpr unsigned quarter = stage_bytes / cluster_size;
      for (int chunk = first; chunk < last; ++chunk) {
        barrier_wait(&empty[stage], phase);
        barrier_expect(&full[stage], stage_bytes);
        copy_to_cluster(ring + stage * stage_bytes + rank * quarter,
                        pieces + std::int64_t{chunk} * stage_bytes + rank * quarter, quarter, &full[stage]);
        if (++stage == stages) stage = 0, phase ^= 1;
      }
    }
  } else {
    const int lane = thread % warp_size, warp = thread / warp_size;
    const int g = lane / 4, j = lane % 4;
    const int token = static_cast<int>(blockIdx.x) * tile_tokens + warp * 16 + g;
    const std::uint16_t* const rows[2] = {x + min(token, tokens - 1) * x_stride + j * 8,
                                          x + min(token + 8, tokens - 1) * x_stride + j * 8};
    float acc[64] = {};
    uint4 ahead[2][2][2];  // [chunk after next][32 columns][row g, g + 8]
    const auto load = [&](int chunk, uint4(&to)[2][2]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          to[half][r] = chunk < last
                            ? __ldg(reinterpret_cast<const uint4*>(rows[r] + chunk * chunk_columns + half * 32))
                            : uint4{0, 0, 0, 0};
        }
      }
    };
    load(first, ahead[0]);
    load(first + 1, ahead[1]);
    const std::uint64_t tiles = tile_descriptor<128>(ring, 1024);
    int stage = 0;
    unsigned phase = 0;
    const auto step = [&](int chunk, uint4(&from)[2][2]) {
      uint4 a[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) a[half][r] = from[half][r];
      }
      load(chunk + 2, from);
      barrier_wait(&full[stage], phase);
      pin(acc);
      wgmma_fence();
#pragma unroll
      for (int p = Pieces - 1; p >= 0; --p) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint64_t b =
              descriptor_at(tiles, static_cast<unsigned>(stage * stage_bytes + p * piece_bytes + half * 64));
          wgmma<most_experts>(acc, a[half][0].x, a[half][1].x, a[half][0].y, a[half][1].y, b);
          wgmma<most_experts>(acc, a[half][0].z, a[half][1].z, a[half][0].w, a[half][1].w, descriptor_at(b, 32));
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(acc);
      if (lane < cluster_size) arrive_at_block(&empty[stage], static_cast<unsigned>(lane));
      if (++stage == stages) stage = 0, phase ^= 1;
    };
    for (int chunk = first; chunk < last; chunk += 2) {
      step(chunk, ahead[0]);
      if (chunk + 1 < last) step(chunk + 1, ahead[1]);
    }
    float* to = sums + static_cast<std::int64_t>(blockIdx.y) * tokens * experts;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int expert = i * 8 + j * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* at = to + std::int64_t{token + 8 * r} * experts + expert;
        if (token + 8 * r >= tokens) continue;
        if (expert < experts) at[0] = acc[4 * i + 2 * r] * factor;
        if (expert + 1 < experts) at[1] = acc[4 * i + 2 * r + 1] * factor;
      }
    }
  }
  cluster_barrier();  // none goes while another still copies or arrives here
#endif
}

int blocks_of(std::int64_t tokens) {
  return static_cast<int>((tokens + tile_tokens * cluster_size - 1) / (tile_tokens * cluster_size)) * cluster_size;
}

template <int Pieces>
cudaError_t run(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens, int segments,
                std::byte* pieces, float* sums, cudaStream_t stream) {
  const auto columns = static_cast<int>(gate.columns), experts = static_cast<int>(gate.rows);
  const int chunks = columns / chunk_columns;
  static int allowed = 0;
  constexpr int shared = stages * Pieces * piece_bytes + 1024;
  cudaError_t error = allow_shared(route_products_sm90<Pieces>, shared, allowed);
  if (error == cudaSuccess) {
    error = launch(route_split_gate_sm90<Pieces>, static_cast<unsigned>(chunks * most_experts * 8 / 256), 256, 0,
                   stream, gate.values, experts, columns, pieces);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster_size;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks_of(tokens)), static_cast<unsigned>(segments));
  config.blockDim = dim3(warpgroup_size + warp_size);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  const std::byte* split = pieces;
  // Several segments' sums are scaled by who adds them.
  return cudaLaunchKernelEx(&config, route_products_sm90<Pieces>, split, experts, chunks, x, x_stride, tokens,
                            segments > 1 ? 1.0f : gate.tensor_scale, sums);
}

}  // namespace

std::int64_t route_prefill_piece_bytes_sm90(std::int64_t columns) {
  return is_hopper() ? 3 * most_experts * 2 * columns : 0;
}

int route_prefill_segments_sm90(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens) {
  if (!is_hopper() || tokens <= route_segment_tokens || gate.columns % chunk_columns != 0 || gate.rows > most_experts) {
    return 0;
  }
  if (gate.format != WeightFormat::f32 && gate.format != WeightFormat::bf16) return 0;
  if (gate.row_scales != nullptr || x_stride % 8 != 0 || reinterpret_cast<std::uintptr_t>(x) % 16 != 0) return 0;
  return std::clamp(processor_count() / blocks_of(tokens), 1, 8);
}

cudaError_t launch_route_prefill_sm90(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride,
                                      int tokens, int segments, std::byte* pieces, float* sums, cudaStream_t stream) {
  return gate.format == WeightFormat::f32 ? run<3>(gate, x, x_stride, tokens, segments, pieces, sums, stream)
                                          : run<1>(gate, x, x_stride, tokens, segments, pieces, sums, stream);
}

}  // namespace m3::ops::cuda
