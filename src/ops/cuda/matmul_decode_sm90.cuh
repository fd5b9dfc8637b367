// Launches of matmul_few_sm90.cuh, matmul_nibbles_sm90.cuh and matmul_some_sm90.cuh for one weight format.
#pragma once

#include "src/ops/cuda/matmul_few_sm90.cuh"
#include "src/ops/cuda/matmul_nibbles_sm90.cuh"
#include "src/ops/cuda/matmul_some_sm90.cuh"

namespace m3::ops::cuda {

template <WeightFormat Format>
struct DecodeChoice {
  static constexpr bool bf16 = Format == WeightFormat::bf16;
  static constexpr bool nibbles = step_bytes(Format) == 32;
  static constexpr int blocks = 2;  // of a multiprocessor
  template <int Tiles>
  using Some = SomeShape<Format, Tiles, bf16 ? 4 : (Tiles <= 4 ? 8 : 6), 128>;
};

template <class Shape, int Blocks, bool Activated>
cudaError_t launch_few(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_few_sm90<Shape, Activated, Blocks>;
  if (const auto error = allow_shared(kernel, Shape::shared_bytes, allowed); error != cudaSuccess) return error;
  const int blocks = multiprocessors() * Blocks;
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

template <class Shape, bool Activated>
cudaError_t launch_some(const MatmulArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_some_sm90<Shape, Activated>;
  if (const auto error = allow_shared(kernel, Shape::shared_bytes, allowed); error != cudaSuccess) return error;
  int units = args.inline_parts[0].rows;
  for (int part = 1; !Activated && part < args.parts; ++part) units += args.inline_parts[part].rows;
  const int at_once = multiprocessors() * (Activated ? Shape::rows / 2 : Shape::rows);
  const int rounds = (units + at_once - 1) / at_once;
  return launch(kernel, static_cast<unsigned>(multiprocessors()), 256, Shape::shared_bytes, stream, args, units,
                rounds);
}

template <WeightFormat Format, bool Activated>
cudaError_t matmul_decode_as(const MatmulArgs& args, cudaStream_t stream) {
  using Choice = DecodeChoice<Format>;
  if constexpr (Choice::nibbles) {
    return launch_nibbles<NibbleShape<Format, nibble_warps, nibble_tiles, nibble_stages>, Activated>(args, stream);
  } else {
    if (args.groups > 0 || args.items <= 8) {
      return launch_few<FewShape<Format, 2, 3>, Choice::blocks, Activated>(args, stream);
    }
    if (args.items <= 16) return launch_some<typename Choice::template Some<2>, Activated>(args, stream);
    if (args.items <= 32) return launch_some<typename Choice::template Some<4>, Activated>(args, stream);
    return launch_some<typename Choice::template Some<8>, Activated>(args, stream);
  }
}

template <WeightFormat Format>
cudaError_t matmul_decode_of(const MatmulArgs& args, cudaStream_t stream) {
  return args.store == Store::activated ? matmul_decode_as<Format, true>(args, stream)
                                        : matmul_decode_as<Format, false>(args, stream);
}

}  // namespace m3::ops::cuda
