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
  const int blocks = multiprocessors() * Shape::blocks;
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

template <int Rows, bool Activated>
cudaError_t launch_some(SomeArgs& some, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = matmul_some_sm90<Rows, Activated>;
  if (const auto error = allow_shared(kernel, some_shared, allowed); error != cudaSuccess) return error;
  const int stage_bytes = some_stage_bytes<Rows>(some.item_rows);
  some.stages = std::min(some_most_stages, (some_shared - 1024) / stage_bytes);
  const ClusterLaunch clusters(some_cluster, static_cast<unsigned>(multiprocessors() / some_cluster * some_cluster),
                               some_threads, static_cast<std::size_t>(some.stages * stage_bytes) + 1024, stream);
  return cudaLaunchKernelEx(&clusters.config, kernel, some);
}

template <bool Activated>
cudaError_t matmul_some(const MatmulArgs& args, cudaStream_t stream) {
  constexpr int unit_rows = Activated ? 16 : 8;
  constexpr int most_rows = 96;
  SomeArgs some;
  some.args = args;
  some.units = 0;
  some.item_rows = (args.items + 15) / 16 * 16;
  for (int part = 0; part < (Activated ? 1 : args.parts); ++part) some.units += (args.inline_parts[part].rows + 7) / 8;
  if (!encode_tensor_map(some.x, args.x, 2, args.items, args.columns, args.x_stride * 2, some.item_rows / 2, 64, 128)) {
    return cudaErrorInvalidValue;
  }
  const int blocks = multiprocessors() / some_cluster * some_cluster;
  const int share = (some.units + blocks - 1) / blocks;
  some.passes = (share * unit_rows + most_rows - 1) / most_rows;
  const int rows = (share + some.passes - 1) / some.passes * unit_rows;
  if (rows <= 32) return launch_some<32, Activated>(some, stream);
  if (rows <= 48) return launch_some<48, Activated>(some, stream);
  if (rows <= 64) return launch_some<64, Activated>(some, stream);
  if (rows <= 80) return launch_some<80, Activated>(some, stream);
  return launch_some<96, Activated>(some, stream);
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
    if (args.groups == 0 && args.items > 8) return matmul_some<Activated>(args, stream);
    if (args.groups == 0 && args.columns == 6144)
      return launch_few<FewShape<Format, 3, 4, 12>, Activated>(args, stream);
    if (args.groups == 0 && args.columns == 3072) return launch_few<FewShape<Format, 3, 4, 6>, Activated>(args, stream);
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
