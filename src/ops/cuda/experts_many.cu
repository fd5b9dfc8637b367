// What surrounds the experts' products for many tokens: lists, rows gathered by expert, the sum of the parts.
#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

namespace {

constexpr int list_threads = 1024;

// One block of threads. A group's list is in any order: no result depends on it.
__global__ void __launch_bounds__(list_threads)
    experts_group_many_sm80(const __grid_constant__ Routing routing, int pairs,
                            const __grid_constant__ ExpertGroups experts, const __grid_constant__ GroupLists lists,
                            int active_size, int tiles_size) {
  wait_for_previous();
  __shared__ int fill[list_threads];
  __shared__ int next[list_threads];
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = experts.groups;
  const auto group_of = [&](int pair) {
    const int expert = routing.expert_ids[pair] - experts.first;
    return expert >= 0 && expert < experts.count ? experts.group_of_expert[expert] : -1;
  };
  fill[thread] = 0;
  __syncthreads();
#pragma unroll 4
  for (int pair = thread; pair < pairs; pair += list_threads) {
    const int group = group_of(pair);
    if (group >= 0) atomicAdd(&fill[group], 1);
  }
  __syncthreads();
  // Each group's thread counts what lies before it; the one behind the last has the totals.
  if (thread <= groups) {
    int begin = 0, active = 0, tiles = 0;
    for (int g = 0; g < thread; ++g) {
      const int items = fill[g];
      begin += items;
      active += items > 0 ? 1 : 0;
      tiles += (items + prefill_tile - 1) / prefill_tile;
    }
    lists.group_begin[thread] = begin;
    if (thread < groups) {
      next[thread] = begin;
      if (fill[thread] > 0) lists.active[active] = thread;
      for (int at = 0; at < fill[thread]; at += prefill_tile) {
        lists.tile_group[tiles] = thread;
        lists.tile_begin[tiles++] = begin + at;
      }
    } else {
      for (; active < active_size; ++active) lists.active[active] = -1;
      for (; tiles < tiles_size; ++tiles) lists.tile_group[tiles] = -1;
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int pair = thread; pair < pairs; pair += list_threads) {
    const int group = group_of(pair);
    const int at = group >= 0 ? atomicAdd(&next[group], 1) : -1;
    if (at >= 0) lists.list[at] = pair;
    lists.position[pair] = at;
  }
}

// Eight columns a lane, a block of 64 columns eight lanes: the eight that the lane writes of it
// (see takes_arranged, matmul_sm90.h).
__device__ inline uint4 arrange(const uint4& from, int lane) {
  // Pairs of columns four apart; those of one piece of the result lie in four lanes, two apart.
  std::uint32_t words[4] = {__byte_perm(from.x, from.z, 0x5410), __byte_perm(from.x, from.z, 0x7632),
                            __byte_perm(from.y, from.w, 0x5410), __byte_perm(from.y, from.w, 0x7632)};
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool high = (lane >> 1 & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const std::uint32_t given = high ? words[i] : words[i + bit];
      const std::uint32_t taken = __shfl_xor_sync(all_lanes, given, 2 * bit);
      if (high) {
        words[i] = taken;
      } else {
        words[i + bit] = taken;
      }
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// A block a token: its row goes to each of its places.
template <bool Arranged>
__global__ void __launch_bounds__(256) experts_gather_sm80(const __grid_constant__ GatherArgs args) {
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  const std::int32_t* const places = args.position + token * args.per_token;
  const auto* const from = reinterpret_cast<const uint4*>(args.x + token * args.x_stride);
  const int pieces = args.columns / 8;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += 256) {
    uint4 piece = from[i];
    int to = i;
    if constexpr (Arranged) {
      piece = arrange(piece, lane);
      to = i / 8 * 8 + (i & 1) * 4 + (i >> 1 & 3);
    }
    for (int slot = 0; slot < args.per_token; ++slot) {
      const std::int64_t place = places[slot];
      if (place >= 0) reinterpret_cast<uint4*>(args.out + place * args.columns)[to] = piece;
    }
  }
  if (args.scales != nullptr && static_cast<int>(threadIdx.x) < args.per_token && places[threadIdx.x] >= 0) {
    args.out_scales[places[threadIdx.x]] = args.scales[token];
  }
}

// A block a token, eight columns a thread at a time; the order of sums is experts_combine_sm80's.
__global__ void __launch_bounds__(256) experts_combine_many_sm80(const __grid_constant__ CombineArgs args) {
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < args.columns; column += 256 * 8) {
    float sums[8] = {};
    const auto add = [&](const float* part) {
      const float4 low = *reinterpret_cast<const float4*>(part + column);
      const float4 high = *reinterpret_cast<const float4*>(part + column + 4);
      sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
      sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
    };
#pragma unroll 4
    for (int slot = 0; slot < args.per_token; ++slot) {
      const std::int64_t pair = token * args.per_token + slot;
      const int group = args.expert_ids[pair] - args.first;
      if (group < 0 || group >= args.count) continue;
      if (args.rounded_parts == nullptr) {
        add(args.parts + pair * args.columns);
        continue;
      }
      const uint4 part = *reinterpret_cast<const uint4*>(args.rounded_parts + pair * args.columns + column);
      sums[0] += low_bf16(part.x), sums[1] += high_bf16(part.x), sums[2] += low_bf16(part.y);
      sums[3] += high_bf16(part.y), sums[4] += low_bf16(part.z), sums[5] += high_bf16(part.z);
      sums[6] += low_bf16(part.w), sums[7] += high_bf16(part.w);
    }
    if (args.shared != nullptr) add(args.shared + token * args.columns);
    *reinterpret_cast<uint4*>(args.out + token * args.stride + column) =
        uint4{pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]), pack_bf16(sums[4], sums[5]),
              pack_bf16(sums[6], sums[7])};
  }
}

}  // namespace

bool takes_group_many(int pairs, int groups) { return pairs >= 2048 && groups < list_threads; }

cudaError_t launch_group_many(const Routing& routing, int tokens, const ExpertGroups& experts, const GroupLists& lists,
                              cudaStream_t stream) {
  const int pairs = tokens * routing.experts_per_token;
  return launch(experts_group_many_sm80, 1, list_threads, 0, stream, routing, pairs, experts, lists,
                experts.groups < pairs ? experts.groups : pairs, prefill_tiles(pairs, experts.groups));
}

cudaError_t launch_gather(const GatherArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  return launch(args.arranged ? experts_gather_sm80<true> : experts_gather_sm80<false>,
                static_cast<unsigned>(args.tokens), 256, 0, stream, args);
}

bool takes_combine_many(const CombineArgs& args) {
  const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  return args.tokens >= 64 && args.columns % 8 == 0 && args.stride % 8 == 0 && aligned(args.out) &&
         aligned(args.parts) && aligned(args.rounded_parts) && aligned(args.shared);
}

cudaError_t launch_combine_many(const CombineArgs& args, cudaStream_t stream) {
  return launch(experts_combine_many_sm80, static_cast<unsigned>(args.tokens), 256, 0, stream, args);
}

}  // namespace m3::ops::cuda
