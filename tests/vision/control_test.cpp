// What decoders tell of their memory, and that they let themselves be stopped: every file that the other tests decode.
#include <gtest/gtest.h>

#include <algorithm>

#include "m3/error.h"
#include "src/vision/decode_image.h"
#include "src/vision/video_reader.h"
#include "tests/support/pictures.h"
#include "tests/vision/cases.h"

namespace m3::vision {
namespace {

using test::read_bytes;
using test::vision_data;

struct Stop {};

// Counts what it is told, and throws at a number of check()s or at the first reserve().
struct Counted {
  explicit Counted(int stop_at = 0, bool stop_reserve = false) {
    control.check = [this, stop_at] {
      if (++checks == stop_at) throw Stop();
    };
    control.reserve = [this, stop_reserve](std::int64_t bytes) {
      most = std::max(most, bytes);
      if (stop_reserve) throw Stop();
    };
  }
  DecodeControl control;
  int checks = 0;
  std::int64_t most = 0;
};

std::vector<std::filesystem::path> files(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(vision_data(folder))) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

void decode(const std::vector<std::byte>& bytes, bool video, const DecodeControl& control, std::int64_t& area) {
  if (!video) {
    const DecodedImage image = decode_image(bytes, {}, control);
    area = image.stored.area();
    EXPECT_EQ(std::ssize(image.picture.rgb), 3 * area);
    return;
  }
  VideoReader reader(bytes, {}, control);
  area = reader.stored().area();
  std::vector<std::size_t> all(reader.starts().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  reader.read(all, [](const Picture&, double) {});
}

TEST(DecodeControl, EveryKindTellsItsMemoryAndCanBeStopped) {
  int count = 0;
  for (const char* folder : {"pictures", "videos"}) {
    const bool video = folder[0] == 'v';
    for (const auto& path : files(folder)) {
      SCOPED_TRACE(path.filename());
      const std::vector<std::byte> bytes = read_bytes(path);
      Counted whole;
      std::int64_t area = 0;
      decode(bytes, video, whole.control, area);
      EXPECT_GE(whole.most, 3 * area);
      EXPECT_LE(whole.most, 100 * area);
      EXPECT_GE(whole.checks, 1);
      for (const int at : {1, (whole.checks + 1) / 2, whole.checks}) {
        Counted stopped(at);
        EXPECT_THROW(decode(bytes, video, stopped.control, area), Stop) << at << " of " << whole.checks;
        EXPECT_EQ(stopped.checks, at);  // and is not asked again
      }
      Counted refused(0, true);
      EXPECT_THROW(decode(bytes, video, refused.control, area), Stop);
      ++count;
    }
  }
  EXPECT_GE(count, 80);
}

// By its header alone, so that whoever waits can refuse it before there is work: nothing is asked for or looked at first.
TEST(DecodeControl, APictureTellsItsSizeFirst) {
  for (const auto& path : files("pictures")) {
    SCOPED_TRACE(path.filename());
    const std::vector<std::byte> bytes = read_bytes(path);
    const DecodedImage image = decode_image(bytes);
    Size told;
    DecodeControl control;
    control.check = [] { ADD_FAILURE() << "it works before it tells the size"; };
    control.reserve = [](std::int64_t) { ADD_FAILURE() << "it takes memory before it tells the size"; };
    control.sized = [&](Size size) {
      told = size;
      throw Stop();
    };
    // FFmpeg reads the blocks' headers of a GIF through a function that checks.
    if (image.type == MediaType::gif) control.check = {};
    EXPECT_THROW(decode_image(bytes, {}, control), Stop);
    const bool behind = path.filename() == "orientation-6.png";  // its orientation stands behind the pixels
    EXPECT_EQ(told, behind ? image.stored : (Size{image.picture.width, image.picture.height}));
  }
}

// Of many passes, of rows that are held, of frames: what they take beside the picture.
TEST(DecodeControl, MemoryByTheWayAFileIsStored) {
  const auto bytes_a_pixel = [](const char* name) {
    Counted counted;
    std::int64_t area = 0;
    const bool video = std::string_view(name).starts_with("videos");
    decode(read_bytes(vision_data(name)), video, counted.control, area);
    return static_cast<double>(counted.most) / static_cast<double>(area);
  };
  EXPECT_EQ(bytes_a_pixel("pictures/420.jpg"), 3);
  EXPECT_GT(bytes_a_pixel("pictures/progressive.jpg"), 5.9);
  EXPECT_EQ(bytes_a_pixel("pictures/rgb-8.png"), 6);
  EXPECT_EQ(bytes_a_pixel("pictures/interlaced-1x1.png"), 6);
  EXPECT_EQ(bytes_a_pixel("pictures/interlaced.png"), 7);
  EXPECT_GT(bytes_a_pixel("pictures/animated.gif"), 12);
  EXPECT_GT(bytes_a_pixel("videos/h264.mp4"), 30);
}

TEST(DecodeControl, VideosOfManyPixels) {
  const auto error = [](const std::string& gif, const VideoLimits& limits) -> std::string {
    try {
      VideoReader reader(std::as_bytes(std::span(gif)), limits);
      const std::size_t last = reader.starts().size() - 1;
      reader.read({&last, 1}, [](const Picture&, double) {});
    } catch (const Error& problem) {
      EXPECT_EQ(problem.kind(), ErrorKind::input);
      return problem.what();
    }
    return "";
  };
  EXPECT_EQ(error(test::thin_gif(100, 100, 50), {}), "");
  EXPECT_EQ(error(test::thin_gif(100, 100, 50), {.all_pixels = 500'000}), "");
  EXPECT_NE(error(test::thin_gif(100, 100, 51), {.all_pixels = 500'000}).find("51 frames of 100x100"),
            std::string::npos);
  EXPECT_NE(error(test::thin_gif(8000, 8000, 2), {}).find("pixels, more than the"), std::string::npos);
  EXPECT_NE(error(test::thin_gif(6000, 6000, 700), {}).find("25000000000 pixels"), std::string::npos);
}

TEST(DecodeControl, GifsThatAreCutShort) {
  const std::string gif = test::thin_gif(20, 20, 3);
  const auto problem = [](const std::string& bytes, bool video) -> std::string {
    try {
      std::int64_t area = 0;
      const auto span = std::as_bytes(std::span(bytes));
      decode({span.begin(), span.end()}, video, no_control, area);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::size_t head = 13 + 6, frame = 23;
  for (std::size_t size = 14; size < gif.size(); ++size) {
    const std::string cut = gif.substr(0, size);
    const bool between = size >= head && ((size - head) % frame == 0 || (size - head) % frame == 8);
    const std::size_t frames = size < head ? 0 : (size - head) / frame;
    // As a video it must end behind a block, as a picture behind the pixels of the first frame.
    const bool first = size >= head + frame - 1;
    EXPECT_EQ(problem(cut, false).empty(), first) << size << problem(cut, false);
    EXPECT_EQ(problem(cut, true).empty(), frames > 0 && between) << size << problem(cut, true);
    if (!between && !first) {
      EXPECT_EQ(problem(cut, false), "GIF: cut short") << size;
    }
  }
}

}  // namespace
}  // namespace m3::vision
