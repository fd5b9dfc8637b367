#include "src/ops/cuda/matmul_decode_sm90.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace m3::ops::cuda {

namespace {

// Tells what this program has for the device.
__global__ void decode_probe_sm90() {}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

bool has_decode_kernels() {
  static const bool has = [] {
    int device = 0, major = 0, minor = 0, shared = 0;
    cudaFuncAttributes attributes;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
           major == 9 && minor == 0 && shared >= 227 << 10 &&
           cudaFuncGetAttributes(&attributes, decode_probe_sm90) == cudaSuccess && attributes.binaryVersion == 90;
  }();
  return has;
}

}  // namespace

int multiprocessors() {
  static const int count = [] {
    int device = 0, processors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return processors;
  }();
  return count;
}

bool decode_takes_sm90(const MatmulArgs& args) {
  if (args.fixed_order || args.gelu || args.items == 0) return false;
  const WeightFormat format = args.inline_parts[0].format;
  const bool bf16 = format == WeightFormat::bf16;
  const bool nibbles = format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4;
  if (!bf16 && !nibbles && format != WeightFormat::fp8 && format != WeightFormat::mxfp8) return false;
  const bool activated = args.store == Store::activated;
  if (activated ? args.parts != 2 : args.groups > 0 && args.parts != 1) return false;
  int rows = 0;
  for (int part = 0; part < args.parts; ++part) {
    const WeightPart& weight = args.inline_parts[part];
    if (weight.format != format || !aligned(weight.values) || !aligned(weight.scales)) return false;
    if (activated && weight.rows != args.inline_parts[0].rows) return false;
    rows += weight.rows;
  }
  // Whole stages of a ring in every segment of K.
  const bool few = args.groups > 0 || args.items <= 8;
  const int step = nibbles ? 256 : !few ? 128 : bf16 ? 512 : 1024;
  if (args.columns % step != 0 || args.x_stride % 8 != 0 || !aligned(args.x)) return false;
  if (args.groups > 0) {
    if (args.expert_ids == nullptr || args.items > few_items || args.groups > few_groups) return false;
    if (nibbles) {
      const int at_once = std::min(8, nibble_x_bytes / (args.columns * 2 + 64));
      if (at_once < 1 || args.items / at_once + args.groups / multiprocessors() + 2 > nibble_phases) return false;
    }
  } else if (!few) {
    // Rows of x come by tensor copies: none by a list.
    if (!bf16 || args.items > some_items || (args.list != nullptr && args.x_by_list)) return false;
  } else if (nibbles) {
    if (args.items * (args.columns * 2 + 64) > nibble_x_bytes) return false;
  } else if (!bf16 && !activated && rows < 4 * 64 * multiprocessors()) {
    return false;  // too few tiles of 32 rows: the plain kernel is faster
  }
  return has_decode_kernels();
}

cudaError_t matmul_decode_sm90(const MatmulArgs& args, cudaStream_t stream) {
  switch (args.inline_parts[0].format) {
    case WeightFormat::bf16: return matmul_decode_of<WeightFormat::bf16>(args, stream);
    case WeightFormat::fp8: return matmul_decode_of<WeightFormat::fp8>(args, stream);
    case WeightFormat::mxfp8: return matmul_decode_of<WeightFormat::mxfp8>(args, stream);
    case WeightFormat::mxfp4: return matmul_decode_of<WeightFormat::mxfp4>(args, stream);
    case WeightFormat::nvfp4: return matmul_decode_of<WeightFormat::nvfp4>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace m3::ops::cuda
