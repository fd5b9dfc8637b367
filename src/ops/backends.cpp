#include "src/ops/backends.h"

#include <cpuid.h>

#include "src/base/error.h"
#include "src/ops/cpu/cpu_backend.h"
#if M3_WITH_CUDA
#include "src/ops/cuda/cuda_backend.h"
#include "src/ops/cuda/machine_limits.h"
#endif
#include "src/ops/machine_limits.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops {

namespace {

// clang 16's __builtin_cpu_supports does not know this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

// The flags of *_avx512.cpp.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

const cpu::Kernels& choose_kernels(const std::string& isa) {
  if (!has_avx2()) fail_resource("this processor lacks AVX2, FMA or F16C: use --backend scalar");
  if (isa == "avx512" || (isa.empty() && has_avx512())) {
    if (!has_avx512()) fail_resource("this processor lacks AVX-512 (F, BW, VL, DQ, BF16, VBMI): use avx2");
    return cpu::avx512_kernels();
  }
  if (!isa.empty() && isa != "avx2") fail_usage("unknown instruction set \"{}\": known are avx2 and avx512", isa);
  return cpu::avx2_kernels();
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options, ThreadPool& pool) {
  if (options.name != "cpu" && !options.isa.empty())
    fail_usage("an instruction set ({}) is chosen for the cpu backend only", options.isa);
  if (options.name == "scalar") return std::make_unique<scalar::ScalarBackend>(options.numerics, pool);
  if (options.name != "cpu" && options.name != "cuda")
    fail_usage("unknown backend \"{}\": known are scalar, cpu and cuda", options.name);
  if (options.numerics != Numerics::bf16) fail_usage("fp32 numerics are the scalar backend's: use --backend scalar");
  if (options.name == "cuda") {
    if (const std::string reason = no_cuda_reason(); !reason.empty())
      fail_resource("cuda cannot be used here: {}", reason);
#if M3_WITH_CUDA
    return cuda::make_backend(options, pool);
#endif
  }
  return std::make_unique<cpu::CpuBackend>(choose_kernels(options.isa), pool);
}

void check_limits(const Backend& backend, const Limits& limits) {
  if (const std::string reason = backend.refusal(limits); !reason.empty())
    fail_usage("{}; {}take --device cpu", reason, reason.starts_with("--") ? "give no more, or " : "");
}

MeasuredLimits measure_limits(std::string_view backend, ThreadPool& pool, const std::string& isa) {
  const double read_bytes = measure_read_bytes(backend, pool);
#if M3_WITH_CUDA
  if (backend == "cuda") return {read_bytes, cuda::measure_matmul_peak(), "bf16"};
#endif
  return {read_bytes, measure_fp32_peak(pool, isa), "fp32"};
}

double measure_read_bytes(std::string_view backend, ThreadPool& pool) {
#if M3_WITH_CUDA
  if (backend == "cuda") return cuda::measure_read_bandwidth();
#endif
  static_cast<void>(backend);
  return measure_read_bandwidth(pool);
}

std::string no_cuda_reason() {
#if M3_WITH_CUDA
  return cuda::no_device_reason();
#else
  return "this program was built without it; build where nvcc is (./run says what it found), or use --device cpu";
#endif
}

bool cpu_backend_available() { return has_avx2(); }

}  // namespace m3::ops
