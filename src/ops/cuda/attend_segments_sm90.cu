// The vision tower's attention on Hopper: a block of threads takes consecutive patches of one head and one segment through
// that segment. What others hold, not numbers perhaps, never meets them, not even with weights of 0.
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
  int first_row, count;       // of packed
  int first_key, keys;        // the segment
  const std::uint16_t* head;  // of row 0's queries

  // Segments' blocks begin at fixed numbers, found without adding up the segments before; between two of them one block
  // may have nothing to do.
  __device__ explicit VisionWork(const Args& a) : args(a) {
    const int block = static_cast<int>(blockIdx.x);
    const int first = static_cast<int>(args.first_row);
    const auto begin_of = [&](int segment) { return max(args.segment_begin[segment] - first, 0); };  // in these rows
    const auto first_block = [&](int segment) {
      return begin_of(segment) / vision_tile_rows + segment - args.first_segment;
    };
    int low = args.first_segment, high = args.last_segment;  // the last whose first block is not beyond
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_block(middle) <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const int begin = begin_of(low) + (block - first_block(low)) * vision_tile_rows;
    const int end = min(args.segment_begin[low + 1] - first, args.rows);
    first_row = first + begin;
    count = min(vision_tile_rows, end - begin);
    first_key = args.segment_begin[low];
    keys = args.segment_begin[low + 1] - first_key;
    head = args.packed + blockIdx.y * vision_head_dim;
  }
  __device__ bool empty() const { return count <= 0; }
  __device__ int first_tile() const { return 0; }
  __device__ int end_tile() const { return (keys + tile_keys - 1) / tile_keys; }
  __device__ const std::uint16_t* any_query() const { return args.packed; }
  __device__ const std::uint16_t* query(int row) const {
    return row >= count ? nullptr : head + std::int64_t{first_row + row} * args.packed_stride;
  }
  __device__ KeyRows run(bool values, int tile) const {
    const int first = tile * tile_keys;
    const std::uint16_t* rows =
        head + std::int64_t{first_key + first} * args.packed_stride + (values ? 2 : 1) * args.heads * vision_head_dim;
    return {reinterpret_cast<const std::byte*>(rows), args.packed_stride * 2, keys - first};
  }
  __device__ Span seen(int row) const { return {0, row < count ? keys : 0}; }
  __device__ float scale() const { return args.scale * log2_e; }
  __device__ float value_scale() const { return 1.0f; }
  __device__ std::uint16_t* out(int row) const {
    if (row >= count) return nullptr;
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
  const int blocks = (args.rows + vision_tile_rows - 1) / vision_tile_rows + args.last_segment - args.first_segment;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(args.heads));
  return launch(kernel, grid, (vision_groups + 1) * 128, bytes, stream, args);
}

}  // namespace m3::ops::cuda
