#include "src/ops/cuda/matmul_sm90.cuh"
#include "src/ops/cuda/matmul_widened_sm90.cuh"

namespace m3::ops::cuda {

// Experts' tiles of 256 items: a block reads 80 KB of shared memory a step with W in registers, 96 with W there too.
template <>
cudaError_t matmul_wide_of<WeightFormat::bf16>(const MatmulArgs& args, cudaStream_t stream) {
  return args.groups > 0 ? matmul_widened_by<WeightFormat::bf16, 2>(args, stream) : matmul_shared(args, stream);
}

}  // namespace m3::ops::cuda
