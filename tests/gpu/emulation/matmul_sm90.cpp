// The processor has none of Hopper's products of many rows.
#include "src/ops/cuda/matmul_sm90.h"

namespace m3::ops::cuda {

bool encode_weight(WeightMaps&, const WeightPart&, int) { return false; }
bool has_wide_kernels() { return false; }
bool takes_wide(const MatmulArgs&) { return false; }
bool takes_arranged(WeightFormat) { return false; }
cudaError_t matmul_wide(const MatmulArgs&, cudaStream_t) { return cudaErrorInvalidValue; }

}  // namespace m3::ops::cuda
