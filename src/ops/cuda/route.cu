#include "src/ops/cuda/codec.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

namespace {

// The router's products for few tokens: matmul.h's sums, but each of the eight segments of 16 rows by a block of one warp
// of its own, on a multiprocessor of its own: a gate of 3 MB is read by 64 of them. sums [segments, tokens, experts].
template <WeightFormat Format>
__global__ void __launch_bounds__(32)
    route_segments_sm80(const std::byte* gate, int experts, int columns, const std::uint16_t* x, std::int64_t x_stride,
                        int tokens, float* sums) {
  using Format_ = Codec<Format>;
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  const int j = lane % 4;
  const int steps = columns / step_columns;
  const int segment = (steps + k_segments - 1) / k_segments;
  const int first = static_cast<int>(blockIdx.y) * segment;
  const int last = min(steps, first + segment);
  const int row = static_cast<int>(blockIdx.x) * 16;
  const std::int64_t row_bytes = std::int64_t{steps} * step_bytes(Format);
  const std::byte* values[2];
  for (int r = 0; r < 2; ++r) {
    values[r] = gate + min(row + g + 8 * r, experts - 1) * row_bytes + j * Format_::lane_bytes;
    for (int step = first; step < last; ++step) prefetch_l2(values[r] + std::int64_t{step} * step_bytes(Format));
  }
  wait_for_previous();
  const int token = static_cast<int>(blockIdx.z) * 8;
  const std::uint16_t* const from = x + min(token + g, tokens - 1) * x_stride + j * 16;
  float acc[4] = {};
#pragma unroll 4
  for (int step = first; step < last; ++step) {
    std::uint32_t raw[2][Format_::words];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < Format_::words; i += 4) {
        const uint4 v =
            __ldg(reinterpret_cast<const uint4*>(values[r] + std::int64_t{step} * step_bytes(Format)) + i / 4);
        raw[r][i] = v.x, raw[r][i + 1] = v.y, raw[r][i + 2] = v.z, raw[r][i + 3] = v.w;
      }
    }
    const auto* of_x = reinterpret_cast<const uint4*>(from + step * step_columns);
    std::uint32_t activations[8];
    Format_::arrange(of_x[0], of_x[1], activations);
#pragma unroll
    for (int piece = 0; piece < Format_::pieces; ++piece) {
      std::uint32_t pairs[2][8];
      for (int r = 0; r < 2; ++r) Format_::widen(raw[r], 0, piece, pairs[r]);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        mma_bf16(acc, pairs[0][i], pairs[1][i], pairs[0][i + 1], pairs[1][i + 1], activations[i], activations[i + 1]);
      }
    }
  }
  float* to = sums + std::int64_t{blockIdx.y} * tokens * experts;
  for (int i = 0; i < 4; ++i) {
    const int expert = row + g + i / 2 * 8;
    const int at = token + 2 * j + i % 2;
    if (expert < experts && at < tokens) to[std::int64_t{at} * experts + expert] = acc[i];
  }
}

// A warp a token, of any number of experts: sigmoid, the k highest of p + bias (ties to the lower id, NaN as the lowest), weights p / Σp.
// `segments` arrays of logits are added in order first.
__global__ void __launch_bounds__(128)
    route_choose_sm80(float* logits, int segments, float factor, int tokens, int experts, const float* bias,
                      const __grid_constant__ Routing routing) {
  wait_for_previous();
  __shared__ int chosen[4][most_experts_a_token];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int token = static_cast<int>(blockIdx.x) * 4 + warp;
  if (token >= tokens) return;
  float* p = logits + std::int64_t{token} * experts;
  const int k = routing.experts_per_token;
  for (int e = lane; e < experts; e += warp_size) {
    float logit = p[e];
    if (segments > 1) {
      logit = 0;
      for (int s = 0; s < segments; ++s) logit += p[std::int64_t{s} * tokens * experts + e];
      logit *= factor;
    }
    p[e] = 1.0f / (1.0f + expf(-logit));
  }
  __syncwarp();
  for (int slot = 0; slot < k; ++slot) {
    float best_score = -__builtin_huge_valf();
    int best = experts;
    for (int e = lane; e < experts; e += warp_size) {
      bool taken = false;
      for (int i = 0; i < slot; ++i) taken = taken || chosen[warp][i] == e;
      if (taken) continue;
      float score = p[e] + (bias != nullptr ? bias[e] : 0.0f);
      if (score != score) score = -__builtin_huge_valf();
      if (best == experts || score > best_score) best = e, best_score = score;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other_score = __shfl_xor_sync(all_lanes, best_score, offset);
      const int other = __shfl_xor_sync(all_lanes, best, offset);
      if (other < experts &&
          (best == experts || other_score > best_score || (other_score == best_score && other < best))) {
        best = other, best_score = other_score;
      }
    }
    if (lane == 0) chosen[warp][slot] = best;
    __syncwarp();
  }
  if (lane != 0) return;
  int* ids = chosen[warp];
  for (int i = 1; i < k; ++i) {
    const int id = ids[i];
    int at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += p[ids[i]];
  for (int i = 0; i < k; ++i) {
    routing.expert_ids[std::int64_t{token} * k + i] = ids[i];
    routing.expert_weights[std::int64_t{token} * k + i] = p[ids[i]] / sum;
  }
}

// Orders scores as integers above 0; NaN is the lowest.
__device__ std::uint32_t choice_key(float score) {
  const std::uint32_t bits = __float_as_uint(score != score ? -__builtin_huge_valf() : score + 0.0f);  // -0 ties with 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The same for up to 32 · Held experts, in registers: expert lane + 32 i is a lane's i-th.
template <int Held, int Segments>
__global__ void __launch_bounds__(128)
    route_choose_held_sm80(const float* logits, int segments, float factor, int tokens, int experts, const float* bias,
                           const __grid_constant__ Routing routing) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int token = static_cast<int>(blockIdx.x) * 4 + static_cast<int>(threadIdx.x) / warp_size;
  float biases[Held];
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    const int expert = i * warp_size + lane;
    biases[i] = bias != nullptr && expert < experts ? bias[expert] : 0.0f;
  }
  wait_for_previous();
  if (token >= tokens) return;
  const float* from = logits + std::int64_t{token} * experts;
  float p[Held];
  std::uint32_t keys[Held];
  if (Segments > 1) {
    float parts[Held][Segments];
#pragma unroll
    for (int i = 0; i < Held; ++i) {
#pragma unroll
      for (int s = 0; s < Segments; ++s) {
        const int expert = i * warp_size + lane;
        parts[i][s] = s < segments && expert < experts ? from[std::int64_t{s} * tokens * experts + expert] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      p[i] = 0;
#pragma unroll
      for (int s = 0; s < Segments; ++s) p[i] += parts[i][s];
      p[i] *= factor;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      const int expert = i * warp_size + lane;
      p[i] = expert < experts ? from[expert] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    p[i] = 1.0f / (1.0f + expf(-p[i]));
    keys[i] = i * warp_size + lane < experts ? choice_key(p[i] + biases[i]) : 0;
  }
  const int k = routing.experts_per_token;
  int id = 0x7fffffff;  // of the slot that this lane keeps
  float weight = 0;
  for (int slot = 0; slot < k; ++slot) {
    std::uint32_t best = keys[0];
    int place = 0;
#pragma unroll
    for (int i = 1; i < Held; ++i) {
      if (keys[i] > best) best = keys[i], place = i;  // the lowest of equal ones
    }
    const std::uint32_t highest = __reduce_max_sync(all_lanes, best);
    const auto expert = static_cast<int>(
        __reduce_min_sync(all_lanes, best == highest ? static_cast<unsigned>(place * warp_size + lane) : 0xffffffffu));
    const int held = expert / warp_size;
    float value = 0;
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      if (i != held) continue;
      value = p[i];
      if (expert % warp_size == lane) keys[i] = 0;
    }
    value = __shfl_sync(all_lanes, value, expert % warp_size);
    if (lane == slot) id = expert, weight = value;
  }
  // Ascending by id; the sum in that order.
  int rank = 0;
  for (int i = 0; i < k; ++i) rank += __shfl_sync(all_lanes, id, i) < id ? 1 : 0;
  float sum = 0;
  for (int i = 0; i < k; ++i) {
    const unsigned holder = __ballot_sync(all_lanes, lane < k && rank == i);
    sum += __shfl_sync(all_lanes, weight, __popc((holder & (0u - holder)) - 1u));
  }
  if (lane < k) {
    routing.expert_ids[std::int64_t{token} * k + rank] = id;
    routing.expert_weights[std::int64_t{token} * k + rank] = weight / sum;
  }
}

}  // namespace

bool route_takes_segments(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens) {
  return tokens <= route_segment_tokens && (gate.format == WeightFormat::f32 || gate.format == WeightFormat::bf16) &&
         gate.columns % step_columns == 0 && x_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(gate.values) % 16 == 0 && gate.row_scales == nullptr;
}

cudaError_t launch_route_segments(const WeightMatrix& gate, const std::uint16_t* x, std::int64_t x_stride, int tokens,
                                  float* sums, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  const auto experts = static_cast<int>(gate.rows);
  const dim3 grid(static_cast<unsigned>((experts + 15) / 16), k_segments, static_cast<unsigned>((tokens + 7) / 8));
  const auto kernel = gate.format == WeightFormat::f32 ? route_segments_sm80<WeightFormat::f32>
                                                       : route_segments_sm80<WeightFormat::bf16>;
  return launch(kernel, grid, 32, 0, stream, gate.values, experts, static_cast<int>(gate.columns), x, x_stride, tokens,
                sums);
}

cudaError_t launch_choose_experts(float* logits, int segments, float factor, int tokens, int experts, const float* bias,
                                  const Routing& routing, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  if (routing.experts_per_token > most_experts_a_token || routing.experts_per_token > experts) {
    return cudaErrorInvalidValue;
  }
  if (experts <= 8 * warp_size && (segments <= 8 || (segments <= 16 && experts <= 4 * warp_size))) {
    const auto kernel = experts > 4 * warp_size
                            ? (segments == 1 ? route_choose_held_sm80<8, 1> : route_choose_held_sm80<8, 8>)
                        : segments == 1 ? route_choose_held_sm80<4, 1>
                        : segments <= 8 ? route_choose_held_sm80<4, 8>
                                        : route_choose_held_sm80<4, 16>;
    return launch(kernel, static_cast<unsigned>((tokens + 3) / 4), 128, 0, stream, logits, segments, factor, tokens,
                  experts, bias, routing);
  }
  return launch(route_choose_sm80, static_cast<unsigned>((tokens + 3) / 4), 128, 0, stream, logits, segments, factor,
                tokens, experts, bias, routing);
}

}  // namespace m3::ops::cuda
