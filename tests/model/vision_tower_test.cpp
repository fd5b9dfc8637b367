// The vision tower against transformers (spec §4), and that neither company nor threads change a feature.
#include "src/model/vision_tower.h"

#include <gtest/gtest.h>

#include <cstring>

#include "src/base/error.h"
#include "tests/support/device_judge.h"
#include "tests/support/golden_case.h"
#include "tests/support/ops_data.h"

namespace m3::model {
namespace {

using test::VisionCase;

struct Where {
  bool walled = false;  // behind a wall, as a device is
  std::optional<VisionBlocks> blocks = {};
};

// A tower of a golden case with its memory.
class TestTower {
 public:
  TestTower(const VisionCase& golden, const ops::BackendOptions& options, int threads, std::int64_t patches,
            const Where& where = {})
      : checkpoint_(golden.open()),
        pool_(threads),
        backend_(make(ops::make_backend(options, pool_), where.walled)),
        tower_(checkpoint_.config(), checkpoint_.vision(), *backend_,
               where.blocks.value_or(VisionBlocks::of(*backend_))) {
    if (tower_.placed_bytes() > 0) tower_.place_weights({}, {});
    memory_ = backend_->allocate(tower_.workspace_bytes(patches));
    tower_.bind_workspace(memory_.bytes(), patches);
  }

  VisionTower& tower() { return tower_; }

  // Features [rows, hidden] as fp32.
  std::vector<float> features(std::span<const PatchGrid> grids, std::span<const float> pixels) {
    std::int64_t rows = 0;
    for (const PatchGrid& grid : grids) rows += tower_.feature_rows(grid);
    const std::int64_t columns = tower_.feature_columns();
    test::Matrix out(tower_.feature_dtype(), rows, columns);
    tower_.forward(grids, pixels, out.view());
    return out.values();
  }
  // The same in pieces of so many operations; counts them.
  std::vector<float> features_by(double operations, std::span<const PatchGrid> grids, std::span<const float> pixels,
                                 int& pieces) {
    std::int64_t rows = 0;
    for (const PatchGrid& grid : grids) rows += tower_.feature_rows(grid);
    test::Matrix out(tower_.feature_dtype(), rows, tower_.feature_columns());
    tower_.begin(grids, pixels, out.view());
    for (pieces = 1; !tower_.advance(operations); ++pieces) {}
    return out.values();
  }

 private:
  static std::unique_ptr<ops::Backend> make(std::unique_ptr<ops::Backend> inner, bool walled) {
    if (!walled) return inner;
    return std::make_unique<test::DeviceJudge>(std::move(inner), std::int64_t{1} << 30);
  }

  Checkpoint checkpoint_;
  ThreadPool pool_;
  std::unique_ptr<ops::Backend> backend_;
  VisionTower tower_;
  ops::Memory memory_;
};

std::vector<PatchGrid> grids_of(const VisionCase& golden) {
  std::vector<PatchGrid> grids;
  for (const VisionCase::Media& media : golden.media) grids.push_back({media.t, media.h, media.w});
  return grids;
}

class Tower : public testing::TestWithParam<std::string> {};

TEST_P(Tower, Fp32NumericsEqualTheReference) {
  const VisionCase golden(GetParam());
  TestTower tower(golden, test::scalar_options(ops::Numerics::fp32), 2, 1024);
  const std::vector<float> ours = tower.features(grids_of(golden), golden.pixels);
  const std::vector<float> expected = golden.floats("features");
  ASSERT_EQ(ours.size(), expected.size());
  for (std::int64_t row = 0; row < golden.shape("features")[0]; ++row) {
    EXPECT_LT(test::row_error(ours.data(), expected.data(), row, golden.shape("features")[1]), 1e-4) << "row " << row;
  }
}

TEST_P(Tower, Bf16IsAsGoodAsTheReferencesBf16) {
  const VisionCase golden(GetParam());
  const std::vector<float> expected = golden.floats("features");
  std::vector<double> theirs;
  for (const float error : golden.floats("bf16_error.features")) theirs.push_back(error);
  for (const ops::BackendOptions& options : test::all_options()) {
    TestTower tower(golden, options, 2, 1024);
    const std::vector<float> ours = tower.features(grids_of(golden), golden.pixels);
    std::vector<double> errors;
    for (std::int64_t row = 0; row < golden.shape("features")[0]; ++row) {
      errors.push_back(test::row_error(ours.data(), expected.data(), row, golden.shape("features")[1]));
    }
    EXPECT_LE(test::median(errors), test::median(theirs)) << test::name_of(options);
    EXPECT_GT(test::median(errors), 1e-5) << test::name_of(options);
  }
}

// Alone or together, in one pass or many, on any number of threads: bit for bit.
TEST_P(Tower, CompanyPassesAndThreadsChangeNothing) {
  const VisionCase golden(GetParam());
  const std::vector<PatchGrid> grids = grids_of(golden);
  for (const ops::BackendOptions& options : test::all_options()) {
    TestTower tower(golden, options, 1, 2048);
    const std::vector<float> whole = tower.features(grids, golden.pixels);
    std::int64_t most = 0;
    for (const PatchGrid& grid : grids) most = std::max(most, tower.tower().segment_patches(grid));
    for (const auto& [threads, patches] : std::initializer_list<std::pair<int, std::int64_t>>{{3, most}, {2, 700}}) {
      TestTower other(golden, options, threads, patches);
      EXPECT_EQ(other.features(grids, golden.pixels), whole) << test::name_of(options) << ", " << threads << " threads";
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < grids.size(); ++i) {
      const std::span<const float> pixels =
          std::span(golden.pixels)
              .subspan(static_cast<std::size_t>(golden.media[i].first_pixel),
                       static_cast<std::size_t>(grids[i].patches() * tower.tower().pixel_columns()));
      const std::vector<float> alone = tower.features({&grids[i], 1}, pixels);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + static_cast<std::ptrdiff_t>(at)))
          << test::name_of(options) << ", picture " << i;
      at += alone.size();
    }
  }
}

// The judge and the fastest of the others: what is tested with these does not depend on the instruction set.
std::vector<ops::BackendOptions> two_options() {
  const std::vector<ops::BackendOptions> all = test::all_options();
  return all.size() > 1 ? std::vector{all.front(), all.back()} : all;
}

// On a device's memory: nothing of the host's is handed to an operation, and nothing of the device's is touched here.
TEST_P(Tower, ADeviceGivesTheSame) {
  const VisionCase golden(GetParam());
  const std::vector<PatchGrid> grids = grids_of(golden);
  for (const ops::BackendOptions& options : two_options()) {
    TestTower plain(golden, options, 2, 1024);
    const std::vector<float> expected = plain.features(grids, golden.pixels);
    std::int64_t most = 0;
    for (const PatchGrid& grid : grids) most = std::max(most, plain.tower().segment_patches(grid));
    TestTower walled(golden, options, 2, 1024, {.walled = true});
    EXPECT_EQ(walled.features(grids, golden.pixels), expected) << test::name_of(options);
    TestTower small(golden, options, 2, most,
                    {.walled = true, .blocks = VisionBlocks{.rows = 40, .pixel_rows = 24, .operations = 1}});
    EXPECT_EQ(small.features(grids, golden.pixels), expected) << test::name_of(options) << ", small blocks";
  }
}

TEST_P(Tower, PiecesChangeNothing) {
  const VisionCase golden(GetParam());
  const std::vector<PatchGrid> grids = grids_of(golden);
  for (const ops::BackendOptions& options : two_options()) {
    for (const bool walled : {false, true}) {
      TestTower tower(golden, options, 2, 1024,
                      {.walled = walled, .blocks = VisionBlocks{.rows = 64, .pixel_rows = 32, .operations = 1}});
      const std::vector<float> whole = tower.features(grids, golden.pixels);
      int each = 0, some = 0, one = 0;
      EXPECT_EQ(tower.features_by(1, grids, golden.pixels, each), whole) << test::name_of(options);
      EXPECT_EQ(tower.features_by(3e7, grids, golden.pixels, some), whole) << test::name_of(options);
      EXPECT_EQ(tower.features_by(1e18, grids, golden.pixels, one), whole) << test::name_of(options);
      EXPECT_GT(each, 20);
      EXPECT_GT(each, some);
      EXPECT_GT(some, one);
      if (!walled) {
        EXPECT_EQ(one, 1);
      }
      // Given up in the middle for another.
      test::Matrix unused(tower.tower().feature_dtype(), tower.tower().feature_rows(grids[0]),
                          tower.tower().feature_columns());
      const auto first = static_cast<std::size_t>(grids[0].patches() * tower.tower().pixel_columns());
      tower.tower().begin({grids.data(), 1}, std::span(golden.pixels).first(first), unused.view());
      for (int i = 0; i < 5; ++i) tower.tower().advance(1);
      EXPECT_EQ(tower.features(grids, golden.pixels), whole) << test::name_of(options);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Tower, testing::Values("vision_images", "vision_clips", "vision_sizes"),
                         [](const auto& tested) { return tested.param; });

// Longer than a block of rows, so that one picture's attention spans several.
TEST(TowerBlocks, AnEvenPictureOfManyBlocksIsTheSameOnEveryBackend) {
  const VisionCase golden("vision_images");
  const PatchGrid grid{1, 26, 46};
  test::Random random(4);
  const std::vector<float> pixels = test::fp32_values(random, grid.patches() * 1176);
  TestTower judge(golden, test::scalar_options(), 2, grid.patches());
  const std::vector<float> expected = judge.features({&grid, 1}, pixels);
  for (const ops::BackendOptions& options : test::cpu_options()) {
    TestTower tower(golden, options, 2, grid.patches());
    test::expect_norm_close(tower.features({&grid, 1}, pixels), expected, 0.01, test::name_of(options));
  }
}

std::string error_of(TestTower& tower, const PatchGrid& grid) {
  std::vector<float> pixels(static_cast<std::size_t>(std::max<std::int64_t>(0, grid.patches()) * 1176));
  try {
    tower.tower().check(grid);
    tower.features({&grid, 1}, pixels);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "no error";
}

TEST(TowerErrors, GridsThatDoNotFitAreRefused) {
  TestTower tower(VisionCase("vision_images"), test::scalar_options(), 1, 64);
  EXPECT_EQ(error_of(tower, {1, 4, 16}), "no error");
  EXPECT_NE(error_of(tower, {1, 0, 4}).find("must be from 1"), std::string::npos);
  EXPECT_NE(error_of(tower, {-1, 4, 4}).find("must be from 1"), std::string::npos);
  EXPECT_NE(error_of(tower, {1, 4, 5}).find("multiples of 2"), std::string::npos);
  EXPECT_NE(error_of(tower, {2, 4, 16}).find("128 patches, but 64 were planned for"), std::string::npos);
}

TEST(TowerErrors, OtherHeadsAreRefusedByName) {
  const VisionCase golden("vision_images");
  const Checkpoint checkpoint = golden.open();
  ModelConfig config = checkpoint.config();
  config.vision->num_attention_heads = 4;
  ThreadPool pool(1);
  const auto backend = ops::make_backend(test::scalar_options(), pool);
  try {
    VisionTower(config, checkpoint.vision(), *backend);
    FAIL() << "heads of 40 values were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("heads of 40 values"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace m3::model
