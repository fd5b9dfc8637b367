// The vision tower is not computed on the GPU yet.
#include "src/base/error.h"
#include "src/ops/cuda/backend.h"

namespace m3::ops::cuda {

namespace {

[[noreturn]] void refuse() { fail_usage("pictures are not computed on cuda yet: use --device cpu for them"); }

}  // namespace

void CudaBackend::patch_embed(const Tensor&, const WeightMatrix&, const Tensor&) { refuse(); }
void CudaBackend::vision_rotary_table(std::span<const std::int32_t>, std::span<const float>, const Tensor&) {
  refuse();
}
void CudaBackend::layer_norm(const Tensor&, const Tensor&, const LayerNormWeight&, const Tensor&) { refuse(); }
void CudaBackend::linear_bias(const Tensor&, std::span<const WeightMatrix>, std::span<const float>, const Tensor&) {
  refuse();
}
void CudaBackend::vision_qkv_finish(const VisionHeads&, const Tensor&, const Tensor&) { refuse(); }
void CudaBackend::attend_segments(const VisionHeads&, const Tensor&, std::span<const std::int32_t>, std::int64_t,
                                  const Tensor&) {
  refuse();
}
void CudaBackend::gelu_mlp(const Tensor&, const GeluMlpWeights&, const Tensor&) { refuse(); }

}  // namespace m3::ops::cuda
