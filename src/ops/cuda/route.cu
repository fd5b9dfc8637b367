#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

constexpr int most_experts_a_token = 32;

// A warp a token: sigmoid, the k highest of p + bias (ties to the lower id, NaN as the lowest), weights p / Σp.
__global__ void __launch_bounds__(128) route_choose_sm80(float* logits, int tokens, int experts, const float* bias,
                                                         const __grid_constant__ Routing routing) {
  wait_for_previous();
  __shared__ int chosen[4][most_experts_a_token];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int token = static_cast<int>(blockIdx.x) * 4 + warp;
  if (token >= tokens) return;
  float* p = logits + std::int64_t{token} * experts;
  const int k = routing.experts_per_token;
  for (int e = lane; e < experts; e += warp_size) p[e] = 1.0f / (1.0f + expf(-p[e]));
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

}  // namespace

cudaError_t launch_choose_experts(float* logits, int tokens, int experts, const float* bias, const Routing& routing,
                                  cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  if (routing.experts_per_token > most_experts_a_token || routing.experts_per_token > experts) {
    return cudaErrorInvalidValue;
  }
  return launch(route_choose_sm80, static_cast<unsigned>((tokens + 3) / 4), 128, 0, stream, logits, tokens, experts,
                bias, routing);
}

}  // namespace m3::ops::cuda
