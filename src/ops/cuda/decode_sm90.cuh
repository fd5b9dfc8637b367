// What Hopper's products of few rows share: weights from their stored format in as few instructions as there are, waiting
// for the kernel ahead, small copies.
#pragma once

#include "src/ops/cuda/matmul_decode_sm90.h"
#include "src/ops/cuda/matmul_sm80.cuh"
#include "src/ops/cuda/wgmma.cuh"

namespace m3::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <WeightFormat Format>
struct DecodeCodec {
  static constexpr float missing = Format == WeightFormat::nvfp4 ? 256.0f : 1.0f;  // what the sums lack

  // Eight e2m1 codes as four pairs (i, i + 4) of bf16 times 2^-126. A code times 2^12 + 2^6 has its sign and its magnitude
  // in their places.
  __device__ static void spread_e2m1(std::uint32_t codes, std::uint32_t* pairs) {
    constexpr std::uint32_t wanted = 0x81c081c0u;
    const std::uint32_t upper = codes >> 8;
    pairs[0] = ((codes & 0x000f000fu) * 0x1040u) & wanted;
    pairs[1] = ((codes & 0x00f000f0u) * 0x0104u) & wanted;
    pairs[2] = ((upper & 0x000f000fu) * 0x1040u) & wanted;
    pairs[3] = ((upper & 0x00f000f0u) * 0x0104u) & wanted;
  }
  // Four e4m3 codes as pairs (0, 2) and (1, 3) of bf16 times 2^-120.
  __device__ static void spread_e4m3(std::uint32_t codes, std::uint32_t* pairs) {
    pairs[0] = ((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u);
    pairs[1] = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
  }
  // From a scale's byte, what the spread codes lack, in both halves.
  __device__ static std::uint32_t factor(std::uint32_t code) {
    if constexpr (Format == WeightFormat::mxfp4) return code * 0x00800080u + 126 * 0x00800080u;
    if constexpr (Format == WeightFormat::mxfp8) return code * 0x00800080u + 120 * 0x00800080u;
    if constexpr (Format == WeightFormat::nvfp4) {
      // e4m3 times 2^-120, then times 2^238: 256 is missing.
      const std::uint32_t both = (((code << 8) & 0x8000u) | ((code << 4) & 0x07f0u)) * 0x00010001u;
      return multiply_bf16(multiply_bf16(both, 0x7b007b00u), 0x7b007b00u);
    }
    return 0x7b807b80u;
  }
  // Whether one of some codes, or-ed, may need two factors, or none will do.
  __device__ static bool rare(std::uint32_t codes) {
    return Format == WeightFormat::nvfp4 ? (codes & 0x7fu) == 0x7fu : (codes & 0x80u) != 0;
  }
  // `factor` of a code that is not among the rare ones of rare_codes.
  __device__ static std::uint32_t usual_factor(std::uint32_t code) {
    // Of e4m3: the exponent, 238 higher. Subnormal scales and negative ones would come out wrong.
    return Format == WeightFormat::nvfp4 ? code * 0x00100010u + 0x77007700u : factor(code);
  }
  // Whether one of four codes that lie in bytes is not for usual_factor.
  __device__ static std::uint32_t rare_codes(std::uint32_t codes) {
    if constexpr (Format == WeightFormat::nvfp4) {
      const std::uint32_t normal = (codes & 0x78787878u) + 0x78787878u, not_a_number = (codes & 0x7f7f7f7fu) + 0x01010101u;
      return (~normal | not_a_number | codes) & 0x80808080u;
    }
    return codes & 0x80808080u;
  }
  // The two factors then.
  __device__ static uint2 factors(std::uint32_t code) {
    if constexpr (Format == WeightFormat::nvfp4) {
      return {(code & 0x7fu) == 0x7fu ? 0x7fc07fc0u : factor(code), 0x3f803f80u};
    }
    const std::uint32_t exponent = code + (Format == WeightFormat::mxfp4 ? 126 : 120);
    if (code == 255) return {0x7fc07fc0u, 0x3f803f80u};
    if (exponent <= 254) return {exponent * 0x00800080u, 0x3f803f80u};
    return {254 * 0x00800080u, (exponent - 127) * 0x00800080u};
  }
  // Eight activations in order -> the pairs that meet the spread codes.
  __device__ static void arrange(const uint4& v, std::uint32_t* pairs) {
    if constexpr (Format == WeightFormat::mxfp4 || Format == WeightFormat::nvfp4) {
      pairs[0] = __byte_perm(v.x, v.z, 0x5410), pairs[1] = __byte_perm(v.x, v.z, 0x7632);
      pairs[2] = __byte_perm(v.y, v.w, 0x5410), pairs[3] = __byte_perm(v.y, v.w, 0x7632);
    } else if constexpr (Format == WeightFormat::fp8 || Format == WeightFormat::mxfp8) {
      pairs[0] = __byte_perm(v.x, v.y, 0x5410), pairs[1] = __byte_perm(v.x, v.y, 0x7632);
      pairs[2] = __byte_perm(v.z, v.w, 0x5410), pairs[3] = __byte_perm(v.z, v.w, 0x7632);
    } else {
      pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
    }
  }
};

__device__ inline void wait_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_grid_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
template <int Bytes>
__device__ inline void copy_async_small(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(Bytes) : "memory");
}

// Which of concatenated weights has this row; the row becomes that one's.
__device__ inline int part_at(const MatmulArgs& args, int& row) {
  int part = 0;
  for (; part + 1 < args.parts && row >= args.inline_parts[part].rows; ++part) row -= args.inline_parts[part].rows;
  return part;
}

// The groups that items chose, in order, and their items.
template <int Items = few_items>
struct GroupPlan {
  int fill[few_groups];
  short order[few_groups];      // the active groups
  short begin[few_groups + 1];  // of an active group's items
  short items[Items];
  int active;
};

// All threads of a block of `Threads`; ends with a barrier.
template <int Threads, class Args, int Items>
__device__ inline void plan_groups(const Args& args, GroupPlan<Items>& plan) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto group_of = [&](int item) {
    if (item >= args.items) return -1;
    const int place = args.expert_ids[item] - args.first_expert;
    if (place < 0 || place >= args.expert_count) return -1;
    return args.group_of_expert != nullptr ? args.group_of_expert[place] : place;
  };
  if (args.items <= warp_size) {
    // One warp, an item a lane.
    if (thread < warp_size) {
      const int group = group_of(thread);
      const unsigned same = __match_any_sync(all_lanes, group);
      const unsigned below = (1u << thread) - 1;
      const unsigned leaders = __ballot_sync(all_lanes, group >= 0 && (same & below) == 0);
      int rank = 0, begin = 0;  // groups below mine, and their items
      for (unsigned left = leaders; left != 0; left &= left - 1) {
        const int leader = __ffs(static_cast<int>(left)) - 1;
        const int other = __shfl_sync(all_lanes, group, leader);
        const int count = __popc(__shfl_sync(all_lanes, same, leader));
        if (other < group) ++rank, begin += count;
      }
      if (group >= 0) {
        if ((same & below) == 0) {
          plan.order[rank] = static_cast<short>(group);
          plan.begin[rank] = static_cast<short>(begin);
        }
        plan.items[begin + __popc(same & below)] = static_cast<short>(thread);
      }
      const unsigned all = __ballot_sync(all_lanes, group >= 0);
      if (thread == 0) {
        plan.active = __popc(leaders);
        plan.begin[plan.active] = static_cast<short>(__popc(all));
      }
    }
    __syncthreads();
    return;
  }
  constexpr int held = (Items + Threads - 1) / Threads;
  int mine[held];
#pragma unroll
  for (int i = 0; i < held; ++i) mine[i] = group_of(thread + i * Threads);
  for (int i = thread; i < few_groups; i += Threads) plan.fill[i] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < held; ++i) {
    if (mine[i] >= 0) atomicAdd(&plan.fill[mine[i]], 1);
  }
  __syncthreads();
  if (thread < warp_size) {
    int active = 0, items = 0;
    for (int base = 0; base < args.groups; base += warp_size) {
      const int group = base + thread;
      const int count = group < args.groups ? plan.fill[group] : 0;
      int through = count;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(all_lanes, through, offset);
        if (thread >= offset) through += other;
      }
      const unsigned votes = __ballot_sync(all_lanes, count > 0);
      const int at = active + __popc(votes & ((1u << thread) - 1));
      if (count > 0) {
        plan.order[at] = static_cast<short>(group);
        plan.begin[at] = static_cast<short>(items + through - count);
        plan.fill[group] = items + through - count;
      }
      active += __popc(votes);
      items += __shfl_sync(all_lanes, through, 31);
    }
    if (thread == 0) plan.active = active, plan.begin[active] = static_cast<short>(items);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < held; ++i) {
    if (mine[i] >= 0) plan.items[atomicAdd(&plan.fill[mine[i]], 1)] = static_cast<short>(thread + i * Threads);
  }
  __syncthreads();
}

#endif

}  // namespace m3::ops::cuda
