// Making a backend by name.
#pragma once

#include <memory>
#include <string>

#include "src/base/thread_pool.h"
#include "src/ops/ops.h"

namespace m3::ops {

struct BackendOptions {
  std::string name = "cpu";            // "scalar" or "cpu"
  Numerics numerics = Numerics::bf16;  // fp32 on "scalar" only
  std::string isa;                     // cpu: "" picks by machine, "avx2" or "avx512" force one that the machine has
};

// Errors: an unknown name (lists the known), fp32 numerics elsewhere than on scalar, a machine without AVX2 asked
// for "cpu". The pool must outlive the backend.
std::unique_ptr<Backend> make_backend(const BackendOptions& options, ThreadPool& pool);

// True where this machine can run the "cpu" backend (AVX2, FMA and F16C).
bool cpu_backend_available();

}  // namespace m3::ops
