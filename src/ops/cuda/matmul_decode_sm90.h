// Products of few rows on Hopper, at the rate that weights can be read: what matmul.cu and mlp.cpp need of them.
#pragma once

#include "src/ops/cuda/matmul.h"

namespace m3::ops::cuda {

inline constexpr int decode_most_items = 512;         // of groups
inline constexpr int decode_most_groups = 512;
inline constexpr int decode_most_phases = 72;         // of groups and eight items each, that one block works on
inline constexpr int streamed_items = 64;             // of one list
inline constexpr int decode_x_bytes = 100 << 10;      // of shared memory, for rows of x

// Whether up to eight rows of x lie in shared memory as a whole; else they stream through it.
inline bool decode_x_fits(const MatmulArgs& args) {
  return args.items <= 8 && args.items * (args.columns * 2 + 16) <= decode_x_bytes;
}

int multiprocessors();  // of the device

// Whether the device is Hopper, few rows are asked for and the shapes fit. Parts are of one format.
bool decode_takes_sm90(const MatmulArgs& args);
cudaError_t matmul_decode_sm90(const MatmulArgs& args, cudaStream_t stream);

// By format, as matmul_of.
template <WeightFormat Format>
cudaError_t matmul_decode_sm90_of(const MatmulArgs& args, cudaStream_t stream);
extern template cudaError_t matmul_decode_sm90_of<WeightFormat::bf16>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_sm90_of<WeightFormat::fp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_sm90_of<WeightFormat::mxfp8>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_sm90_of<WeightFormat::mxfp4>(const MatmulArgs&, cudaStream_t);
extern template cudaError_t matmul_decode_sm90_of<WeightFormat::nvfp4>(const MatmulArgs&, cudaStream_t);

}  // namespace m3::ops::cuda
