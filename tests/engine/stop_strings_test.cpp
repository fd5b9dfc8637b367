#include "src/engine/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

namespace m3::engine {
namespace {

StopStrings filter_of(std::vector<std::string> stops) {
  return StopStrings(std::make_shared<const StopList>(std::move(stops)));
}

// Feeds `text` in pieces of `cut` bytes; returns what came out and, in `matched`, what stopped it.
std::string feed(std::vector<std::string> stops, const std::string& text, std::size_t cut, int& matched) {
  StopStrings filter = filter_of(std::move(stops));
  std::string out;
  matched = -1;
  for (std::size_t at = 0; at < text.size(); at += cut) {
    const StopStrings::Result result = filter.push(text.substr(at, cut));
    out += result.text;
    if (result.matched >= 0) {
      matched = result.matched;
      return out;
    }
  }
  return out + filter.flush();
}

TEST(StopStrings, TextEndsBeforeTheFirstStopHoweverItIsCut) {
  for (std::size_t cut = 1; cut < 20; ++cut) {
    int matched = 0;
    EXPECT_EQ(feed({"END", "\n\n"}, "one\ntwo EN END three\n\n", cut, matched), "one\ntwo EN ");
    EXPECT_EQ(matched, 0);
    EXPECT_EQ(feed({"END", "\n\n"}, "one\n\ntwo END", cut, matched), "one");
    EXPECT_EQ(matched, 1);
  }
}

TEST(StopStrings, APartialStopAtTheEndComesBackAsText) {
  for (std::size_t cut = 1; cut < 10; ++cut) {
    int matched = 0;
    EXPECT_EQ(feed({"<stop>"}, "text <sto", cut, matched), "text <sto");
    EXPECT_EQ(matched, -1);
  }
}

TEST(StopStrings, NothingThatMayBeginAStopIsLetOut) {
  StopStrings filter = filter_of({"aab"});
  EXPECT_EQ(filter.push("xaa").text, "x");
  EXPECT_EQ(filter.push("a").text, "a");  // "aa" may still begin it
  const StopStrings::Result result = filter.push("b!");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched, 0);
}

TEST(StopStrings, UnarmedLetsEverythingThrough) {
  StopStrings filter = filter_of({"ab"});
  EXPECT_EQ(filter.push("xab", false).text, "xab");
  EXPECT_EQ(filter.push("a").text, "");
  EXPECT_EQ(filter.push("x", false).text, "ax");
  EXPECT_EQ(filter.push("b").text, "b");  // what came unarmed begins nothing
}

// Against the plain search: pieces of any size, stops that overlap themselves and each other. After each piece all is
// out but what may begin a stop; of the stops that are whole by then the one that begins first ends the text.
TEST(StopStrings, AgreesWithAPlainSearch) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t most) {
    std::string out;
    for (std::size_t length = 1 + random() % most; length > 0; --length) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t count = 1 + random() % 4; count > 0; --count) stops.push_back(word(8));
    StopStrings filter = filter_of(stops);
    std::string text, out;
    for (int matched = -1; matched < 0 && text.size() < 60;) {
      const std::string piece = word(5);
      text += piece;
      std::size_t first = std::string::npos;
      int expected = -1;
      for (std::size_t i = 0; i < stops.size(); ++i) {
        if (text.find(stops[i]) >= first) continue;
        first = text.find(stops[i]);
        expected = static_cast<int>(i);
      }
      const StopStrings::Result result = filter.push(piece);
      out += result.text;
      matched = result.matched;
      ASSERT_EQ(matched, expected) << text;
      std::size_t kept = 0;
      for (const std::string& stop : stops) {
        for (std::size_t length = std::min(stop.size() - 1, text.size()); length > kept; --length) {
          if (text.ends_with(stop.substr(0, length))) kept = length;
        }
      }
      ASSERT_EQ(out, expected >= 0 ? text.substr(0, first) : text.substr(0, text.size() - kept)) << text;
    }
  }
}

// Stops made so that a plain search looks at all of what is held for every byte; ctest's time limit is the judge.
TEST(StopStrings, HostileStopsTakeTimeInProportionToTheText) {
  const std::string half(1 << 18, 'a');
  StopStrings filter = filter_of({half + "c" + half, half + half + "b"});
  for (int i = 0; i < 1 << 19; ++i) ASSERT_EQ(filter.push("a").text, "");
  EXPECT_EQ(filter.push("b").matched, 1);
}

}  // namespace
}  // namespace m3::engine
