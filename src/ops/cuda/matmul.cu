#include <algorithm>

#include "src/ops/cuda/launch.cuh"
#include "src/ops/cuda/limits.h"
#include "src/ops/cuda/matmul.h"
#include "src/ops/cuda/matmul_sm90.h"

#include "src/ops/cuda/matmul_decode_sm90.h"
#include "src/ops/cuda/matmul_narrow_sm90.h"
#include "src/ops/cuda/matmul_sm80.cuh"

namespace m3::ops::cuda {

namespace {

// Any shape and format, slowly: a warp sums one row of W for eight items. For what the tensor-core kernels do not take:
// K that is no multiple of 64, rows that do not begin at 16 bytes.
__global__ void __launch_bounds__(128) matmul_any_shape(const __grid_constant__ MatmulArgs args) {
  wait_for_previous();
  const TilePlace place = place_tile<4>(args, static_cast<int>(blockIdx.x));
  int begin = static_cast<int>(blockIdx.y) * 8;
  int end = args.items;
  int stride = end;
  WeightPart weight = args.inline_parts[place.part];
  if (args.groups > 0) {
    const int group = args.active[blockIdx.y];
    if (group < 0) return;
    begin = args.group_begin[group];
    end = args.group_begin[group + 1];
    stride = 8;
    weight = args.table[group * args.parts + place.part];
  }
  const int row = place.row + static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  if (row >= weight.rows) return;
  const std::int64_t columns = args.columns;
  std::int64_t row_bytes = columns;
  std::int64_t scale_bytes = 0;
  switch (weight.format) {
    case WeightFormat::f32: row_bytes = columns * 4; break;
    case WeightFormat::f16:
    case WeightFormat::bf16: row_bytes = columns * 2; break;
    case WeightFormat::mxfp8: scale_bytes = columns / 32; break;
    case WeightFormat::mxfp4: row_bytes = columns / 2, scale_bytes = columns / 32; break;
    case WeightFormat::nvfp4: row_bytes = columns / 2, scale_bytes = columns / 16; break;
    default: break;
  }
  const std::byte* values = weight.values + row * row_bytes;
  const std::byte* scales = weight.scales + row * scale_bytes;
  for (int at = begin; at < end; at += stride) {
    float sums[8] = {};
    const std::uint16_t* x[8];
    for (int i = 0; i < 8; ++i) x[i] = args.x + x_row(args, min(at + i, end - 1)) * args.x_stride;
    for (std::int64_t k = lane; k < columns; k += warp_size) {
      const float w = widen_one(weight.format, values, scales, k);
      for (int i = 0; i < 8; ++i) sums[i] += w * widen_bf16(x[i][k]);
    }
    for (int i = 0; i < 8; ++i) {
      const float sum = warp_sum(sums[i]);
      if (lane == 0 && at + i < end) {
        store_result(args, weight, x_row(args, at + i), result_row(args, at + i), row, sum);
      }
    }
  }
}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

bool fits_tensor_cores(const MatmulArgs& args) {
  bool fits = args.columns % step_columns == 0 && args.x_stride % 8 == 0 && aligned(args.x);
  for (int part = 0; part < args.parts; ++part) fits = fits && aligned(args.inline_parts[part].values);
  return fits;
}

namespace {

cudaError_t dispatch(const MatmulArgs& args, cudaStream_t stream) {
  if (takes_narrow(args)) return matmul_narrow(args, stream);
  if (takes_wide(args)) return matmul_wide(args, stream);
  if (args.gelu || args.store == Store::weighted_halves) return cudaErrorInvalidValue;
  if (!fits_tensor_cores(args)) {
    const int groups = args.groups > 0 ? (args.groups < args.items ? args.groups : args.items) : (args.items + 7) / 8;
    const dim3 grid(static_cast<unsigned>(tiles_of<4>(args)), static_cast<unsigned>(groups));
    return launch(matmul_any_shape, grid, 128, 0, stream, args);
  }
  if (decode_takes_sm90(args)) return matmul_decode_sm90(args, stream);
  switch (args.inline_parts[0].format) {
    case WeightFormat::f32: return matmul_of<WeightFormat::f32>(args, stream);
    case WeightFormat::f16: return matmul_of<WeightFormat::f16>(args, stream);
    case WeightFormat::bf16: return matmul_of<WeightFormat::bf16>(args, stream);
    case WeightFormat::fp8: return matmul_of<WeightFormat::fp8>(args, stream);
    case WeightFormat::mxfp8: return matmul_of<WeightFormat::mxfp8>(args, stream);
    case WeightFormat::mxfp4: return matmul_of<WeightFormat::mxfp4>(args, stream);
    case WeightFormat::nvfp4: return matmul_of<WeightFormat::nvfp4>(args, stream);
  }
  return cudaErrorInvalidValue;
}

template <WeightFormat Format>
std::int64_t scaled_columns(std::int64_t shared_bytes) {
  constexpr std::int64_t other_bytes = 2048;  // what else lies there: 1.1 KB
  const std::int64_t room = shared_bytes - other_bytes - decode_ring_bytes<Format, 4, 2>();
  return room / decode_scale_bytes<Format, 2>(step_columns) * (k_segments * step_columns);
}

}  // namespace

std::int64_t most_scaled_columns(std::int64_t shared_bytes) {
  return std::min({scaled_columns<WeightFormat::mxfp8>(shared_bytes), scaled_columns<WeightFormat::mxfp4>(shared_bytes),
                   scaled_columns<WeightFormat::nvfp4>(shared_bytes)});
}

cudaError_t matmul(const MatmulArgs& args, cudaStream_t stream) {
  if (args.items == 0) return cudaSuccess;
  for (int first = 0; first < args.parts;) {
    // A run of parts of one format; where groups have a table, all parts are of one.
    MatmulArgs run = args;
    run.parts = 0;
    for (int part = first; part < args.parts && args.inline_parts[part].format == args.inline_parts[first].format;
         ++part) {
      run.inline_parts[run.parts++] = args.inline_parts[part];
    }
    if (args.groups > 0 && run.parts != args.parts) return cudaErrorInvalidValue;
    const cudaError_t error = dispatch(run, stream);
    if (error != cudaSuccess) return error;
    first += run.parts;
  }
  return cudaSuccess;
}

}  // namespace m3::ops::cuda
