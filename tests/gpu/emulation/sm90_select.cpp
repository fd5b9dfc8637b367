// select_blocks, route and sample of Hopper are not emulated: nothing here takes any call, so that the plain kernels run.
#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

bool select_decode_takes_sm90(const SelectArgs&) { return false; }
cudaError_t launch_select_decode_sm90(const SelectArgs&, cudaStream_t) { return cudaErrorInvalidValue; }
bool select_prefill_takes_sm90(const SelectArgs&) { return false; }
cudaError_t launch_select_prefill_sm90(const SelectArgs&, cudaStream_t) { return cudaErrorInvalidValue; }
std::int64_t select_prefill_workspace_bytes_sm90(std::int64_t, std::int64_t, int) { return 0; }
int route_segments_sm90(const WeightMatrix&, const std::uint16_t*, std::int64_t, int) { return 0; }
cudaError_t launch_route_sums_sm90(const WeightMatrix&, const std::uint16_t*, std::int64_t, int, float*, cudaStream_t) {
  return cudaErrorInvalidValue;
}

bool sample_takes_sm90(int) { return false; }
cudaError_t launch_sample_sm90(const float*, std::int64_t, int, const SampleRow*, int, std::uint32_t*, std::int32_t*,
                               std::uint8_t*, cudaStream_t) {
  return cudaErrorInvalidValue;
}

}  // namespace m3::ops::cuda
