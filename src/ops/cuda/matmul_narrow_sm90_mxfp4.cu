#include "src/ops/cuda/matmul_narrow_sm90.cuh"

namespace m3::ops::cuda {

template cudaError_t matmul_narrow_of<WeightFormat::mxfp4>(const MatmulArgs&, cudaStream_t);

}  // namespace m3::ops::cuda
