// How matmul_narrow_sm90.cuh deals out its work: the kernel runs on Hopper alone, its arithmetic runs here.
#include "src/ops/cuda/matmul_narrow_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace m3::ops::cuda {
namespace {

NarrowShape shape_of(const std::vector<int>& rows, int stages, bool activated, int processors) {
  NarrowShape shape;
  shape.parts = static_cast<int>(rows.size());
  std::ranges::copy(rows, shape.rows);
  shape.tile_rows = activated ? narrow_rows / 2 : narrow_rows;
  shape.stages = stages;
  shape.cost = narrow_cost(shape);
  shape.blocks = narrow_blocks(shape, processors);
  return shape;
}

// Every stage of every tile has one block; blocks agree who shares a tile; no slot is written twice; shares are even.
void check(const NarrowShape& shape) {
  int tiles = 0;
  for (int part = 0; part < shape.parts; ++part) tiles += narrow_tiles(shape, part);
  const int all = tiles * shape.stages;
  ASSERT_EQ(narrow_share(shape, 0), 0);
  ASSERT_EQ(narrow_share(shape, shape.blocks), all);
  std::vector<std::set<int>> sharers(static_cast<std::size_t>(tiles));
  std::vector<int> begun(static_cast<std::size_t>(tiles));  // stages so far, in order
  std::set<int> slots;
  int least = all * 2, most = 0;
  for (int block = 0; block < shape.blocks; ++block) {
    const int end = narrow_share(shape, block + 1);
    int cost = 0;
    ASSERT_LT(narrow_share(shape, block), end);
    for (int at = narrow_share(shape, block); at < end;) {
      const NarrowSegment segment = narrow_segment(shape, at, end);
      ASSERT_LT(segment.tile, tiles);
      const auto tile = static_cast<std::size_t>(segment.tile);
      ASSERT_EQ(segment.first, begun[tile]);
      ASSERT_GT(segment.last, segment.first);
      ASSERT_LE(segment.last, shape.stages);
      begun[tile] = segment.last;
      sharers[tile].insert(block);
      if (segment.first > 0 || segment.last < shape.stages) {
        const int slot = narrow_slot(block, segment.first == 0);
        ASSERT_TRUE(slots.insert(slot).second);
        ASSERT_LT(slot, 2 * shape.blocks);
        // Where whoever adds looks for it.
        ASSERT_EQ(slot, narrow_slot(block, block == narrow_first_block(shape, block, segment.tile)));
      }
      const NarrowPlace place = narrow_place(shape, segment.tile);
      ASSERT_LE(place.row + place.rows, shape.rows[place.part]);
      ASSERT_GT(place.rows, 0);
      const bool half = shape.tile_rows == narrow_rows && place.rows <= narrow_rows / 2;
      cost += (segment.last - segment.first) * (half ? 1 : 2);
      at += segment.last - segment.first;
    }
    least = std::min(least, cost);
    most = std::max(most, cost);
  }
  EXPECT_LE(most - least, 4);
  std::set<int> starts;
  for (int tile = 0; tile < tiles; ++tile) {
    const std::set<int>& blocks = sharers[static_cast<std::size_t>(tile)];
    ASSERT_EQ(begun[static_cast<std::size_t>(tile)], shape.stages);
    for (const int block : blocks) {
      ASSERT_EQ(narrow_first_block(shape, block, tile), *blocks.begin());
      ASSERT_EQ(narrow_last_block(shape, block, tile), *blocks.rbegin());
    }
    // Blocks between the two have parts of the tile, too, and a block's counter is one tile's.
    ASSERT_EQ(static_cast<int>(blocks.size()), *blocks.rbegin() - *blocks.begin() + 1);
    if (blocks.size() > 1) {
      ASSERT_TRUE(starts.insert(*blocks.begin()).second);
    }
  }
}

TEST(NarrowPlan, EveryStageOnce) {
  const std::vector<std::vector<int>> lists = {{8192, 512, 512, 512, 128},
                                               {6144},
                                               {200064},
                                               {1},
                                               {128},
                                               {129},
                                               {256},
                                               {257},
                                               {700, 3, 130, 1, 65, 901},
                                               {3000},
                                               {37, 1, 256, 257, 255, 8, 8, 9}};
  for (const auto& rows : lists) {
    for (const int stages : {1, 2, 3, 4, 8, 12, 24, 48, 64, 96}) {
      for (const int processors : {1, 2, 78, 114, 132, 144}) {
        check(shape_of(rows, stages, false, processors));
        if (rows.size() == 1) check(shape_of(rows, stages, true, processors));
      }
    }
  }
}

TEST(NarrowPlan, PublishedShapesAreEven) {
  // 9856 rows of 6144 columns of eight bits: 14 whole stages for each of 132 multiprocessors.
  const NarrowShape shape = shape_of({8192, 512, 512, 512, 128}, 48, false, 132);
  EXPECT_EQ(narrow_cost(shape), 2 * 14 * 132);
  EXPECT_EQ(shape.blocks, 132);
  for (int block = 0; block < 132; ++block) {
    EXPECT_GE(narrow_share(shape, block + 1) - narrow_share(shape, block), 14);
    // No more than five add up.
    const int tile = narrow_share(shape, block) / shape.stages;
    EXPECT_LE(narrow_last_block(shape, block, tile) - narrow_first_block(shape, block, tile), 4);
  }
}

TEST(NarrowPlan, RowsOfThreads) {
  for (const bool activated : {false, true}) {
    std::vector<int> met(narrow_rows);
    for (int thread = 0; thread < 128 * narrow_groups_of_warps; ++thread) {
      const int row = narrow_first_row(activated, thread);
      for (const int each : {row, row + (activated ? narrow_rows / 2 : 8)}) {
        ASSERT_LT(each, narrow_rows);
        ++met[static_cast<std::size_t>(each)];
      }
    }
    for (const int times : met) EXPECT_EQ(times, 4);  // lanes of the same row
  }
}

TEST(NarrowPlan, ArrangedColumns) {
  std::set<int> places;
  for (int column = 0; column < 128; ++column) places.insert(narrow_arranged(column));
  EXPECT_EQ(places.size(), 128u);
  EXPECT_EQ(*places.rbegin(), 127);
  for (int j = 0; j < 4; ++j) {
    for (int h = 0; h < 2; ++h) {
      for (int l = 0; l < 2; ++l) {
        for (int q = 0; q < 4; ++q) {
          EXPECT_EQ(narrow_arranged(64 + 16 * j + 8 * h + 4 * l + q),
                    64 + 32 * h + 16 * (q / 2) + 8 * (q % 2) + 2 * j + l);
        }
      }
    }
  }
}

}  // namespace
}  // namespace m3::ops::cuda
