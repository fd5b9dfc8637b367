// The processor has none of Hopper's products of many rows.
#include "src/ops/cuda/matmul_sm90.h"

#include "src/ops/cuda/matmul_narrow_sm90.h"

namespace m3::ops::cuda {

bool encode_weight(WeightMaps&, const WeightPart&, int) { return false; }
bool has_wide_kernels() { return false; }
bool takes_wide(const MatmulArgs&) { return false; }
bool takes_arranged(WeightFormat) { return false; }
cudaError_t matmul_wide(const MatmulArgs&, cudaStream_t) { return cudaErrorInvalidValue; }

bool has_narrow_kernels() { return false; }
bool narrow_takes_groups(WeightFormat, std::int64_t, int, std::int64_t) { return false; }
bool takes_narrow(const MatmulArgs&) { return false; }
cudaError_t matmul_narrow(const MatmulArgs&, cudaStream_t) { return cudaErrorInvalidValue; }
bool encode_tall_weight(WeightMaps&, const WeightPart&, int) { return false; }
std::int64_t narrow_partial_floats(std::int64_t) { return 0; }

}  // namespace m3::ops::cuda
