#include "src/ops/cuda/matmul_sm80.cuh"

namespace m3::ops::cuda {

template cudaError_t matmul_of<WeightFormat::f32>(const MatmulArgs& args, cudaStream_t stream);

}  // namespace m3::ops::cuda
