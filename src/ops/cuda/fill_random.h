// The bytes of src/base/random_fill.h, made on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "src/base/random_fill.h"

namespace m3::ops::cuda {

// Queued on the stream. The same bytes as m3::fill_random(fill, 0, to) writes on the host.
void fill_random(std::span<std::byte> to, const RandomFill& fill, cudaStream_t stream);

}  // namespace m3::ops::cuda
