// The largest sizes that the kernels take, each stated here alone: kernels and launchers use these, and a model beyond them
// is refused while it loads (CudaBackend::refusal).
#pragma once

#include <cstdint>

namespace m3::ops::cuda {

inline constexpr int most_topk_blocks = 128;  // chosen for a token and head: select_blocks keeps them in shared memory
inline constexpr int most_index_heads = 64;   // columns of one block of threads there
inline constexpr int most_experts_a_token = 32;   // route: one a lane
inline constexpr int most_groups = 1024;          // experts of a layer: a thread of one block each
inline constexpr int most_norm_columns = 16384;   // of a row that 512 threads keep in registers
inline constexpr std::int64_t most_grid = 65535;  // of a grid along y and z

// Tokens whose heads are the columns of one block of threads (select_blocks), at least.
inline constexpr int select_tokens(int heads) { return heads > 8 ? most_index_heads / heads : 8 / heads; }

// Of `shared_bytes`, a block's on this device: tokens of a context whose scores select_blocks_choose_sm80 holds there.
inline constexpr std::int64_t most_context(std::int64_t shared_bytes) {
  constexpr std::int64_t other_bytes = 4096;  // what else lies there: 2.1 KB
  return (shared_bytes - other_bytes) / 4 * 128;
}

// Likewise the longest row of a weight with scales, which the kernel for few rows of x keeps beside its rings. In matmul.cu.
std::int64_t most_scaled_columns(std::int64_t shared_bytes);

}  // namespace m3::ops::cuda
