// The host's side of the products of many rows: what fits them, and how matrices are described to the copies.
#include "src/ops/cuda/matmul_sm90.h"

namespace m3::ops::cuda {

namespace {

bool scaled(WeightFormat format) {
  return format == WeightFormat::mxfp8 || format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4;
}

}  // namespace

bool encode_weight(WeightMaps& maps, const WeightPart& weight, int columns) {
  const bool halves = weight.format == WeightFormat::bf16;
  const bool nibbles = weight.format == WeightFormat::mxfp4 || weight.format == WeightFormat::nvfp4;
  const int across = nibbles ? columns / 2 : columns;  // elements
  const int box = nibbles ? step_columns / 2 : step_columns;
  if (!encode_tensor_map(maps.values, weight.values, halves ? 2 : 1, weight.rows, across, halves ? across * 2 : across,
                         64, box,
                         halves    ? 128
                         : nibbles ? 0
                                   : 64)) {
    return false;
  }
  if (!scaled(weight.format)) return true;
  const bool sixteens = weight.format == WeightFormat::nvfp4;
  const int scales = columns / (sixteens ? 16 : 32);
  return encode_tensor_map(maps.scales, weight.scales, 1, weight.rows, scales, scales, 64, sixteens ? 32 : 16, 0);
}

bool has_wide_kernels() {
  static const bool has = [] {
    int device = 0, major = 0, minor = 0;
    TensorMap map;
    alignas(16) static const std::byte some[64 * 64] = {};
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
           minor == 0 && encode_tensor_map(map, some, 1, 64, 64, 64, 64, 64, 64);
  }();
  return has;
}

bool takes_wide(const MatmulArgs& args) {
  if (args.fixed_order || (args.list != nullptr && args.x_by_list) || args.expert_ids != nullptr) return false;
  if (args.columns % step_columns != 0 || args.x_stride % 8 != 0 ||
      reinterpret_cast<std::uintptr_t>(args.x) % 16 != 0) {
    return false;
  }
  const WeightFormat format = args.inline_parts[0].format;
  if (format == WeightFormat::f32 || format == WeightFormat::f16) return false;
  // Copies of scales are of 512 columns, and of whole 16 bytes.
  if (scaled(format) && args.columns % 512 != 0) return false;
  for (int part = 0; part < args.parts; ++part) {
    const WeightPart& weight = args.inline_parts[part];
    if (weight.format != format) return false;
    if (args.groups == 0 && (reinterpret_cast<std::uintptr_t>(weight.values) % 16 != 0 ||
                             reinterpret_cast<std::uintptr_t>(weight.scales) % 16 != 0)) {
      return false;
    }
  }
  if (args.groups > 0 ? args.maps == nullptr || args.groups > wide_groups || args.items < wide_group_items * args.groups
                      : args.items < wide_least_items + (format == WeightFormat::bf16 ? 1 : 0)) {
    return false;
  }
  if (args.store == Store::activated && (args.parts != 2 || args.inline_parts[0].rows != args.inline_parts[1].rows)) {
    return false;
  }
  return has_wide_kernels();
}

cudaError_t matmul_wide(const MatmulArgs& args, cudaStream_t stream) {
  switch (args.inline_parts[0].format) {
    case WeightFormat::bf16: return matmul_wide_of<WeightFormat::bf16>(args, stream);
    case WeightFormat::fp8: return matmul_wide_of<WeightFormat::fp8>(args, stream);
    case WeightFormat::mxfp8: return matmul_wide_of<WeightFormat::mxfp8>(args, stream);
    case WeightFormat::mxfp4: return matmul_wide_of<WeightFormat::mxfp4>(args, stream);
    case WeightFormat::nvfp4: return matmul_wide_of<WeightFormat::nvfp4>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace m3::ops::cuda
