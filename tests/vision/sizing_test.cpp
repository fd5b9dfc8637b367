#include "src/vision/sizing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "m3/error.h"
#include "tests/vision/cases.h"

namespace m3::vision {
namespace {

TEST(Sizing, EqualsTheReferenceForEveryStoredSize) {
  std::ifstream file(test::vision_data("sizes.txt"));
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string rule;
    std::int64_t low = 0, high = 0;
    Size from, to;
    fields >> rule >> low >> high >> from.height >> from.width >> to.height >> to.width;
    ASSERT_TRUE(fields) << line;
    SizeOptions options;
    if (rule == "area") {
      options = {.rule = SizeRule::area, .min_pixels = low, .max_pixels = high};
    } else {
      options.max_long_side = static_cast<int>(low);
    }
    EXPECT_EQ(resized_size(from, options), to) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 798 + 1128);
}

// The table of docs/images.md: | name | w × h | w × h | tokens | w × h | tokens |.
TEST(Sizing, TheTablesForPeopleAreRight) {
  std::ifstream file(std::filesystem::path(M3_TEST_DATA) / "../../docs/images.md");
  const SizeOptions frame = {.max_pixels = 602'112, .max_long_side = 672};
  std::string line;
  bool videos = false;
  int rows = 0;
  while (std::getline(file, line)) {
    videos = videos || line == "## Videos";
    // Bars, and the letters of the times sign.
    std::ranges::replace_if(
        line, [](char c) { return c == '|' || static_cast<unsigned char>(c) >= 0x80; }, ' ');
    // What stands before the last eight numbers is the name.
    std::istringstream words(line);
    std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    const auto is_number = [](const std::string& word) { return word.find_first_not_of("0123456789") == word.npos; };
    if (all.size() < 9 || !std::all_of(all.end() - 8, all.end(), is_number)) continue;
    std::vector<int> n;
    for (auto word = all.end() - 8; word != all.end(); ++word) n.push_back(std::stoi(*word));
    SizeOptions options = videos ? frame : SizeOptions{};
    EXPECT_EQ(resized_size({n[0], n[1]}, options), (Size{n[2], n[3]})) << line;
    EXPECT_EQ(grid_of({n[2], n[3]}, 1).tokens(), n[4]) << line;
    options.rule = SizeRule::area;
    EXPECT_EQ(resized_size({n[0], n[1]}, options), (Size{n[5], n[6]})) << line;
    EXPECT_EQ(grid_of({n[5], n[6]}, 1).tokens(), n[7]) << line;
    ++rows;
  }
  EXPECT_GE(rows, 19);
}

struct Published {
  Size from, area, long_side;
  std::int64_t area_tokens, long_side_tokens;
};

TEST(Sizing, ThePublishedExamplesHold) {
  const std::vector<Published> examples = {
      {{1920, 1080}, {896, 504}, {1932, 1092}, 576, 2691}, {{30, 20}, {84, 56}, {168, 112}, 6, 24},
      {{336, 336}, {336, 336}, {336, 336}, 144, 144},      {{2016, 2016}, {672, 672}, {2016, 2016}, 576, 5184},
      {{3000, 2000}, {812, 532}, {2016, 1344}, 551, 3456}, {{1000, 100}, {1008, 112}, {1120, 112}, 144, 160},
  };
  for (const Published& one : examples) {
    const Size area = resized_size(one.from, {.rule = SizeRule::area});
    EXPECT_EQ(area, one.area) << one.from.width << " " << area.width << " " << area.height;
    EXPECT_EQ(resized_size(one.from, {}), one.long_side) << one.from.width;
    EXPECT_EQ(grid_of(one.area, 1).tokens(), one.area_tokens);
    EXPECT_EQ(grid_of(one.long_side, 1).tokens(), one.long_side_tokens);
  }
}

// Of the vendor's contract: which long sides may be asked for, and that each gives more tokens than the one before.
TEST(Sizing, TheVendorsLongSides) {
  const std::pair<int, std::int64_t> square[] = {{252, 81}, {504, 324}, {1008, 1296}, {2016, 5184}, {3584, 16'384}};
  for (const auto& [cap, tokens] : square) {
    const SizeOptions options = {.max_long_side = cap};
    EXPECT_NO_THROW(check_size_options(options));
    EXPECT_EQ(grid_of(resized_size({3584, 3584}, options), 1).tokens(), tokens) << cap;
  }
  EXPECT_EQ(resized_size({1600, 56}, {}), (Size{2016, 84})) << "the cap before the short side's 112";
  EXPECT_EQ(resized_size({560, 70}, {}), (Size{896, 112})) << "8:1, the short side raised";
  EXPECT_EQ(resized_size({8000, 1000}, {}), (Size{2016, 252})) << "8:1, shrunk";
}

TEST(Sizing, ThinPicturesKeepOneRowOfTokens) {
  EXPECT_EQ(resized_size({600, 10}, {.rule = SizeRule::area}), (Size{588, 28}));
  EXPECT_EQ(resized_size({3000, 15}, {}), (Size{2016, 28}));
}

TEST(Sizing, TokensGrowWithTheLongSide) {
  std::int64_t before = 0;
  for (int cap = 112; cap <= 3584; cap += 28) {
    const std::int64_t tokens = grid_of(resized_size({4000, 4000}, {.max_long_side = cap}), 1).tokens();
    EXPECT_GT(tokens, before) << cap;
    before = tokens;
  }
  EXPECT_EQ(before, 16'384);
}

TEST(Sizing, RefusesWhatCannotBe) {
  EXPECT_THROW(resized_size({0, 5}, {}), Error);
  EXPECT_NO_THROW(resized_size({200, 1}, {}));
  EXPECT_THROW(resized_size({201, 1}, {}), Error);
  EXPECT_THROW(resized_size({1, 2'000'000'000}, {}), Error);
  for (const int cap : {0, 84, 113, 2000, 3612}) EXPECT_THROW(check_size_options({.max_long_side = cap}), Error) << cap;
  for (const int cap : {112, 252, 2016, 3584}) EXPECT_NO_THROW(check_size_options({.max_long_side = cap})) << cap;
  EXPECT_THROW(check_size_options({.min_pixels = 0}), Error);
  EXPECT_THROW(check_size_options({.min_pixels = 100, .max_pixels = 99}), Error);
  EXPECT_THROW(check_size_options({.max_pixels = largest_area + 1}), Error);
  EXPECT_EQ(parse_size_rule("area"), SizeRule::area);
  EXPECT_THROW(parse_size_rule("tiles"), Error);
}

}  // namespace
}  // namespace m3::vision
