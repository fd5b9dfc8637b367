#include "src/ops/cuda/matmul_sm90.cuh"

namespace m3::ops::cuda {

template cudaError_t matmul_wide_of<WeightFormat::bf16>(const MatmulArgs& args, cudaStream_t stream);

}  // namespace m3::ops::cuda
