// What requests and flags say of sizes and counts.
#include "src/media/options.h"

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/chat/template/json.h"

namespace m3::media {
namespace {

using vision::SizeRule;

std::string problem(const std::function<void()>& work, ErrorKind kind = ErrorKind::input) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

RequestSizing read(const char* body) { return read_request_sizing(chat::parse_json(body, "test")); }

std::string refused(const char* body) {
  return problem([&] {
    const RequestSizing sizing = read(body);
    MediaOptions options;
    apply(sizing.images, options.image);
    apply(sizing.videos, options.video);
  });
}

TEST(Sizing, ABoundChoosesItsRule) {
  MediaOptions options;
  options.image.size.rule = SizeRule::area;
  apply(read(R"({"max_long_side_pixel": 1008})").images, options.image);
  EXPECT_EQ(options.image.size.rule, SizeRule::long_side);
  EXPECT_EQ(options.image.size.max_long_side, 1008);
  apply(read(R"({"max_pixels": 100000})").images, options.image);
  EXPECT_EQ(options.image.size.rule, SizeRule::area);
  EXPECT_EQ(options.image.size.max_pixels, 100000);
  apply(read(R"({"size_rule": "long-side"})").images, options.image);
  EXPECT_EQ(options.image.size.rule, SizeRule::long_side);
}

TEST(Sizing, ProcessorKwargsMayBeForOneKind) {
  const RequestSizing sizing = read(
      R"({"fps": 2, "mm_processor_kwargs": {"max_long_side_pixel": 504, "images_kwargs": {"max_long_side_pixel": 1008},
          "videos_kwargs": {"max_frames": 8}}, "media_io_kwargs": {"video": {"num_frames": 99}}})");
  EXPECT_EQ(sizing.images.max_long_side, 1008);
  EXPECT_EQ(sizing.videos.max_long_side, 504);
  EXPECT_EQ(sizing.videos.max_frames, 8);
  EXPECT_EQ(sizing.videos.fps, 2.0);
  EXPECT_FALSE(read(R"({"media_io_kwargs": {"video": {"num_frames": -1}}})").videos.max_frames);
}

// The later the stronger, but a number says more than a word.
TEST(Sizing, WhatIsSaidTwice) {
  const auto both = [](const char* first, const char* more) {
    MediaOptions options;
    apply(merged(read(first).images, read_sizing(chat::parse_json(more, "test"), "", true)), options.image);
    return options.image.size;
  };
  EXPECT_EQ(both(R"({"max_long_side_pixel": 504})", R"({"max_long_side_pixel": 252})").max_long_side, 252);
  EXPECT_EQ(both(R"({"max_long_side_pixel": 504})", R"({"detail": "high"})").max_long_side, 504);
  EXPECT_EQ(both(R"({"max_pixels": 9000})", R"({"max_long_side_pixel": 252})").rule, SizeRule::long_side);
  EXPECT_EQ(both(R"({"max_long_side_pixel": 504})", R"({"max_pixels": 9000})").rule, SizeRule::area);
  EXPECT_EQ(both(R"({"size_rule": "area"})", R"({"detail": "high"})").rule, SizeRule::area);
  EXPECT_EQ(both(R"({"size_rule": "area", "max_pixels": 9000})", R"({"size_rule": "long-side"})").rule,
            SizeRule::long_side);
}

TEST(Sizing, DetailSetsTheLongSide) {
  const auto side = [](const char* detail, bool video) {
    Sizing sizing;
    sizing.detail = detail;
    MediaOptions options;
    apply(sizing, options.image);
    apply(sizing, options.video);
    return video ? options.video.size.max_long_side : options.image.size.max_long_side;
  };
  EXPECT_EQ(side("", false), 2016);
  EXPECT_EQ(side("low", false), 504);
  EXPECT_EQ(side("default", false), 2016);
  EXPECT_EQ(side("high", false), 2016);
  EXPECT_EQ(side("", true), 672);
  EXPECT_EQ(side("low", true), 504);
  EXPECT_EQ(side("default", true), 1008);
  EXPECT_EQ(side("high", true), 2016);
}

TEST(Sizing, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"max_long_side_pixel": 1000})", "max_long_side_pixel: 1000 is not a multiple of 28 in [112, 3584]"},
      {R"({"max_long_side_pixel": 84})", "max_long_side_pixel: 84 is not a multiple of 28 in [112, 3584]"},
      {R"({"max_long_side_pixel": 3612})", "max_long_side_pixel: 3612 is not a multiple of 28 in [112, 3584]"},
      {R"({"max_long_side_pixel": "504"})", "max_long_side_pixel: expected a whole number, found a string"},
      {R"({"max_long_side_pixel": 0})", "max_long_side_pixel: 0 is out of range"},
      {R"({"max_pixels": 99999999999})", "max_pixels: 99999999999 is not in [1, 12845056]"},
      {R"({"min_pixels": 1000000000000})", "min_pixels: 1000000000000 is not in"},
      {R"({"min_pixels": 500000})", "min_pixels: 500000 is more than max_pixels 451584"},
      {R"({"max_pixels": 3000})", "max_pixels: 3000 is less than min_pixels 3136"},
      {R"({"min_pixels": 300, "max_pixels": 200})", "min_pixels: 300 is more than max_pixels 200"},
      {R"({"mm_processor_kwargs": {"max_long_side_pixel": 113}})",
       "mm_processor_kwargs.max_long_side_pixel: 113 is not a multiple"},
      {R"({"max_long_side_pixel": 112.5})", "max_long_side_pixel: expected a whole number, found 112.5"},
      {R"({"max_long_side_pixel": 1e300})", "max_long_side_pixel: expected a whole number, found 1e+300"},
      {R"({"mm_processor_kwargs": {"images_kwargs": {"max_pixels": 20}}})",
       "mm_processor_kwargs.images_kwargs.max_pixels: 20 is less than min_pixels 3136"},
      {R"({"mm_processor_kwargs": {"min_frames": 10000}})",
       "mm_processor_kwargs.min_frames: 10000 is more than max_frames 768"},
      {R"({"mm_processor_kwargs": {"min_frames": 9, "max_frames": 8}})",
       "mm_processor_kwargs.min_frames: 9 is more than max_frames 8"},
      {R"({"media_io_kwargs": {"video": {"num_frames": 1}}})", "media_io_kwargs.video.num_frames: 1 is below 2"},
      {R"({"media_io_kwargs": {"video": {"fps": 9}}})", "media_io_kwargs.video.fps: 9 is not in"},
      {R"({"max_pixels": 50000, "max_long_side_pixel": 504})", "max_long_side_pixel: of the long-side rule"},
      {R"({"max_pixels": 50000, "size_rule": "long-side"})", "max_pixels: of the area rule"},
      {R"({"max_long_side_pixel": 504, "size_rule": "area"})", "max_long_side_pixel: of the long-side rule"},
      {R"({"size_rule": "round"})", "size_rule: unknown rule 'round'"},
      {R"({"fps": 9})", "fps: 9 is not in [0.2, 5]"},
      {R"({"fps": "2"})", "fps: expected a number, found a string"},
      {R"({"mm_processor_kwargs": 3})", "mm_processor_kwargs: expected an object"},
      {R"({"mm_processor_kwargs": {"do_resize": false}})", "mm_processor_kwargs.do_resize: not known here"},
      {R"({"mm_processor_kwargs": {"videos_kwargs": {"fsp": 1}}})", "mm_processor_kwargs.videos_kwargs.fsp: not known"},
      {R"({"mm_processor_kwargs": {"max_frames": 1}})", "mm_processor_kwargs.max_frames: 1 is below 2"},
      {R"({"media_io_kwargs": {"audio": {}}})", "media_io_kwargs.audio: not known here"},
      {R"({"media_io_kwargs": {"video": {"backend": "x"}}})", "media_io_kwargs.video.backend: not known here"},
  };
  for (const auto& [body, expected] : cases) EXPECT_EQ(refused(body).substr(0, strlen(expected)), expected) << body;
}

TEST(MachineDefaults, AThreadForEveryCore) {
  EXPECT_EQ(with_machine_defaults({}, 96).threads, 96);
  EXPECT_EQ(with_machine_defaults({}, 0).threads, 1) << "not known";
  EXPECT_EQ(with_machine_defaults({.threads = 3}, 96).threads, 3);
}

TEST(Limits, InBothSpellings) {
  const auto limits = [](const std::vector<std::string>& words) {
    MediaOptions options;
    apply_limits(words, "--limit-mm-per-prompt", options);
    return std::pair(options.most_images, options.most_videos);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(limits({}), Pair(200, 20));
  EXPECT_EQ(limits({"image=4,video=1"}), Pair(4, 1));
  EXPECT_EQ(limits({"image=4", "video=0"}), Pair(4, 0));
  EXPECT_EQ(limits({R"({"image": 3})"}), Pair(3, 20));
  EXPECT_EQ(limits({R"({"image": {"count": 2, "width": 512}, "video": {"width": 512}, "audio": 0})"}), Pair(2, 20));
  for (const char* wrong : {"image", "image=", "image=x", "image=-1", "audio=1", "image=1,", "{\"image\": \"1\"}",
                            "[1]", "{\"image\"", "film=2"}) {
    const std::string line = problem([&] { limits({wrong}); }, ErrorKind::usage);
    EXPECT_EQ(line.find("--limit-mm-per-prompt"), 0U) << wrong << ": " << line;
  }
}

TEST(Limits, ProcessorKwargsOfAFlag) {
  MediaOptions options;
  apply_processor_kwargs(R"({"max_long_side_pixel": 1008})", "--mm-processor-kwargs", options);
  EXPECT_EQ(options.image.size.max_long_side, 1008);
  EXPECT_EQ(options.video.size.max_long_side, 1008);
  for (const char* wrong : {"{", "[]", R"({"a": 1})", R"({"max_long_side_pixel": 30})"}) {
    const std::string line =
        problem([&] { apply_processor_kwargs(wrong, "--mm-processor-kwargs", options); }, ErrorKind::usage);
    EXPECT_EQ(line.find("--mm-processor-kwargs"), 0U) << wrong << ": " << line;
  }
}

}  // namespace
}  // namespace m3::media
