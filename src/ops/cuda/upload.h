// Weights to the device: straight from mapped files through pinned memory, by several threads with a stream each.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "src/ops/memory.h"

namespace m3::ops::cuda {

// Returns when all have arrived. `progress` (may be empty) gets bytes done, from the calling thread. Errors: those of
// the device.
void upload_all(std::span<const Transfer> transfers, const std::function<void(std::int64_t)>& progress);

}  // namespace m3::ops::cuda
