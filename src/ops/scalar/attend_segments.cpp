#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/ops/host/segments.h"
#include "src/ops/scalar/scalar_backend.h"
#include "src/ops/scalar/vectors.h"

namespace m3::ops::scalar {

std::int64_t ScalarBackend::attend_segments_scratch_bytes(const Limits& limits) const {
  Arena arena;
  arena.take<float>(pool_.size() * limits.vision_segment);
  return arena.used();
}

// spec §4.6: every row sees the whole of its own segment and nothing else.
void ScalarBackend::attend_segments(const VisionHeads& args, const Tensor& packed,
                                    std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                                    const Tensor& out) {
  const std::int64_t width = args.heads * vision_head_dim;
  check_tensor(packed, DType::f32, first_row + out.rows, 3 * width, "attend_segments: packed");
  check_tensor(out, DType::f32, out.rows, width, "attend_segments: out");
  const std::int64_t most = limits().vision_segment;
  Arena arena = scratch();
  auto* all_scores = arena.take<float>(pool_.size() * most);
  pool_.each(out.rows * args.heads, [&](std::int64_t task, int thread) {
    const std::int64_t row = task / args.heads;
    const std::int64_t column = task % args.heads * vision_head_dim;
    const RowRun segment = segment_of(segment_begin, first_row + row);
    if (segment.count() > most) fail_internal("attend_segments: {} rows, planned for {}", segment.count(), most);
    const auto at = [&](std::int64_t r, std::int64_t part) {
      return reinterpret_cast<const float*>(packed.row(r)) + part * width + column;
    };
    float* scores = all_scores + thread * most;
    for (std::int64_t key = 0; key < segment.count(); ++key) {
      scores[key] = dot(at(first_row + row, 0), at(segment.begin + key, 1), vision_head_dim) * args.scale;
    }
    const float highest = *std::max_element(scores, scores + segment.count());
    for (std::int64_t key = 0; key < segment.count(); ++key) scores[key] = std::exp(scores[key] - highest);
    const float total = sum(scores, segment.count());
    float sums[vision_head_dim] = {};
    for (std::int64_t key = 0; key < segment.count(); ++key) {
      const float* v = at(segment.begin + key, 2);
      for (int i = 0; i < vision_head_dim; ++i) sums[i] += scores[key] * v[i];
    }
    auto* to = reinterpret_cast<float*>(out.row(row)) + column;
    for (int i = 0; i < vision_head_dim; ++i) to[i] = rounded(sums[i] / total);
  });
}

}  // namespace m3::ops::scalar
