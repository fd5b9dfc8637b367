#include "src/ops/cuda/matmul_decode_sm90.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace m3::ops::cuda {

namespace {

// Tells what this program has for the device: its body is there for Hopper alone.
__global__ void matmul_decode_probe_sm90() {}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

int multiprocessors() {
  static const int count = [] {
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return processors;
  }();
  return count;
}

// At most, of one block.
static int decode_phases(const MatmulArgs& args) {
  const int at_once = std::min(8, decode_x_bytes / (args.columns * 2 + 16));
  if (at_once < 1) return decode_most_phases + 1;
  return args.items / at_once + args.groups / std::max(multiprocessors(), 1) + 2;
}

static bool has_decode_kernels() {
  static const bool has = [] {
    int device = 0, major = 0, minor = 0, shared = 0;
    cudaFuncAttributes attributes;
    const bool there = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
                       major == 9 && minor == 0 && shared >= 227 << 10 &&
                       cudaFuncGetAttributes(&attributes, matmul_decode_probe_sm90) == cudaSuccess;
    return there && attributes.binaryVersion == 90;
  }();
  return has;
}

bool decode_takes_sm90(const MatmulArgs& args) {
  if (args.fixed_order || args.items == 0) return false;
  const WeightFormat format = args.inline_parts[0].format;
  // Stages of the rings: whole ones, their scales at 16 bytes (8 of mxfp8).
  int step = 0;
  switch (format) {
    case WeightFormat::bf16:
    case WeightFormat::fp8:
    case WeightFormat::mxfp8: step = 256; break;
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4: step = 512; break;
    default: return false;
  }
  if (args.columns % step != 0 || args.x_stride % 8 != 0 || !aligned(args.x)) return false;
  const int parts = args.store == Store::activated ? 2 : args.parts;
  if (args.parts != parts || (args.groups > 0 && args.store != Store::activated && args.parts != 1)) return false;
  for (int part = 0; part < parts; ++part) {
    const WeightPart& weight = args.inline_parts[part];
    if (weight.format != format || !aligned(weight.values) || !aligned(weight.scales)) return false;
    if (args.store == Store::activated && weight.rows != args.inline_parts[0].rows) return false;
  }
  if (args.groups > 0) {
    if (args.expert_ids == nullptr || args.items > decode_most_items || args.groups > decode_most_groups) return false;
    if (decode_phases(args) > decode_most_phases) return false;
  } else {
    if (args.items > streamed_items) return false;
    if ((format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4) && !decode_x_fits(args)) return false;
  }
  return has_decode_kernels();
}

cudaError_t matmul_decode_sm90(const MatmulArgs& args, cudaStream_t stream) {
  switch (args.inline_parts[0].format) {
    case WeightFormat::bf16: return matmul_decode_sm90_of<WeightFormat::bf16>(args, stream);
    case WeightFormat::fp8: return matmul_decode_sm90_of<WeightFormat::fp8>(args, stream);
    case WeightFormat::mxfp8: return matmul_decode_sm90_of<WeightFormat::mxfp8>(args, stream);
    case WeightFormat::mxfp4: return matmul_decode_sm90_of<WeightFormat::mxfp4>(args, stream);
    case WeightFormat::nvfp4: return matmul_decode_sm90_of<WeightFormat::nvfp4>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace m3::ops::cuda
