// Hopper's own kernels (files *_sm90*.cu) are not emulated: nothing here takes any call, so that the plain kernels run.
#include "src/ops/cuda/experts_sm90.h"
#include "src/ops/cuda/matmul_decode_sm90.h"

namespace m3::ops::cuda {

bool decode_takes_sm90(const MatmulArgs&) { return false; }
cudaError_t matmul_decode_sm90(const MatmulArgs&, cudaStream_t) { return cudaErrorInvalidValue; }
bool experts_take_sm90(const ExpertsArgs&, const WeightPart&, const WeightPart&, const WeightPart&) { return false; }
cudaError_t launch_experts_sm90(const ExpertsArgs&, cudaStream_t) { return cudaErrorInvalidValue; }

}  // namespace m3::ops::cuda
