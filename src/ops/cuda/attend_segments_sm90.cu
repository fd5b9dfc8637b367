// The vision tower's attention on Hopper: a block of threads takes consecutive patches of one head through the segments
// that hold them.
#include <algorithm>

#include "src/ops/cuda/attend_segments.cuh"
#include "src/ops/cuda/attend_sm90.h"
#include "src/ops/cuda/attend_tiles_sm90.cuh"
#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

inline constexpr int vision_groups = 3;  // warpgroups of a block of threads
inline constexpr int vision_tile_rows = vision_groups * group_queries;

struct VisionWork {
  using Args = VisionAttendArgs;
  static constexpr bool fp8 = false;
  static constexpr int pieces = 10, query_pieces = 10, columns = vision_head_dim;

  const Args& args;
  int first_row, last_row;  // of packed
  int first_key, end_key;
  const std::uint16_t* head;  // of row 0's queries

  __device__ explicit VisionWork(const Args& a) : args(a) {
    const int tile = static_cast<int>(blockIdx.x) * vision_tile_rows;
    first_row = static_cast<int>(args.first_row) + tile;
    last_row = static_cast<int>(args.first_row) + min(tile + vision_tile_rows, args.rows) - 1;
    first_key = segment_of_row(args, first_row).begin;
    end_key = segment_of_row(args, last_row).end;
    head = args.packed + blockIdx.y * vision_head_dim;
  }
  __device__ bool empty() const { return false; }
  __device__ int first_tile() const { return first_key / tile_keys; }
  __device__ int end_tile() const { return (end_key + tile_keys - 1) / tile_keys; }
  __device__ const std::uint16_t* any_query() const { return args.packed; }
  __device__ const std::uint16_t* query(int row) const {
    return first_row + row > last_row ? nullptr : head + std::int64_t{first_row + row} * args.packed_stride;
  }
  __device__ KeyRows run(bool values, int tile) const {
    const std::int64_t first = std::int64_t{tile} * tile_keys;
    const std::uint16_t* rows = head + first * args.packed_stride + (values ? 2 : 1) * args.heads * vision_head_dim;
    return {reinterpret_cast<const std::byte*>(rows), args.packed_stride * 2, end_key - static_cast<int>(first)};
  }
  __device__ Span seen(int row) const {
    if (first_row + row > last_row) return {0, 0};
    const Seen rows = segment_of_row(args, first_row + row);
    return {rows.begin, rows.end};
  }
  __device__ float scale() const { return args.scale * log2_e; }
  __device__ float value_scale() const { return 1.0f; }
  __device__ std::uint16_t* out(int row) const {
    if (first_row + row > last_row) return nullptr;
    return args.out + (first_row + row - args.first_row) * args.out_stride + blockIdx.y * vision_head_dim;
  }
};

namespace {

constexpr int buffers = 5;

}  // namespace

bool attend_segments_takes_sm90(const VisionAttendArgs& args) {
  return runs_on_hopper() && !args.deterministic && args.packed_stride % 8 == 0 && args.out_stride % 2 == 0;
}

cudaError_t launch_attend_segments_sm90(const VisionAttendArgs& args, cudaStream_t stream) {
  constexpr int bytes = tile_memory_bytes<vision_groups, buffers>;
  static int allowed = 0;
  const auto kernel = attend_tiles_sm90<VisionWork, vision_groups, buffers>;
  if (const cudaError_t error = allow_shared(kernel, bytes, allowed); error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>((args.rows + vision_tile_rows - 1) / vision_tile_rows),
                  static_cast<unsigned>(args.heads));
  return launch(kernel, grid, (vision_groups + 1) * 128, bytes, stream, args);
}

}  // namespace m3::ops::cuda
