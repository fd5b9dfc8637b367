#include "src/ops/cpu/cpu_backend.h"
#include "src/ops/host/segments.h"

namespace m3::ops::cpu {

namespace {

// Rows of one call of the kernel: neighbours of one segment.
struct Tile {
  RowRun rows;
  RowRun segment;
};

Tile tile_from(std::span<const std::int32_t> segment_begin, std::int64_t row, std::int64_t end) {
  const RowRun segment = segment_of(segment_begin, row);
  return {{row, std::min({row + segment_queries, segment.end, end})}, segment};
}

}  // namespace

std::int64_t CpuBackend::attend_segments_scratch_bytes(const Limits& limits) const {
  if (limits.vision_segment == 0) return 0;
  Arena arena;
  arena.take<float>(pool_.size() * segment_scratch);
  return arena.used();
}

// Keys go by in chunks from the segment's first, whatever the rows at hand: a row's sums have one order.
void CpuBackend::attend_segments(const VisionHeads& args, const Tensor& packed,
                                 std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                                 const Tensor& out) {
  const std::int64_t width = args.heads * vision_head_dim;
  const std::int64_t end = first_row + out.rows;
  check_tensor(packed, DType::bf16, end, 3 * width, "attend_segments: packed");
  check_tensor(out, DType::bf16, out.rows, width, "attend_segments: out");
  std::int64_t tiles = 0;
  for (std::int64_t row = first_row; row < end; ++tiles) row = tile_from(segment_begin, row, end).rows.end;
  Arena arena = scratch();
  auto* memory = arena.take<float>(pool_.size() * segment_scratch);
  // One head's tiles one after another: they share K and V.
  pool_.each(tiles * args.heads, [&](std::int64_t task, int thread) {
    Tile tile = tile_from(segment_begin, first_row, end);
    for (std::int64_t i = task % tiles; i > 0; --i) tile = tile_from(segment_begin, tile.rows.end, end);
    const std::int64_t column = task / tiles * vision_head_dim;
    const auto at = [&](std::int64_t row, std::int64_t part) {
      return reinterpret_cast<const std::uint16_t*>(packed.row(row)) + part * width + column;
    };
    kernels_.attend_segment({.q = at(tile.rows.begin, 0),
                             .queries = tile.rows.count(),
                             .k = at(tile.segment.begin, 1),
                             .v = at(tile.segment.begin, 2),
                             .keys = tile.segment.count(),
                             .stride = packed.row_stride,
                             .scale = args.scale,
                             .scratch = memory + thread * segment_scratch,
                             .out = reinterpret_cast<std::uint16_t*>(out.row(tile.rows.begin - first_row)) + column,
                             .out_stride = out.row_stride});
  });
}

}  // namespace m3::ops::cpu
