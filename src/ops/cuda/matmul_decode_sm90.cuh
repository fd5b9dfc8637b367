// Launches of matmul_few_sm90.cuh, matmul_nibbles_sm90.cuh and matmul_some_sm90.cuh for one weight format.
#pragma once

#include "src/ops/cuda/matmul_few_sm90.cuh"
#include "src/ops/cuda/matmul_nibbles_sm90.cuh"
#include "src/ops/cuda/matmul_some_sm90.cuh"

namespace m3::ops::cuda {

template <class Shape, bool Activated>
cudaError_t launch_few(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_few_sm90<Shape, Activated>;
  if (const auto error = allow_shared(kernel, Shape::shared_bytes, allowed); error != cudaSuccess) return error;
  const int blocks = multiprocessors() * few_blocks;
  const FewGrid grid = few_grid(args, Activated, Activated ? Shape::rows / 2 : Shape::rows, blocks);
  return launch(kernel, static_cast<unsigned>(blocks), 256, Shape::shared_bytes, stream, args, grid);
}

template <class Shape, bool Activated>
cudaError_t launch_nibbles(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_nibbles_sm90<Shape, Activated>;
  if (const auto error = allow_shared(kernel, nibble_shared, allowed); error != cudaSuccess) return error;
  return launch(kernel, static_cast<unsigned>(multiprocessors()), Shape::threads, nibble_shared, stream, args);
}

template <class Shape>
cudaError_t launch_some(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_some_sm90<Shape>;
  if (const auto error = allow_shared(kernel, Shape::shared_bytes, allowed); error != cudaSuccess) return error;
  int rows = 0;
  for (int part = 0; part < args.parts; ++part) rows += args.inline_parts[part].rows;
  return launch(kernel, static_cast<unsigned>(multiprocessors()), 256, Shape::shared_bytes, stream, args, rows);
}

// The fastest of what was measured on an H200.
template <WeightFormat Format, bool Activated>
cudaError_t matmul_decode_as(const MatmulArgs& args, cudaStream_t stream) {
  if constexpr (Format == WeightFormat::mxfp4) {
    if (args.items <= 4 && args.columns % 1024 == 0) return launch_few<FewShape<Format, 2, 5>, Activated>(args, stream);
    return launch_nibbles<NibbleShape<Format, 16, 4>, Activated>(args, stream);
  } else if constexpr (Format == WeightFormat::nvfp4) {
    return launch_nibbles<NibbleShape<Format, 12, 5>, Activated>(args, stream);
  } else if constexpr (Format == WeightFormat::bf16) {
    if constexpr (!Activated) {
      if (args.groups == 0 && args.items > 32) return launch_some<SomeShape<8, 5>>(args, stream);
      if (args.groups == 0 && args.items > 16) return launch_some<SomeShape<4, 7>>(args, stream);
      if (args.groups == 0 && args.items > 8) return launch_some<SomeShape<2, 4>>(args, stream);
    }
    return launch_few<FewShape<Format, 3, 2>, Activated>(args, stream);
  } else {
    return launch_few<FewShape<Format, 2, 3>, Activated>(args, stream);
  }
}

template <WeightFormat Format>
cudaError_t matmul_decode_of(const MatmulArgs& args, cudaStream_t stream) {
  return args.store == Store::activated ? matmul_decode_as<Format, true>(args, stream)
                                        : matmul_decode_as<Format, false>(args, stream);
}

}  // namespace m3::ops::cuda
