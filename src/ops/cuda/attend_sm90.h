// Attention on Hopper (attend_*_sm90.cu). Each `takes` says whether its launcher does a call: the device is a Hopper, the
// shapes fit, and the order of summation may depend on the batch.
#pragma once

#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

// From these many tokens of one sequence on a call counts as a prompt's.
inline constexpr int prompt_tokens = 16;

// attend_sparse of prompts: 16 query heads a KV head, room in the workspace for 64 tokens at least.
bool attend_sparse_takes_sm90(const AttendCall& call);
cudaError_t launch_attend_sparse_sm90(const AttendCall& call, cudaStream_t stream);
// Workspace that takes all tokens at once, up to 8192 of them; 0 where the device is no Hopper.
std::int64_t attend_sparse_sm90_bytes(std::int64_t tokens, std::int64_t kv_heads, std::int64_t topk,
                                      std::int64_t sequences, std::int64_t context);

// attend_dense of prompts: 16 query heads a KV head.
bool attend_dense_takes_sm90(const AttendCall& call);
cudaError_t launch_attend_dense_sm90(const AttendCall& call, cudaStream_t stream);
std::int64_t attend_dense_sm90_bytes(std::int64_t tokens);

// Both of single tokens: 16 query heads a KV head. Sparse where call.block_ids is given.
bool attend_decode_takes_sm90(const AttendCall& call);
cudaError_t launch_attend_decode_sm90(const AttendCall& call, cudaStream_t stream);
std::int64_t attend_decode_sm90_bytes();  // of workspace, where few tokens have long contexts

// The vision tower's.
bool attend_segments_takes_sm90(const VisionAttendArgs& args);
cudaError_t launch_attend_segments_sm90(const VisionAttendArgs& args, cudaStream_t stream);

}  // namespace m3::ops::cuda
