#include "src/ops/cuda/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/ops/cuda/backend.h"

namespace m3::ops::cuda {

std::string CudaBackend::refusal(const Limits& limits) const {
  struct Size {
    const char* name;
    std::int64_t value, most;
  };
  const bool chooses = limits.topk_blocks > 0;
  const auto index_heads = static_cast<int>(std::clamp<std::int64_t>(limits.kv_heads, 1, most_index_heads));
  // matmul_any_shape takes eight rows of x a block of threads.
  const std::int64_t step = most_grid * (chooses ? select_tokens(index_heads) : 8);
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  const Size sizes[] = {
      {"sparse_topk_blocks", limits.topk_blocks, most_topk_blocks},
      {"num_key_value_heads (with sparse layers)", limits.kv_heads, chooses ? most_index_heads : any},
      {"num_experts_per_tok", limits.experts_per_token, most_experts_a_token},
      {"num_local_experts", limits.experts, most_groups},
      {"hidden_size", limits.hidden, most_norm_columns},
      {"vision_config.hidden_size", limits.vision_hidden, most_norm_columns},
      {"the longest row of a weight with scales", limits.scaled_columns, most_scaled_columns(shared_bytes_)},
      {"--max-num-batched-tokens", limits.tokens, step},
      {"--max-model-len", limits.context, chooses ? most_context(shared_bytes_) : any},
  };
  for (const Size& size : sizes) {
    if (size.value > size.most)
      return fmt::format("{} is {} and the CUDA backend takes at most {}", size.name, size.value, size.most);
  }
  return {};
}

}  // namespace m3::ops::cuda
