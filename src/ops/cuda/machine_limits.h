// What the GPU in use can do at best, measured now. See src/ops/machine_limits.h for the processor.
#pragma once

namespace m3::ops::cuda {

// Bytes per second that a kernel which only reads reaches on a buffer far beyond the L2; the best of several passes.
double measure_read_bandwidth();

// Operations per second of a bf16 product of 8192 x 8192 x 8192 by cuBLAS, which is loaded for this if it is installed;
// 0 where it is not.
double measure_matmul_peak();

}  // namespace m3::ops::cuda
