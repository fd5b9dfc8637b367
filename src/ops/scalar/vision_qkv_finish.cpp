#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops::scalar {

// spec §4.5: half-split pairs (i, i + 39) of the first 78 dimensions of every head of q and k; the last two pass.
void ScalarBackend::vision_qkv_finish(const VisionHeads& args, const Tensor& packed, const Tensor& table) {
  check_tensor(packed, DType::f32, packed.rows, 3 * args.heads * vision_head_dim, "vision_qkv_finish: packed");
  check_tensor(table, DType::f32, packed.rows, 2 * vision_rotary_pairs, "vision_qkv_finish: table");
  pool_.split(packed.rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      auto* x = reinterpret_cast<float*>(packed.row(row));
      const auto* cosine = reinterpret_cast<const float*>(table.row(row));
      const float* sine = cosine + vision_rotary_pairs;
      for (int head = 0; head < 2 * args.heads; ++head, x += vision_head_dim) {
        for (int i = 0; i < vision_rotary_pairs; ++i) {
          const float a = x[i];
          const float b = x[i + vision_rotary_pairs];
          x[i] = rounded(a * cosine[i] - b * sine[i]);
          x[i + vision_rotary_pairs] = rounded(b * cosine[i] + a * sine[i]);
        }
      }
    }
  });
}

}  // namespace m3::ops::scalar
