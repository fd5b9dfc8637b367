// attend_sparse for prompts on Hopper (attend_sparse_sm90.cu).
#pragma once

#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

// 16 query heads a KV head, not deterministic, room in the workspace for 64 tokens at least.
bool attend_sparse_takes_sm90(const AttendCall& call);
cudaError_t launch_attend_sparse_sm90(const AttendCall& call, cudaStream_t stream);
// What takes all tokens at once, up to 8192 of them.
std::int64_t attend_sparse_sm90_bytes(std::int64_t tokens, std::int64_t kv_heads, std::int64_t topk,
                                      std::int64_t sequences, std::int64_t context);

}  // namespace m3::ops::cuda
