#include "src/ops/cpu/cpu_backend.h"

namespace m3::ops::cpu {

void CpuBackend::vision_qkv_finish(const VisionHeads& args, const Tensor& packed, const Tensor& table) {
  check_tensor(packed, DType::bf16, packed.rows, 3 * args.heads * vision_head_dim, "vision_qkv_finish: packed");
  check_tensor(table, DType::f32, packed.rows, 2 * vision_rotary_pairs, "vision_qkv_finish: table");
  pool_.split(packed.rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      auto* x = reinterpret_cast<std::uint16_t*>(packed.row(row));
      const auto* angles = reinterpret_cast<const float*>(table.row(row));
      for (int head = 0; head < 2 * args.heads; ++head) {
        kernels_.rotate_pairs(x + head * vision_head_dim, angles, vision_rotary_pairs);
      }
    }
  });
}

}  // namespace m3::ops::cpu
