// attend_dense for prompts on Hopper (attend_dense_sm90.cu).
#pragma once

#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

// 16 query heads a KV head, not deterministic.
bool attend_dense_takes_sm90(const AttendCall& call);
cudaError_t launch_attend_dense_sm90(const AttendCall& call, cudaStream_t stream);
std::int64_t attend_dense_sm90_bytes(std::int64_t tokens);  // of workspace

}  // namespace m3::ops::cuda
