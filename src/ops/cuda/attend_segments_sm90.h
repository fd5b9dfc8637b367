// The vision tower's attention on Hopper (attend_segments_sm90.cu).
#pragma once

#include "src/ops/cuda/kernels.h"

namespace m3::ops::cuda {

bool attend_segments_takes_sm90(const VisionAttendArgs& args);
cudaError_t launch_attend_segments_sm90(const VisionAttendArgs& args, cudaStream_t stream);

}  // namespace m3::ops::cuda
