#include <algorithm>

#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

namespace {

constexpr int list_threads = 1024;

// One block of threads: counts the pairs of each expert, places them in order of pair, and lists the experts that have
// some and the tiles of 128 items. Pairs of experts without a group are left out.
__global__ void __launch_bounds__(list_threads)
    experts_group_sm80(const __grid_constant__ Routing routing, int pairs, const __grid_constant__ ExpertGroups experts,
                       const __grid_constant__ GroupLists lists, int active_size, int tiles_size) {
  wait_for_previous();
  __shared__ int begin[most_groups + 1];
  __shared__ int fill[most_groups];
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = experts.groups;
  const auto group_of = [&](int pair) {
    const int expert = routing.expert_ids[pair] - experts.first;
    return expert >= 0 && expert < experts.count ? experts.group_of_expert[expert] : -1;
  };
  for (int g = thread; g < groups; g += list_threads) fill[g] = 0;
  __syncthreads();
  for (int pair = thread; pair < pairs; pair += list_threads) {
    const int group = group_of(pair);
    if (group >= 0) {
      atomicAdd(&fill[group], 1);
    } else if (lists.position != nullptr) {
      lists.position[pair] = -1;
    }
  }
  __syncthreads();
  if (thread == 0) {
    int total = 0, active = 0, tiles = 0;
    for (int g = 0; g < groups; ++g) {
      begin[g] = total;
      if (fill[g] > 0) lists.active[active++] = g;
      for (int at = 0; at < fill[g]; at += prefill_tile) {
        lists.tile_group[tiles] = g;
        lists.tile_begin[tiles++] = total + at;
      }
      total += fill[g];
    }
    begin[groups] = total;
    for (; active < active_size; ++active) lists.active[active] = -1;
    for (; tiles < tiles_size; ++tiles) lists.tile_group[tiles] = -1;
  }
  __syncthreads();
  for (int g = thread; g <= groups; g += list_threads) lists.group_begin[g] = begin[g];
  // A warp a group walks all pairs in order, so that a group's list ascends.
  const int lane = thread % warp_size;
  for (int g = thread / warp_size; g < groups; g += list_threads / warp_size) {
    if (fill[g] == 0) continue;
    int at = begin[g];
    for (int first = 0; first < pairs; first += warp_size) {
      const int pair = first + lane;
      const bool own = pair < pairs && group_of(pair) == g;
      const unsigned votes = __ballot_sync(all_lanes, own);
      if (own) {
        const int place = at + __popc(votes & ((1u << lane) - 1));
        lists.list[place] = pair;
        if (lists.position != nullptr) lists.position[pair] = place;
      }
      at += __popc(votes);
    }
  }
}

__global__ void experts_activate_sm80(const std::uint16_t* packed, int width, float alpha, float limit, float beta,
                                      std::uint16_t* y) {
  wait_for_previous();
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= width) return;
  const std::int64_t row = blockIdx.x;
  const float gate = widen_bf16(packed[row * 2 * width + column]);
  const float up = widen_bf16(packed[row * 2 * width + width + column]);
  y[row * width + column] = narrow_bf16(activate(gate, up, alpha, limit, beta));
}

// In order of slot, which is the order of experts; the shared expert last.
__global__ void experts_combine_sm80(const __grid_constant__ CombineArgs args) {
  wait_for_previous();
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= args.columns) return;
  const std::int64_t token = blockIdx.x;
  float sum = 0;
  for (int slot = 0; slot < args.per_token; ++slot) {
    const std::int64_t pair = token * args.per_token + slot;
    const int group = args.expert_ids[pair] - args.first;
    if (group >= 0 && group < args.count) sum += args.parts[pair * args.columns + column];
  }
  if (args.shared != nullptr) sum += args.shared[token * args.columns + column];
  args.out[token * args.stride + column] = narrow_bf16(sum);
}

// The same where rows are made of chunks of eight columns: a chunk a thread.
__global__ void __launch_bounds__(256)
    experts_activate_chunks_sm80(const std::uint16_t* packed, std::int64_t chunks, int width, float alpha, float limit,
                                 float beta, std::uint16_t* y) {
  wait_for_previous();
  const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (chunk >= chunks) return;
  const std::int64_t row = chunk / (width / 8);
  const auto column = static_cast<int>(chunk % (width / 8)) * 8;
  const std::uint16_t* from = packed + row * 2 * width + column;
  const uint4 gate = *reinterpret_cast<const uint4*>(from);
  const uint4 up = *reinterpret_cast<const uint4*>(from + width);
  const std::uint32_t gates[4] = {gate.x, gate.y, gate.z, gate.w}, ups[4] = {up.x, up.y, up.z, up.w};
  std::uint32_t out[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    out[k] = pack_bf16(activate(low_bf16(gates[k]), low_bf16(ups[k]), alpha, limit, beta),
                       activate(high_bf16(gates[k]), high_bf16(ups[k]), alpha, limit, beta));
  }
  *reinterpret_cast<uint4*>(y + row * width + column) = uint4{out[0], out[1], out[2], out[3]};
}

constexpr int most_combined = 8;

// Four columns a thread; the slots' parts are on their way together, for which 32 registers would not do.
__global__ void __launch_bounds__(256, 4)
    experts_combine_chunks_sm80(const __grid_constant__ CombineArgs args, std::int64_t chunks) {
  const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t token = chunk / (args.columns / 4);
  const auto column = static_cast<int>(chunk % (args.columns / 4)) * 4;
  int groups[most_combined];
  const auto read_ids = [&] {
#pragma unroll
    for (int slot = 0; slot < most_combined; ++slot) {
      groups[slot] = -1;
      if (slot >= args.per_token || chunk >= chunks) continue;
      groups[slot] = load_fresh(args.expert_ids + token * args.per_token + slot) - args.first;
    }
  };
  // Parts can be asked for only once ids are known: their way through the L2 is over when the kernel ahead ends.
  if (args.old_ids) read_ids();
  wait_for_previous();
  if (chunk >= chunks) return;
  if (!args.old_ids) read_ids();
  float4 parts[most_combined];
#pragma unroll
  for (int slot = 0; slot < most_combined; ++slot) {
    parts[slot] = float4{0, 0, 0, 0};
    const std::int64_t pair = token * args.per_token + slot;
    if (groups[slot] < 0 || groups[slot] >= args.count) continue;
    parts[slot] = *reinterpret_cast<const float4*>(args.parts + pair * args.columns + column);
  }
  float4 shared = {0, 0, 0, 0};
  if (args.shared != nullptr) shared = *reinterpret_cast<const float4*>(args.shared + token * args.columns + column);
  float4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int slot = 0; slot < most_combined; ++slot) {
    sum.x += parts[slot].x, sum.y += parts[slot].y, sum.z += parts[slot].z, sum.w += parts[slot].w;
  }
  sum.x += shared.x, sum.y += shared.y, sum.z += shared.z, sum.w += shared.w;
  *reinterpret_cast<uint2*>(args.out + token * args.stride + column) =
      uint2{pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
}

// A block a row.
__global__ void __launch_bounds__(256)
    quantise_rows_sm80(const std::uint16_t* x, std::int64_t stride, int columns, std::uint16_t* out, float* scales) {
  wait_for_previous();
  __shared__ float highest[8];
  const std::uint16_t* from = x + blockIdx.x * stride;
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += 256)
    largest = fmaxf(largest, fabsf(widen_bf16(from[i])));
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, offset));
  }
  if (threadIdx.x % warp_size == 0) highest[threadIdx.x / warp_size] = largest;
  __syncthreads();
  for (int w = 0; w < 8; ++w) largest = fmaxf(largest, highest[w]);
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += 256) {
    const float value = widen_e4m3(narrow_e4m3(widen_bf16(from[i]) / scale));
    out[std::int64_t{blockIdx.x} * columns + i] = narrow_bf16(value);
  }
}

// The same where rows are made of chunks of eight columns, a chunk a thread: the row is read once.
__global__ void __launch_bounds__(1024) quantise_rows_chunks_sm80(const std::uint16_t* x, std::int64_t stride,
                                                                  int columns, std::uint16_t* out, float* scales) {
  wait_for_previous();
  __shared__ float highest[warp_size];
  const int column = static_cast<int>(threadIdx.x) * 8;
  uint4 in = {0, 0, 0, 0};
  if (column < columns) in = *reinterpret_cast<const uint4*>(x + blockIdx.x * stride + column);
  const std::uint32_t pairs[4] = {in.x, in.y, in.z, in.w};
  float largest = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    largest = fmaxf(largest, fmaxf(fabsf(low_bf16(pairs[k])), fabsf(high_bf16(pairs[k]))));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, offset));
  }
  if (threadIdx.x % warp_size == 0) highest[threadIdx.x / warp_size] = largest;
  __syncthreads();
  largest = threadIdx.x % warp_size < blockDim.x / warp_size ? highest[threadIdx.x % warp_size] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, offset));
  }
  const float scale = largest > 0 ? largest / 448.0f : 1.0f;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  if (column >= columns) return;
  std::uint32_t codes[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    codes[k] = pack_bf16(widen_e4m3(narrow_e4m3(low_bf16(pairs[k]) / scale)),
                         widen_e4m3(narrow_e4m3(high_bf16(pairs[k]) / scale)));
  }
  *reinterpret_cast<uint4*>(out + std::int64_t{blockIdx.x} * columns + column) =
      uint4{codes[0], codes[1], codes[2], codes[3]};
}

bool on_16_bytes(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

cudaError_t launch_group_pairs(const Routing& routing, int tokens, const ExpertGroups& experts, const GroupLists& lists,
                               cudaStream_t stream) {
  if (experts.groups > most_groups) return cudaErrorInvalidValue;
  const int pairs = tokens * routing.experts_per_token;
  if (lists.position != nullptr && takes_group_many(pairs, experts.groups)) {
    return launch_group_many(routing, tokens, experts, lists, stream);
  }
  return launch(experts_group_sm80, 1, list_threads, 0, stream, routing, pairs, experts, lists,
                std::min(experts.groups, pairs), prefill_tiles(pairs, experts.groups));
}

cudaError_t launch_activate(const std::uint16_t* packed, int rows, int width, const Activation& activation,
                            std::uint16_t* y, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (width % 8 == 0 && on_16_bytes(packed) && on_16_bytes(y)) {
    const std::int64_t chunks = std::int64_t{rows} * (width / 8);
    return launch(experts_activate_chunks_sm80, static_cast<unsigned>((chunks + 255) / 256), 256, 0, stream, packed,
                  chunks, width, activation.alpha, activation.limit, activation.beta, y);
  }
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((width + 255) / 256));
  return launch(experts_activate_sm80, grid, 256, 0, stream, packed, width, activation.alpha, activation.limit,
                activation.beta, y);
}

cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (takes_combine_many(args)) return launch_combine_many(args, stream);
  if (args.columns % 4 == 0 && args.stride % 4 == 0 && args.per_token <= most_combined && on_16_bytes(args.parts) &&
      on_16_bytes(args.shared) && on_16_bytes(args.out)) {
    const std::int64_t chunks = std::int64_t{args.tokens} * (args.columns / 4);
    return launch(experts_combine_chunks_sm80, static_cast<unsigned>((chunks + 255) / 256), 256, 0, stream, args,
                  chunks);
  }
  const dim3 grid(static_cast<unsigned>(args.tokens), static_cast<unsigned>((args.columns + 255) / 256));
  return launch(experts_combine_sm80, grid, 256, 0, stream, args);
}

cudaError_t launch_quantise_rows(const std::uint16_t* x, std::int64_t stride, int rows, int columns, std::uint16_t* out,
                                 float* scales, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (columns % 8 == 0 && columns <= 8 * 1024 && stride % 8 == 0 && on_16_bytes(x) && on_16_bytes(out)) {
    const int threads = (columns / 8 + warp_size - 1) / warp_size * warp_size;
    return launch(quantise_rows_chunks_sm80, static_cast<unsigned>(rows), static_cast<unsigned>(threads), 0, stream, x,
                  stride, columns, out, scales);
  }
  return launch(quantise_rows_sm80, static_cast<unsigned>(rows), 256, 0, stream, x, stride, columns, out, scales);
}

}  // namespace m3::ops::cuda
