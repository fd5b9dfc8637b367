#include "src/vision/placeholders.h"

#include <gtest/gtest.h>

#include "m3/error.h"

namespace m3::vision {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr MediaTokens ids = {.image = 5, .video = 6, .start = 7, .end = 8};

// A text's length stands for its ids.
constexpr auto encode = [](const std::string& text) { return Ids{1000, static_cast<std::int32_t>(text.size())}; };

Pixels sized(Grid grid, bool video, std::vector<double> timestamps = {}) {
  Pixels pixels;
  pixels.grid = grid;
  pixels.video = video;
  pixels.timestamps = std::move(timestamps);
  return pixels;
}

TEST(Placeholders, EachBecomesItsTokens) {
  const Pixels picture = sized({1, 2, 6}, false);
  const Pixels timed = sized({2, 2, 4}, true, {0, 12.5});
  const Pixels bare = sized({2, 2, 2}, true);
  const std::vector<const Pixels*> media = {&picture, &timed, &bare};
  const Ids prompt = {1, 5, 2, 6, 6, 3};
  EXPECT_EQ(expand_placeholders(prompt, media, ids, encode),
            (Ids{1,    7,  5, 5, 5, 8, 2,                     // 6 x 2 patches: 3 tokens
                 1000, 17, 7, 6, 6, 8, 1000, 18, 7, 6, 6, 8,  // "]<]0.0 seconds[>[", "]<]12.5 seconds[>["
                 7,    6,  8, 7, 6, 8, 3}));
  EXPECT_EQ(expand_placeholders(Ids{1, 2}, {}, ids, encode), (Ids{1, 2}));
}

TEST(Placeholders, NumbersAndKindsMustFit) {
  const Pixels picture = sized({1, 2, 2}, false);
  const Pixels video = sized({1, 2, 2}, true);
  const std::vector<const Pixels*> one = {&picture};
  const std::vector<const Pixels*> two = {&video, &picture};
  EXPECT_THROW(expand_placeholders(Ids{1, 2}, one, ids, encode), Error);
  EXPECT_THROW(expand_placeholders(Ids{5, 5}, one, ids, encode), Error);
  EXPECT_THROW(expand_placeholders(Ids{5}, two, ids, encode), Error);
  EXPECT_THROW(expand_placeholders(Ids{5, 6}, two, ids, encode), Error);
  EXPECT_NO_THROW(expand_placeholders(Ids{6, 5}, two, ids, encode));
}

}  // namespace
}  // namespace m3::vision
