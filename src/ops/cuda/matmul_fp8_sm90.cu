#include "src/ops/cuda/matmul_widened_sm90.cuh"

namespace m3::ops::cuda {

template cudaError_t matmul_wide_of<WeightFormat::fp8>(const MatmulArgs& args, cudaStream_t stream);

}  // namespace m3::ops::cuda
