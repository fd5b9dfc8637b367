// Videos of every kind against PyAV and Pillow; sampling; files that are damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "m3/error.h"
#include "src/checkpoint/safetensors.h"
#include "src/vision/preprocess.h"
#include "src/vision/video_reader.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/xz.h"
#include "tests/vision/cases.h"

namespace m3::vision {
namespace {

using test::read_bytes;
using test::vision_data;

std::vector<std::filesystem::path> files() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(vision_data("videos"))) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

template <typename T>
std::vector<T> values_of(const TensorFiles& files, const std::string& name) {
  const StoredTensor* tensor = files.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

TEST(Videos, EveryKindIsDecodedWithItsTimes) {
  const test::TemporaryDirectory folder;
  const TensorFiles expected =
      TensorFiles::open_file(test::unpack_xz(vision_data("videos.safetensors.xz"), folder.path()));
  std::size_t count = 0;
  for (const auto& path : files()) {
    const std::string name = path.filename();
    SCOPED_TRACE(name);
    const auto times = values_of<double>(expected, name + "/times");
    const auto kept = values_of<std::int32_t>(expected, name + "/kept");
    const auto stored = values_of<std::uint8_t>(expected, name + "/frames");
    const std::vector<std::byte> bytes = read_bytes(path);
    VideoReader reader(bytes);
    ASSERT_EQ(reader.starts().size(), times.size());
    for (std::size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(reader.starts()[i], times[i], 1e-3) << i;

    std::vector<std::size_t> all(times.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    std::vector<Picture> frames;
    reader.read(all, [&](Picture frame, double seconds) {
      EXPECT_NEAR(seconds, times.at(frames.size()), 1e-3);
      frames.push_back(std::move(frame));
    });
    ASSERT_EQ(frames.size(), times.size());
    const std::size_t size = stored.size() / kept.size();
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const Picture& frame = frames[static_cast<std::size_t>(kept[k])];
      ASSERT_EQ(frame.rgb.size(), size);
      double sum = 0;
      for (std::size_t i = 0; i < size; ++i) sum += std::abs(frame.rgb[i] - stored[k * size + i]);
      // Another version of swscale, another way of widening the colours.
      const bool lossless = path.stem() == "animation" || path.stem() == "lossless";
      EXPECT_LE(sum / static_cast<double>(size), lossless ? 0.0 : 4.0) << "frame " << kept[k];
    }
    ++count;
  }
  EXPECT_GE(count, 18u);
}

TEST(Videos, FactsBesideTheFrames) {
  const auto turned = read_bytes(vision_data("videos/turned.mp4"));
  const VideoReader reader(turned);
  EXPECT_EQ(reader.type(), MediaType::iso_media);
  EXPECT_STREQ(reader.codec(), "h264");
  EXPECT_EQ(reader.stored(), (Size{64, 48}));
  EXPECT_EQ(reader.orientation(), 6);
  const VideoPlan plan = plan_video(reader, {});
  EXPECT_EQ(plan.shown, (Size{48, 64}));
}

TEST(Videos, KindsAndCodecs) {
  const std::tuple<const char*, MediaType, const char*> cases[] = {
      {"mpeg1.mpg", MediaType::mpeg_ps, "mpeg1video"},
      {"mpeg2.mpg", MediaType::mpeg_ps, "mpeg2video"},
      {"flv1.flv", MediaType::flv, "flv1"},
      {"wmv2.wmv", MediaType::asf, "wmv2"},
      {"theora.ogv", MediaType::ogg, "theora"},
      {"vp8.webm", MediaType::matroska, "vp8"},
      {"lossless.mov", MediaType::iso_media, "qtrle"},
      {"h264.ts", MediaType::mpeg_ts, "h264"},
      {"mpeg4.avi", MediaType::avi, "mpeg4"},
  };
  for (const auto& [name, type, codec] : cases) {
    const auto bytes = read_bytes(vision_data("videos") / name);
    const VideoReader reader(bytes);
    EXPECT_EQ(reader.type(), type) << name;
    EXPECT_STREQ(reader.codec(), codec);
  }
}

// The eight ways a track's matrix can turn and mirror its frames, written into one file: where its pixels must go is the
// matrix itself.
TEST(Videos, TurnedAndMirroredByTheTracksMatrix) {
  const std::vector<std::byte> stored = read_bytes(vision_data("videos/turned.mp4"));
  constexpr std::array<unsigned char, 4> header = {'t', 'k', 'h', 'd'};
  const auto found = std::ranges::search(stored, std::as_bytes(std::span(header)));
  ASSERT_FALSE(found.empty());
  const auto matrix_at = static_cast<std::size_t>(found.begin() - stored.begin()) + 4 + 4 + 4 * 5 + 8 + 2 * 4;
  // x' = a x + c y, y' = b x + d y.
  const auto first_frame = [&](int a, int b, int c, int d, int& orientation) {
    std::vector<std::byte> bytes = stored;
    const int values[] = {a, b, c, d};
    for (std::size_t i = 0; i < 4; ++i) {  // 16.16, the highest byte first
      const auto bits = static_cast<std::uint32_t>(values[i]) << 16;
      for (std::size_t byte = 0; byte < 4; ++byte)
        bytes[matrix_at + (i / 2 * 3 + i % 2) * 4 + byte] = static_cast<std::byte>(bits >> (24 - 8 * byte));
    }
    VideoReader reader(bytes);
    orientation = reader.orientation();
    Picture result;
    const std::size_t first = 0;
    reader.read({&first, 1}, [&](Picture frame, double) { result = std::move(frame); });
    return result;
  };
  int orientation = 0;
  const Picture plain = first_frame(1, 0, 0, 1, orientation);
  EXPECT_EQ(orientation, 1);
  ASSERT_EQ(plain.width, 64);
  ASSERT_EQ(plain.height, 48);
  const std::array<int, 5> ways[] = {{-1, 0, 0, -1, 3}, {0, 1, -1, 0, 6}, {0, -1, 1, 0, 8}, {-1, 0, 0, 1, 2},
                                     {1, 0, 0, -1, 4},  {0, 1, 1, 0, 5},  {0, -1, -1, 0, 7}};
  for (const auto& [a, b, c, d, expected] : ways) {
    SCOPED_TRACE(expected);
    const Picture turned = first_frame(a, b, c, d, orientation);
    EXPECT_EQ(orientation, expected);
    ASSERT_EQ(turned.width, a != 0 ? 64 : 48);
    ASSERT_EQ(turned.height, a != 0 ? 48 : 64);
    int wrong = 0;
    for (int y = 0; y < 48; ++y) {
      for (int x = 0; x < 64; ++x) {
        const int to_x = a * x + c * y + (a + c < 0 ? turned.width - 1 : 0);
        const int to_y = b * x + d * y + (b + d < 0 ? turned.height - 1 : 0);
        const auto* from = plain.rgb.data() + (y * 64 + x) * 3;
        if (!std::equal(from, from + 3, turned.rgb.data() + (to_y * turned.width + to_x) * 3)) ++wrong;
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Videos, SampledIntoPatchesWithTimestamps) {
  // Eleven frames, a tenth of a second apart.
  const auto bytes = read_bytes(vision_data("videos/h264.mp4"));
  VideoOptions options;
  options.sampling = {.fps = 2, .min_frames = 1, .max_frames = 768};
  Pixels pixels = video_pixels(bytes, options);
  EXPECT_EQ(pixels.grid, (Grid{2, 8, 10}));  // 64x48 -> 140x112; frames 0, 5, 10
  EXPECT_EQ(pixels.timestamps, (std::vector<double>{0, 1}));
  EXPECT_EQ(pixels.values.size(), 2u * 8 * 10 * 1176);
  options.sampling.fps = 5;
  pixels = video_pixels(bytes, options);  // 0 2 4 6 8 10
  EXPECT_EQ(pixels.timestamps, (std::vector<double>{0, 0.4, 0.8}));
  options.sampling.max_frames = 4;
  pixels = video_pixels(bytes, options);  // 0 4 8 10
  EXPECT_EQ(pixels.timestamps, (std::vector<double>{0, 0.8}));

  const auto irregular = read_bytes(vision_data("videos/irregular.mkv"));  // 0 30 40 400 1000 1010 2500 ms
  options.sampling = {.fps = 1, .min_frames = 1};
  EXPECT_EQ(video_pixels(irregular, options).timestamps, (std::vector<double>{0, 2.5}));  // 0 1000 2500
}

TEST(Sampling, ByTimeWithTheLastFrameKept) {
  const auto starts = [](int frames, double fps) {
    std::vector<double> result;
    for (int i = 0; i < frames; ++i) result.push_back(i / fps);
    return result;
  };
  using Numbers = std::vector<std::size_t>;
  const auto plain = [](double fps) { return SamplingOptions{.fps = fps, .min_frames = 1}; };
  EXPECT_EQ(choose_frames(starts(100, 25), plain(1)), (Numbers{0, 25, 50, 75, 99}));
  EXPECT_EQ(choose_frames(starts(101, 25), plain(1)), (Numbers{0, 25, 50, 75, 100}));
  EXPECT_EQ(choose_frames(starts(90, 29.97), plain(1)), (Numbers{0, 30, 60, 89}));
  EXPECT_EQ(choose_frames(starts(3, 1), plain(5)), (Numbers{0, 1, 2}));
  EXPECT_EQ(choose_frames(starts(1, 25), plain(1)), (Numbers{0}));
  EXPECT_EQ(choose_frames(starts(250, 25), plain(0.2)), (Numbers{0, 125, 249}));
  // The frame after a pause counts from itself on.
  EXPECT_EQ(choose_frames(std::vector<double>{0, 0.5, 3.7, 4.5, 4.8, 6}, plain(1)), (Numbers{0, 2, 4, 5}));
  // Too few: evenly, as far as there are frames.
  EXPECT_EQ(choose_frames(starts(20, 25), {.fps = 1}), (Numbers{0, 6, 13, 19}));
  EXPECT_EQ(choose_frames(starts(3, 25), {.fps = 1}), (Numbers{0, 1, 2}));
  // Too many: thinned, first and last kept.
  const Numbers thinned = choose_frames(starts(1000, 10), {.fps = 5, .max_frames = 7});
  EXPECT_EQ(thinned.size(), 7u);
  EXPECT_EQ(thinned.front(), 0u);
  EXPECT_EQ(thinned.back(), 999u);
  EXPECT_TRUE(std::ranges::is_sorted(thinned));

  EXPECT_THROW(check_sampling_options({.fps = 0.1}), Error);
  EXPECT_THROW(check_sampling_options({.fps = 6}), Error);
  EXPECT_THROW(check_sampling_options({.min_frames = 0}), Error);
  EXPECT_THROW(check_sampling_options({.min_frames = 10, .max_frames = 9}), Error);
}

std::string error_of(std::span<const std::byte> bytes, const VideoOptions& options = {}) {
  try {
    video_pixels(bytes, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    std::string line = error.what();
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    return line;
  }
  return "";
}

TEST(Videos, RefusedWithOneLine) {
  EXPECT_NE(error_of({}), "");
  EXPECT_NE(error_of(read_bytes(vision_data("pictures/420.jpg"))).find("JPEG"), std::string::npos);
  const auto bytes = read_bytes(vision_data("videos/h264.mp4"));
  VideoOptions options;
  options.limits.bytes = 1000;
  EXPECT_NE(error_of(bytes, options).find("1000"), std::string::npos);
  options = {};
  options.limits.pixels = 64 * 48 - 1;
  EXPECT_NE(error_of(bytes, options), "");
  options = {};
  options.limits.all_pixels = 64 * 48 * 11 - 1;
  EXPECT_NE(error_of(bytes, options), "");
  options = {};
  options.limits.frames = 10;
  EXPECT_NE(error_of(bytes, options), "");
  options = {};
  options.sampling.fps = 9;
  EXPECT_NE(error_of(bytes, options).find("fps"), std::string::npos);
  EXPECT_EQ(error_of(bytes), "");
}

TEST(Videos, DamagedFilesAreErrorsOrVideos) {
  for (const auto& path : files()) {
    SCOPED_TRACE(path.filename());
    std::vector<std::byte> bytes = read_bytes(path);
    for (std::size_t part = 0; part < 6; ++part) error_of(std::span(bytes).first(bytes.size() * part / 6));
    for (std::size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 12) {
      const std::byte before = std::exchange(bytes[at], bytes[at] ^ std::byte{0x5a});
      error_of(bytes);
      bytes[at] = before;
    }
    EXPECT_EQ(error_of(bytes), "") << "the next one works";
  }
  const auto whole = read_bytes(vision_data("videos/h264.mp4"));
  EXPECT_NE(error_of(std::span(whole).first(whole.size() / 2)), "") << "its index lies at the end";
  for (const char* name : {"videos/vp9.webm", "videos/irregular.mkv", "videos/mpeg4.avi", "videos/animation.webp"}) {
    const auto bytes = read_bytes(vision_data(name));
    EXPECT_NE(error_of(std::span(bytes).first(bytes.size() * 9 / 10)), "") << name;
  }
}

}  // namespace
}  // namespace m3::vision
