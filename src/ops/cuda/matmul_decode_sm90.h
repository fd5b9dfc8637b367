// Products of few rows on Hopper, at the rate that weights can be read: what matmul.cu and mlp.cpp need of them.
#pragma once

#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

inline constexpr int few_items = 512;   // of groups, chosen by experts
inline constexpr int few_groups = 256;  // at most
inline constexpr int some_items = 64;   // of one list, bf16

// Of four-bit codes: what a block's shared memory is for, and how many parts or groups, some items of each at a time, one
// block may meet.
inline constexpr int nibble_shared = 216 << 10;
inline constexpr int nibble_x_bytes = 80 << 10;
inline constexpr int nibble_phases = 96;

// Whether the device is Hopper, few rows are asked for and the shapes fit. Parts are of one format.
bool decode_takes_sm90(const MatmulArgs& args);
cudaError_t matmul_decode_sm90(const MatmulArgs& args, cudaStream_t stream);

int multiprocessors();  // of the device

// By format, as matmul_of.
template <WeightFormat Format>
cudaError_t matmul_decode_of(const MatmulArgs& args, cudaStream_t stream);
extern template cudaError_t matmul_decode_of<WeightFormat::bf16>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_of<WeightFormat::fp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_of<WeightFormat::mxfp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_of<WeightFormat::mxfp4>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_of<WeightFormat::nvfp4>(const MatmulArgs&, cudaStream_t);

}  // namespace m3::ops::cuda
