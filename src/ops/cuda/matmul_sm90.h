// Products of many rows on Hopper (wgmma): what matmul.cu and mlp.cpp need of them.
#pragma once

#include "src/ops/cuda/matmul.h"
#include "src/ops/cuda/tensor_map.h"

namespace m3::ops::cuda {

inline constexpr int wide_rows = 256;        // of W, a cluster of blocks at a time
inline constexpr int wide_groups = 128;      // at most
inline constexpr int wide_least_items = 64;  // fewer, of one list, are left to the decode kernels
inline constexpr int wide_group_items = 5;   // likewise, of a group on average

// What a weight's values and scales are copied by.
struct WeightMaps {
  TensorMap values, scales;
};
bool encode_weight(WeightMaps& maps, const WeightPart& weight, int columns);

// Whether the device is Hopper and its driver describes tensors.
bool has_wide_kernels();
// Whether the shapes fit; x must be in the order of the items (no list, or x_by_list is false), groups need `maps`.
bool takes_wide(const MatmulArgs& args);
// Whether weights of the format are multiplied faster by x whose columns are arranged: of each 64, column
// 16 j + 8 h + 4 l + q stands at 32 h + 16 (q / 2) + 8 (q % 2) + 2 j + l. A lane's columns of a row of W (2 j, 2 j + 1, and
// 8 on, of each k16) are then 16 that lie together, under one scale, and in the order in which pairs of codes widen.
bool takes_arranged(WeightFormat format);
cudaError_t matmul_wide(const MatmulArgs& args, cudaStream_t stream);

// By format, as matmul_of.
template <WeightFormat Format>
cudaError_t matmul_wide_of(const MatmulArgs& args, cudaStream_t stream);
template <>
cudaError_t matmul_wide_of<WeightFormat::bf16>(const MatmulArgs& args, cudaStream_t stream);
extern template cudaError_t matmul_wide_of<WeightFormat::fp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_wide_of<WeightFormat::mxfp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_wide_of<WeightFormat::mxfp4>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_wide_of<WeightFormat::nvfp4>(const MatmulArgs&, cudaStream_t);

}  // namespace m3::ops::cuda
