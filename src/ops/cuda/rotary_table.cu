#include "src/ops/cuda/device.cuh"
#include "src/ops/cuda/kernels.h"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

// The product in fp32, as the reference has it; cosf and sinf reduce large angles exactly.
__global__ void rotary_table_any_sm80(const std::int32_t* positions, int rows, const float* inv_freq, int half,
                                      float attention_factor, float* table, std::int64_t stride) {
  wait_for_previous();
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int token = at / half;
  const int i = at % half;
  if (token >= rows) return;
  const float angle = __fmul_rn(static_cast<float>(positions[token]), inv_freq[i]);
  table[token * stride + i] = cosf(angle) * attention_factor;
  table[token * stride + half + i] = sinf(angle) * attention_factor;
}

__global__ void vision_rotary_table_sm80(const std::int32_t* positions, int rows, const float* inv_freq, float* table,
                                         std::int64_t stride) {
  wait_for_previous();
  constexpr int frequencies = vision_rotary_pairs / 3;
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int patch = at / vision_rotary_pairs;
  const int pair = at % vision_rotary_pairs;
  if (patch >= rows) return;
  const auto position = static_cast<float>(positions[patch * 3 + pair / frequencies]);
  const float angle = __fmul_rn(position, inv_freq[pair % frequencies]);
  table[patch * stride + pair] = cosf(angle);
  table[patch * stride + vision_rotary_pairs + pair] = sinf(angle);
}

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + 127) / 128); }

}  // namespace

cudaError_t launch_rotary_table(const Batch& batch, const float* inv_freq, int half, float attention_factor,
                                float* table, std::int64_t stride, cudaStream_t stream) {
  if (batch.tokens == 0) return cudaSuccess;
  return launch(rotary_table_any_sm80, blocks_for(std::int64_t{batch.tokens} * half), 128, 0, stream, batch.positions,
                batch.tokens, inv_freq, half, attention_factor, table, stride);
}

cudaError_t launch_vision_rotary_table(const std::int32_t* positions, int rows, const float* inv_freq, float* table,
                                       std::int64_t stride, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return launch(vision_rotary_table_sm80, blocks_for(std::int64_t{rows} * vision_rotary_pairs), 128, 0, stream,
                positions, rows, inv_freq, table, stride);
}

}  // namespace m3::ops::cuda
