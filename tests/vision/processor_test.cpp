// Resizing, normalisation and the order of patches against the processor of transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "m3/error.h"
#include "src/vision/preprocess.h"
#include "src/vision/resize.h"
#include "tests/vision/cases.h"

namespace m3::vision {
namespace {

using Json = nlohmann::json;

Json stored_cases() { return Json::parse(read_text_file(test::vision_data("processor.json"), 1 << 20)); }

TEST(Processor, PicturesAreEqualToTheLastBit) {
  const Json cases = stored_cases();  // a temporary would be gone before its part is read
  for (const Json& one : cases.at("pictures")) {
    SCOPED_TRACE(one.dump());
    const Picture source = test::pattern(one.at("pattern").get<std::string>(), one.at("width").get<int>(),
                                         one.at("height").get<int>(), one.at("seed").get<std::uint32_t>());
    ImageOptions options;
    options.size.rule = parse_size_rule(one.at("rule").get<std::string>());
    const Size size = resized_size({source.width, source.height}, options.size);
    EXPECT_EQ(test::sha256(resize(source, size.width, size.height).rgb), one.at("resized_sha256").get<std::string>());

    const Pixels pixels = image_pixels(source, options);
    const auto grid = one.at("grid").get<std::vector<std::int64_t>>();
    EXPECT_EQ(pixels.grid, (Grid{grid[0], grid[1], grid[2]}));
    EXPECT_FALSE(pixels.video);
    for (const auto& [place, value] : one.at("samples").items()) {
      EXPECT_FLOAT_EQ(pixels.values.at(std::stoul(place)), value.get<float>()) << place;
    }
    EXPECT_EQ(test::sha256(pixels.values), one.at("values_sha256").get<std::string>());
  }
}

TEST(Processor, PlainKernelsResizeAlike) {
  const std::vector<std::array<int, 4>> sizes = {
      {1, 1, 28, 28},     {1, 9, 7, 3},    {5, 1, 3, 2},    {31, 3, 28, 28},  {64, 5, 63, 4},  {97, 43, 10, 90},
      {300, 200, 84, 56}, {40, 33, 40, 7}, {33, 40, 7, 40}, {700, 6, 28, 28}, {11, 4, 200, 4}, {2, 700, 2, 28}};
  for (const auto& [from_width, from_height, width, height] : sizes) {
    const Picture source = test::pattern("noise", from_width, from_height, 7);
    EXPECT_EQ(resize(source, width, height).rgb, resize(source, width, height, Kernels::plain).rgb)
        << from_width << "x" << from_height << " to " << width << "x" << height;
  }
}

TEST(Processor, RowsInPiecesAreThoseOfTheWhole) {
  const std::vector<std::array<int, 4>> sizes = {{50, 40, 56, 56}, {50, 400, 28, 28}, {400, 50, 28, 50},
                                                 {28, 90, 28, 30}, {28, 30, 28, 30},  {9, 5, 4, 300}};
  for (const auto& [from_width, from_height, width, height] : sizes) {
    const Picture source = test::pattern("noise", from_width, from_height, 3);
    const Picture whole = resize(source, width, height);
    for (const int piece : {1, 3, 28}) {
      Resizer resizer(source, width, height);
      LargeVector<std::uint8_t> rows(whole.rgb.size());
      for (int y = 0; y < height; y += piece) {
        resizer.next(std::min(piece, height - y), rows.data() + std::ptrdiff_t{y} * width * 3);
      }
      EXPECT_EQ(rows == whole.rgb, true) << width << "x" << height << " by " << piece;
    }
  }
}

TEST(Processor, VideosAreEqualToTheLastBit) {
  const Json cases = stored_cases();  // a temporary would be gone before its part is read
  for (const Json& one : cases.at("videos")) {
    SCOPED_TRACE(one.dump());
    std::vector<Picture> frames;
    for (std::uint32_t f = 0; f < one.at("frames").get<std::uint32_t>(); ++f) {
      frames.push_back(test::pattern(one.at("pattern").get<std::string>(), one.at("width").get<int>(),
                                     one.at("height").get<int>(), one.at("seed").get<std::uint32_t>() + f));
    }
    VideoOptions options;
    options.size.rule = SizeRule::area;
    const Pixels pixels = video_pixels(frames, options);
    EXPECT_TRUE(pixels.video);
    std::vector<std::vector<std::int64_t>> grids;
    std::int64_t row = 0;
    for (const Segment& segment : segments(pixels.grid)) {
      EXPECT_EQ(segment.first_row, row);
      row += segment.grid.patches();
      grids.push_back({segment.grid.t, segment.grid.h, segment.grid.w});
    }
    EXPECT_EQ(row, pixels.grid.patches());
    EXPECT_EQ(grids, one.at("segments").get<decltype(grids)>());
    EXPECT_EQ(test::sha256(pixels.values), one.at("values_sha256").get<std::string>());
  }
}

TEST(Processor, PatchesGoByBlocksOfTwoByTwo) {
  // The red level of each pixel names the patch it lies in.
  Picture picture = {56, 56, {}};
  picture.rgb.assign(56 * 56 * 3, 0);
  for (std::size_t i = 0; i < 56 * 56; ++i)
    picture.rgb[i * 3] = static_cast<std::uint8_t>(i / 56 / 14 * 4 + i % 56 / 14);
  const Pixels pixels = make_pixels({&picture, 1});
  ASSERT_EQ(pixels.grid, (Grid{1, 4, 4}));
  const std::vector<int> expected = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const Normalisation levels;
  for (std::size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(pixels.values[row * 1176], levels.of(0)[expected[row]]) << row;
    EXPECT_EQ(pixels.values[row * 1176 + 391], levels.of(0)[expected[row]]) << "the second frame, row " << row;
    EXPECT_EQ(pixels.values[row * 1176 + 392], levels.of(1)[0]) << "green, row " << row;
  }
}

TEST(Processor, EveryKernelNormalisesAsTheTableSays) {
  const Normalisation levels;
  for (const PatchShape& shape : {PatchShape{}, PatchShape{.temporal = 1}, PatchShape{.temporal = 3, .patch = 4},
                                  PatchShape{.patch = 16, .merge = 1}, PatchShape{.temporal = 1, .patch = 17}}) {
    for (const int count : {1, 2, 3}) {
      const int width = 3 * shape.factor(), height = 2 * shape.factor();
      std::vector<Picture> frames;
      for (int f = 0; f < count; ++f)
        frames.push_back(test::pattern("noise", width, height, static_cast<std::uint32_t>(f)));
      std::vector<float> expected;
      for (int first = 0; first < count; first += shape.temporal) {
        for (int patch = 0; patch < 6 * shape.merge * shape.merge; ++patch) {
          const int block = patch / (shape.merge * shape.merge), inside = patch % (shape.merge * shape.merge);
          const int y = (block / 3 * shape.merge + inside / shape.merge) * shape.patch;
          const int x = (block % 3 * shape.merge + inside % shape.merge) * shape.patch;
          for (int i = 0; i < 3 * shape.temporal * shape.patch * shape.patch; ++i) {
            const int channel = i / (shape.temporal * shape.patch * shape.patch);
            const int frame = std::min(first + i / (shape.patch * shape.patch) % shape.temporal, count - 1);
            const int row = y + i / shape.patch % shape.patch, column = x + i % shape.patch;
            const std::ptrdiff_t at = (std::ptrdiff_t{row} * width + column) * 3 + channel;
            expected.push_back(levels.of(channel)[frames[static_cast<std::size_t>(frame)].rgb.data()[at]]);
          }
        }
      }
      for (const Kernels kernels : {Kernels::fastest, Kernels::plain}) {
        EXPECT_EQ(make_pixels(frames, shape, levels, kernels).values == expected, true)
            << shape.temporal << " frames of patches of " << shape.patch << ", " << count << " frames";
      }
    }
  }
}

TEST(Processor, AnOddLastFrameIsRepeated) {
  const std::vector<Picture> three = {test::pattern("noise", 56, 28, 1), test::pattern("noise", 56, 28, 2),
                                      test::pattern("noise", 56, 28, 3)};
  std::vector<Picture> four = three;
  four.push_back(three.back());
  const Pixels odd = make_pixels(three);
  EXPECT_EQ(odd.grid, (Grid{2, 2, 4}));
  EXPECT_EQ(odd.values, make_pixels(four).values);
}

TEST(Processor, TimestampsAreText) {
  EXPECT_EQ(timestamp_text(0), "]<]0.0 seconds[>[");
  EXPECT_EQ(timestamp_text(130 / 25.0), "]<]5.2 seconds[>[");
  EXPECT_EQ(timestamp_text(3661.25), "]<]3661.2 seconds[>[");
}

TEST(Processor, VideosBeyondTheirBudget) {
  const std::vector<Picture> frames(7, test::pattern("slope", 400, 300, 0));
  VideoOptions options;
  options.size.rule = SizeRule::area;
  options.total_pixels = 8 * 40'000;
  const Pixels shrunk = video_pixels(frames, options);
  EXPECT_LE(shrunk.grid.patches() * 14 * 14 * 2, options.total_pixels);
  EXPECT_EQ(shrunk.grid.t, 4);
  options.total_pixels = 8 * 3000;
  EXPECT_THROW(video_pixels(frames, options), Error);
  options.size.rule = SizeRule::long_side;
  options.total_pixels = 8 * 100'000;
  EXPECT_THROW(video_pixels(frames, options), Error);
  options.size.max_long_side = 224;
  EXPECT_EQ(video_pixels(frames, options).grid, (Grid{4, 12, 16}));
  const std::vector<Picture> mixed = {frames[0], test::pattern("slope", 28, 28, 0)};
  EXPECT_THROW(video_pixels(mixed, {}), Error);
  EXPECT_THROW(video_pixels(std::span<const Picture>(), {}), Error);
}

}  // namespace
}  // namespace m3::vision
