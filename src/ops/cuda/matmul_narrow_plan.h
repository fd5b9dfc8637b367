// Who does what in the products of matmul_narrow_sm90.cuh: tiles of W by stages of K, dealt out evenly over the blocks of
// threads, and where a thread's numbers lie. Arithmetic alone, so that the processor can test it.
#pragma once

#if defined(__CUDACC__)
#define M3_BOTH __host__ __device__
#else
#define M3_BOTH
#endif

namespace m3::ops::cuda {

inline constexpr int narrow_rows = 256;  // of W in a tile: activated, 128 of gate and the same of up
inline constexpr int narrow_groups_of_warps = 4;
inline constexpr int narrow_items = 64;  // of x in a tile, at most
inline constexpr int narrow_parts = 8;
inline constexpr int narrow_most_cost = 1 << 22;  // times blocks, still an int

// The products of one list of items. A stage is a tile's rows by 128 bytes of each, as it is copied.
struct NarrowShape {
  int parts = 0;
  int rows[narrow_parts] = {};  // of each part; activated: one part, of two weights
  int tile_rows = narrow_rows;  // activated: half of it
  int stages = 0;               // of K
  int cost = 0;                 // narrow_cost of the rest
  int blocks = 1;
};

// Rows `row` … of a part.
struct NarrowPlace {
  int part, row, rows;
};

// Stages first … last - 1 of one tile.
struct NarrowSegment {
  int tile, first, last;
};

M3_BOTH inline int narrow_tiles(const NarrowShape& shape, int part) {
  return (shape.rows[part] + shape.tile_rows - 1) / shape.tile_rows;
}

M3_BOTH inline NarrowPlace narrow_place(const NarrowShape& shape, int tile) {
  int part = 0;
  for (; part + 1 < shape.parts && tile >= narrow_tiles(shape, part); ++part) tile -= narrow_tiles(shape, part);
  const int row = tile * shape.tile_rows;
  const int left = shape.rows[part] - row;
  return {part, row, left < shape.tile_rows ? left : shape.tile_rows};
}

// What a stage is worth: 2, or 1 where no more than half of the rows are there, which are copied alone.
M3_BOTH inline int narrow_last_cost(const NarrowShape& shape, int part) {
  const int rest = shape.rows[part] % shape.tile_rows;
  return rest != 0 && rest <= narrow_rows / 2 && shape.tile_rows == narrow_rows ? 1 : 2;
}

M3_BOTH inline int narrow_cost(const NarrowShape& shape) {
  int cost = 0;
  for (int part = 0; part < shape.parts; ++part) {
    const int tiles = narrow_tiles(shape, part);
    if (tiles > 0) cost += shape.stages * (2 * (tiles - 1) + narrow_last_cost(shape, part));
  }
  return cost;
}

// How many stages, of all tiles one after another, begin before `cost`.
M3_BOTH inline int narrow_stages_before(const NarrowShape& shape, int cost) {
  int before = 0;
  for (int part = 0; part < shape.parts; ++part) {
    const int tiles = narrow_tiles(shape, part);
    if (tiles == 0) continue;
    const int whole = shape.stages * (tiles - 1);
    if (cost < 2 * whole) return before + (cost + 1) / 2;
    cost -= 2 * whole;
    before += whole;
    const int each = narrow_last_cost(shape, part);
    if (cost < each * shape.stages) return before + (cost + each - 1) / each;
    cost -= each * shape.stages;
    before += shape.stages;
  }
  return before;
}

// The first of a block's stages; of the block behind the last: their number.
M3_BOTH inline int narrow_share(const NarrowShape& shape, int block) {
  return narrow_stages_before(shape, shape.cost * block / shape.blocks);
}

// The segment that begins at stage `at` and ends before `end` and with its tile.
M3_BOTH inline NarrowSegment narrow_segment(const NarrowShape& shape, int at, int end) {
  const int tile = at / shape.stages;
  const int begin = tile * shape.stages;
  const int left = end - begin;
  return {tile, at - begin, left < shape.stages ? left : shape.stages};
}

// Where a block's sums of a tile wait that several blocks have parts of: two places a block, since the tile may be its last,
// which it begins, or its first.
M3_BOTH inline int narrow_slot(int block, bool begins_tile) { return 2 * block + (begins_tile ? 1 : 0); }
// The first and the last of the blocks that have parts of the tile of `block`'s segment.
M3_BOTH inline int narrow_first_block(const NarrowShape& shape, int block, int tile) {
  const int begin = tile * shape.stages;
  while (block > 0 && narrow_share(shape, block) > begin) --block;
  return block;
}
M3_BOTH inline int narrow_last_block(const NarrowShape& shape, int block, int tile) {
  const int end = (tile + 1) * shape.stages;
  while (block + 1 < shape.blocks && narrow_share(shape, block + 1) < end) ++block;
  return block;
}

// Blocks of threads for so many multiprocessors: each has three stages at least.
M3_BOTH inline int narrow_blocks(const NarrowShape& shape, int processors) {
  const int most = shape.cost / 6;
  return most < 1 ? 1 : most < processors ? most : processors;
}

// Of a thread that multiplies, the first of its two rows of W in a stage. The second lies 8 on; activated, 128 on: up's.
// Lane 4 g + j has row g of its warp's.
M3_BOTH inline int narrow_first_row(bool activated, int thread) {
  const int g = thread % 32 / 4;
  return thread / 32 * (activated ? 8 : 16) + g;
}

// Where column `column` of an arranged row stands (see takes_arranged, matmul_sm90.h).
M3_BOTH inline int narrow_arranged(int column) {
  const int q = column & 3;
  return (column & ~63) + ((column >> 3) & 1) * 32 + (q >> 1) * 16 + (q & 1) * 8 + ((column >> 4) & 3) * 2 +
         ((column >> 2) & 1);
}

}  // namespace m3::ops::cuda
