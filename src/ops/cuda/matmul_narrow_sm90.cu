// The host's side of matmul_narrow_sm90.cuh: what fits it, and how matrices are described to its copies.
#include "src/ops/cuda/matmul_narrow_sm90.h"

#include <algorithm>

#include "src/ops/cuda/matmul_decode_sm90.h"
#include "src/ops/cuda/matmul_sm90.h"

namespace m3::ops::cuda {

static_assert(narrow_parts == max_parts);

namespace {

bool scaled(WeightFormat format) {
  return format == WeightFormat::mxfp8 || format == WeightFormat::mxfp4 || format == WeightFormat::nvfp4;
}

// Whole copies of scales, which are of 512 columns, or whole stages.
int column_unit(WeightFormat format) { return scaled(format) ? 512 : format == WeightFormat::bf16 ? 64 : 128; }

}  // namespace

bool encode_tall_weight(WeightMaps& maps, const WeightPart& weight, int columns) {
  constexpr int box_rows = narrow_rows / 2;
  const bool halves = weight.format == WeightFormat::bf16;
  const bool nibbles = weight.format == WeightFormat::mxfp4 || weight.format == WeightFormat::nvfp4;
  const int across = nibbles ? columns / 2 : columns;  // elements
  if (!encode_tensor_map(maps.values, weight.values, halves ? 2 : 1, weight.rows, across, halves ? across * 2 : across,
                         box_rows, halves ? 64 : 128, 128)) {
    return false;
  }
  if (!scaled(weight.format)) return true;
  const bool sixteens = weight.format == WeightFormat::nvfp4;
  const int scales = columns / (sixteens ? 16 : 32);
  return encode_tensor_map(maps.scales, weight.scales, 1, weight.rows, scales, scales, box_rows, sixteens ? 32 : 16, 0);
}

bool has_narrow_kernels() {
  static const bool has = [] {
    TensorMap map;
    alignas(16) static const std::byte some[64 * 512] = {};
    return has_wide_kernels() && encode_steps_map(map, some, 64, 256, 512, 64, 4);
  }();
  return has;
}

bool narrow_takes_groups(WeightFormat format, std::int64_t items, int groups, std::int64_t columns) {
  return items >= std::int64_t{narrow_least_of_group(format)} * groups &&
         items <= std::int64_t{narrow_most_of_group(format)} * groups && groups <= narrow_most_groups &&
         columns % column_unit(format) == 0 && has_narrow_kernels();
}

bool takes_narrow(const MatmulArgs& args) {
  const WeightFormat format = args.inline_parts[0].format;
  const bool activated = args.store == Store::activated;
  if (args.fixed_order || args.gelu || args.expert_ids != nullptr || (args.list != nullptr && args.x_by_list)) {
    return false;
  }
  if (format == WeightFormat::f32 || format == WeightFormat::f16 || (args.arranged && !scaled(format))) return false;
  const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  if (args.columns % column_unit(format) != 0 || args.x_stride % 8 != 0 || !aligned(args.x)) return false;
  std::int64_t tiles = 0;
  for (int part = 0; part < args.parts; ++part) {
    const WeightPart& weight = args.inline_parts[part];
    if (weight.format != format) return false;
    tiles += weight.rows / (narrow_rows / 2) + 1;
    if (args.groups == 0 && (!aligned(weight.values) || !aligned(weight.scales))) return false;
  }
  if (activated ? args.parts != 2 || args.inline_parts[0].rows != args.inline_parts[1].rows
                : args.groups > 0 && args.parts != 1) {
    return false;
  }
  if (args.groups > 0) {
    return args.tall_maps != nullptr && narrow_takes_groups(format, args.items, args.groups, args.columns);
  }
  if (2 * tiles * (args.columns / 64 + 1) > narrow_most_cost) return false;
  return args.items >= narrow_least_items(format) && args.items <= narrow_items && args.partials != nullptr &&
         args.counters != nullptr && has_narrow_kernels();
}

std::int64_t narrow_partial_floats(std::int64_t items) {
  if (!has_narrow_kernels()) return 0;
  const std::int64_t capacity = (std::min<std::int64_t>(items, narrow_items) + 15) / 16 * 16;
  return std::int64_t{2} * std::min(multiprocessors(), narrow_most_blocks) * narrow_rows * capacity;
}

cudaError_t matmul_narrow(const MatmulArgs& args, cudaStream_t stream) {
  switch (args.inline_parts[0].format) {
    case WeightFormat::bf16: return matmul_narrow_of<WeightFormat::bf16>(args, stream);
    case WeightFormat::fp8: return matmul_narrow_of<WeightFormat::fp8>(args, stream);
    case WeightFormat::mxfp8: return matmul_narrow_of<WeightFormat::mxfp8>(args, stream);
    case WeightFormat::mxfp4: return matmul_narrow_of<WeightFormat::mxfp4>(args, stream);
    case WeightFormat::nvfp4: return matmul_narrow_of<WeightFormat::nvfp4>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace m3::ops::cuda
