#include "src/ops/scalar/scalar_backend.h"

#include <fmt/format.h>

#include <algorithm>

namespace m3::ops::scalar {

std::string ScalarBackend::description() const {
  return fmt::format("scalar ({} numerics, {} {})", numerics_ == Numerics::bf16 ? "bf16" : "fp32", pool_.size(),
                     pool_.size() == 1 ? "thread" : "threads");
}

std::int64_t ScalarBackend::workspace_bytes(const Limits& limits) const {
  return std::max({embed_scratch_bytes(limits), matmul_scratch_bytes(limits), select_blocks_scratch_bytes(limits),
                   attend_scratch_bytes(limits), experts_scratch_bytes(limits), sample_scratch_bytes(limits),
                   vision_linear_scratch_bytes(limits), attend_segments_scratch_bytes(limits)});
}

}  // namespace m3::ops::scalar
