// Making a backend by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "src/base/thread_pool.h"
#include "src/ops/ops.h"

namespace m3::ops {

struct BackendOptions {
  std::string name = "cpu";            // "scalar", "cpu" or "cuda"
  Numerics numerics = Numerics::bf16;  // fp32 on "scalar" only
  std::string isa = {};                // cpu: "" picks by machine, "avx2" or "avx512" force one that the machine has
  // cuda: a row's results do not depend on its batch, bit for bit (split counts from the context alone). The others are
  // always so.
  bool deterministic = false;
  // cuda: work that may take long and gives way to that of other backends on the device, as they come.
  bool background = false;
};

// Errors: an unknown name (lists the known), "cuda" in a program or on a machine without it (says which), fp32 numerics elsewhere than on scalar, a machine without AVX2 asked
// for "cpu". The pool must outlive the backend.
std::unique_ptr<Backend> make_backend(const BackendOptions& options, ThreadPool& pool);

// Errors: the backend refuses these limits; the line says what is too large and what to do.
void check_limits(const Backend& backend, const Limits& limits);

// What a backend's speeds are held against, measured now.
struct MeasuredLimits {
  double read_bytes = 0;  // a second, of the memory that operands lie in
  double operations = 0;  // a second: fp32 in registers on the host, bf16 matrix products on cuda; 0: not known
  std::string operation;  // "fp32", "bf16"
};
MeasuredLimits measure_limits(std::string_view backend, ThreadPool& pool, const std::string& isa);
double measure_read_bytes(std::string_view backend, ThreadPool& pool);  // the first of them alone

// What a program without the CUDA backend, or a machine without a device that it can use, has instead of it: one line
// for people. Empty: "cuda" can be made. Never fails, and needs no driver.
std::string no_cuda_reason();

// True where this machine can run the "cpu" backend (AVX2, FMA and F16C).
bool cpu_backend_available();

}  // namespace m3::ops
