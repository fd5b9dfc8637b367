#include "src/engine/stop_strings.h"

#include <gtest/gtest.h>

namespace m3::engine {
namespace {

// Feeds `text` in pieces of `cut` bytes; returns what came out and, in `matched`, what stopped it.
std::string feed(std::vector<std::string> stops, const std::string& text, std::size_t cut, int& matched) {
  StopStrings filter(std::move(stops));
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
  StopStrings filter({"aab"});
  EXPECT_EQ(filter.push("xaa").text, "x");
  EXPECT_EQ(filter.push("a").text, "a");  // "aa" may still begin it
  const StopStrings::Result result = filter.push("b!");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched, 0);
}

TEST(StopStrings, UnarmedLetsEverythingThrough) {
  StopStrings filter({"ab"});
  EXPECT_EQ(filter.push("xab", false).text, "xab");
  EXPECT_EQ(filter.push("a").text, "");
}

}  // namespace
}  // namespace m3::engine
