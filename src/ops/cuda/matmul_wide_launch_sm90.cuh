// Launches of the products of many rows (see matmul_wide_tiles_sm90.cuh).
#pragma once

#include "src/ops/cuda/matmul_wide_tiles_sm90.cuh"

namespace m3::ops::cuda {

// Bytes of a number of the result.
inline int wide_element(const MatmulArgs& args) {
  return args.store == Store::f32 || args.store == Store::weighted ? 4 : 2;
}

// The number of tiles of items that takes the fewest columns of the tensor cores in all, clusters working in step.
inline int choose_item_pairs(int items, int row_tiles, int clusters, int cluster_items) {
  const int eights = (items + 7) / 8;
  const int least = (items + cluster_items - 1) / cluster_items;
  int best = least;
  long best_cost = -1;
  for (int pairs = least; pairs <= least + least / 2 + 2; ++pairs) {
    const int width = (eights + pairs * wide_cluster - 1) / (pairs * wide_cluster) * 8;
    const long rounds = (static_cast<long>(pairs) * row_tiles + clusters - 1) / clusters;
    const long cost = rounds * (width + 8);  // 8: what a tile costs beside
    if (best_cost < 0 || cost < best_cost) best = pairs, best_cost = cost;
  }
  return best;
}

// Fills in everything; returns how many tiles of a cluster there are at most, -1 where the tensors cannot be described.
template <typename Layout>
int describe_wide(const MatmulArgs& args, WideArgs& wide) {
  static_assert(sizeof(WideArgs) <= 8 << 10);  // arguments of kernels are up to 32,764 bytes
  wide.args = args;
  const bool activated = args.store == Store::activated;
  const int element = wide_element(args);
  bool aligned = reinterpret_cast<std::uintptr_t>(args.out) % 16 == 0 && args.out_stride * element % 16 == 0;
  wide.row_tiles = 0;
  for (int part = 0; part < args.parts; ++part) {
    const WeightPart& weight = args.inline_parts[part];
    if (args.groups == 0 && !encode_weight(wide.weights[part], weight, args.columns)) return -1;
    wide.row_tiles += (weight.rows + wide_rows - 1) / wide_rows;
    aligned = aligned && (activated || weight.first_column * element % 16 == 0);
  }
  if (activated) wide.row_tiles = (args.inline_parts[0].rows + wide_rows / 2 - 1) / (wide_rows / 2);
  wide.vector_stores = aligned ? 1 : 0;
  wide.item_pairs = choose_item_pairs(args.items, wide.row_tiles, 132 / wide_cluster, Layout::cluster_items);
  // What a block copies of a tile: of groups anything, of a list two widths.
  constexpr int most_eights = Layout::cluster_items / wide_cluster / 8;
  static_assert(most_eights <= wide_boxes);
  const int eights = (args.items + 7) / 8 / (wide.item_pairs * wide_cluster);
  wide.least_eights = args.groups > 0 || eights == 0 ? 1 : eights;
  wide.most_eights = args.groups > 0 || eights + 1 > most_eights ? most_eights : eights + 1;
  for (int rows = 8 * wide.least_eights; rows <= 8 * wide.most_eights; rows += 8) {
    if (!encode_tensor_map(wide.x_boxes[rows / 8 - 1], args.x, 2, args.items, args.columns, args.x_stride * 2, rows,
                           step_columns, 128)) {
      return -1;
    }
  }
  const int pairs = args.groups > 0 ? args.items / Layout::cluster_items + args.groups : wide.item_pairs;
  return pairs * wide.row_tiles;
}

template <typename Layout, auto Kernel>
cudaError_t launch_wide(const WideArgs& wide, int units, cudaStream_t stream) {
  static int allowed = 0;
  static_assert(Layout::bytes <= 232448);
  if (const cudaError_t error = allow_shared(Kernel, Layout::bytes, allowed); error != cudaSuccess) return error;
  ClusterLaunch clusters(wide_cluster, wide_cluster, wide_threads, Layout::bytes, stream);
  // Clusters stay: more than run at a time would take their turns afterwards.
  static const int most = [&] {
    int count = 0;
    return cudaOccupancyMaxActiveClusters(&count, Kernel, &clusters.config) == cudaSuccess && count > 0
               ? count
               : 132 / wide_cluster;
  }();
  clusters.config.gridDim = dim3(static_cast<unsigned>((units < most ? units : most) * wide_cluster));
  return cudaLaunchKernelEx(&clusters.config, Kernel, wide);
}

}  // namespace m3::ops::cuda
