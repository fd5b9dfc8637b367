// Attention's Hopper kernels are not emulated: they take no call.
#include "src/ops/cuda/attend_sm90.h"

namespace m3::ops::cuda {

bool attend_sparse_takes_sm90(const AttendCall&) { return false; }
cudaError_t launch_attend_sparse_sm90(const AttendCall&, cudaStream_t) { return cudaErrorInvalidValue; }
std::int64_t attend_sparse_sm90_bytes(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  return 0;
}
bool attend_dense_takes_sm90(const AttendCall&) { return false; }
cudaError_t launch_attend_dense_sm90(const AttendCall&, cudaStream_t) { return cudaErrorInvalidValue; }
std::int64_t attend_dense_sm90_bytes(std::int64_t) { return 0; }
bool attend_decode_takes_sm90(const AttendCall&) { return false; }
cudaError_t launch_attend_decode_sm90(const AttendCall&, cudaStream_t) { return cudaErrorInvalidValue; }
std::int64_t attend_decode_sm90_bytes() { return 0; }
bool attend_segments_takes_sm90(const VisionAttendArgs&) { return false; }
cudaError_t launch_attend_segments_sm90(const VisionAttendArgs&, cudaStream_t) { return cudaErrorInvalidValue; }

}  // namespace m3::ops::cuda
