// Making the CUDA backend, without CUDA's headers.
#pragma once

#include <memory>
#include <string>

#include "src/ops/backends.h"

namespace m3::ops::cuda {

// Errors: no usable device (no_device_reason() says why). The pool copies what is large between ordinary and pinned
// memory, and must outlive the backend.
std::unique_ptr<Backend> make_backend(const BackendOptions& options, ThreadPool& pool);

// Empty where a device can be used, else one line: no driver, no device, or one that is too old. Never throws.
std::string no_device_reason();

}  // namespace m3::ops::cuda
