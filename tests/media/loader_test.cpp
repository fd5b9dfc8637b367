// Pictures and videos from their sources to what the engine takes.
#include "src/media/loader.h"

#include <gtest/gtest.h>

#include <future>

#include "src/base/error.h"
#include "src/media/prompt.h"
#include "tests/support/pictures.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_server.h"
#include "tests/vision/raw_server.h"

namespace m3::media {
namespace {

using test::bitmap;
using test::data_url;
using test::eventually;
using test::vision_file;

const Tokenizer& tokenizer() {
  static const Tokenizer shipped = Tokenizer::load(std::string(M3_MODELS) + "/m3-tiny-chat");
  return shipped;
}

constexpr std::int64_t no_limit = std::int64_t{1} << 40;

MediaInfo model() { return test::media_info(tokenizer()); }

Reference reference(const std::string& url, const std::string& path = "p", Media::Kind kind = Media::Kind::image) {
  return {.kind = kind, .url = url, .path = path, .image = {}, .video = {}};
}

std::string problem(MediaLoader& loader, std::vector<Reference> references, std::int64_t most_tokens = no_limit,
                    ErrorKind kind = ErrorKind::input) {
  try {
    loader.load_now(std::move(references), model(), most_tokens);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

TEST(MediaLoader, InTheOrderOfTheReferences) {
  MediaLoader loader({.threads = 3});
  std::vector<Reference> references;
  for (int i = 0; i < 12; ++i) references.push_back(reference(data_url(bitmap(112 + 28 * i, 112, 7))));
  references.push_back(reference(data_url(vision_file("videos/h264.mp4"), "video/mp4"), "v", Media::Kind::video));
  const std::vector<Prepared> prepared = loader.load_now(references, model(), no_limit);
  ASSERT_EQ(prepared.size(), 13U);
  for (int i = 0; i < 12; ++i) {
    const Media& media = prepared[static_cast<std::size_t>(i)].media;
    EXPECT_EQ(media.kind, Media::Kind::image);
    EXPECT_EQ(media.w, 8 + 2 * i);
    EXPECT_EQ(media.h, 8);
    EXPECT_EQ(std::ssize(*media.pixels), media.h * media.w * 1176);
  }
  const Prepared& video = prepared.back();
  EXPECT_EQ(video.media.kind, Media::Kind::video);
  EXPECT_EQ(std::ssize(video.timestamps), video.media.t);
  // As the vision library alone makes it.
  const std::string bytes = vision_file("videos/h264.mp4");
  EXPECT_EQ(*video.media.pixels, vision::video_pixels(std::as_bytes(std::span(bytes)), {}).values);
}

TEST(MediaLoader, KeysNameTheContentAndItsOptions) {
  MediaLoader loader({.threads = 1});
  Reference other_size = reference(data_url(bitmap(300, 200)));
  other_size.image.size.max_long_side = 112;
  const auto prepared = loader.load_now(
      {reference(data_url(bitmap(300, 200))), reference(data_url(bitmap(300, 200, 1))), other_size}, model(), no_limit);
  EXPECT_NE(prepared[0].media.key, prepared[1].media.key);
  EXPECT_NE(prepared[0].media.key, prepared[2].media.key);
  EXPECT_NE(prepared[0].media.w, prepared[2].media.w);
  const auto again = loader.load_now({reference(data_url(bitmap(300, 200), "image/x"))}, model(), no_limit);
  EXPECT_EQ(prepared[0].media.key, again[0].media.key);
  EXPECT_EQ(prepared[0].media.pixels, again[0].media.pixels);  // taken from the cache
}

TEST(MediaLoader, TheFirstThatFailsIsNamed) {
  MediaLoader loader({.threads = 4});
  const std::string png = vision_file("pictures/rgb-8.png");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(problem(loader, {reference(data_url(png), "a"), reference(data_url("GIF89a nonsense"), "b"),
                               reference("data:,x", "c"), reference("ftp://x", "d")})
                  .substr(0, 2),
              "b:");
  }
  EXPECT_NE(problem(loader, {reference(data_url(png.substr(0, png.size() / 2)), "b")}), "");
  EXPECT_NE(problem(loader, {reference("file:///etc/passwd", "b")}).find("not allowed"), std::string::npos);
  EXPECT_NE(problem(loader, {reference("https://example.org/a.png", "b")}).find("not allowed"), std::string::npos);
  EXPECT_NE(problem(loader, {reference("", "b")}), "");
  EXPECT_NE(problem(loader, {reference(data_url(png), "b", Media::Kind::video)}).find("not a video"),
            std::string::npos);
  EXPECT_EQ(problem(loader, {reference(data_url(png), "b")}), "");
  EXPECT_EQ(loader.waiting(), 0U);
}

TEST(MediaLoader, LimitsOfThePromptAndTheMachine) {
  const Reference picture = reference(data_url(bitmap(280, 280)));  // 100 tokens, 400 patches
  MediaLoader loader({.threads = 2, .memory_bytes = 1'000'000, .cache_bytes = 0});
  EXPECT_NE(problem(loader, {picture}).find("--media-memory-bytes"), std::string::npos);
  MediaLoader larger({.threads = 2, .memory_bytes = 2'000'000, .cache_bytes = 0});
  EXPECT_EQ(problem(larger, {picture}, 100), "");
  EXPECT_NE(problem(larger, {picture}, 99).find("context"), std::string::npos);
  {
    const auto held = larger.load_now({picture}, model(), no_limit);
    EXPECT_TRUE(eventually([&] { return larger.held_bytes() == 400 * 1176 * 4; }));
    EXPECT_NE(problem(larger, {picture}, no_limit, ErrorKind::busy), "");
  }
  EXPECT_TRUE(eventually([&] { return larger.held_bytes() == 0; }));  // a job's bytes go when its thread has left it
  EXPECT_EQ(problem(larger, {picture}), "");

  MediaInfo small = model();
  small.max_patches = 399;
  EXPECT_THROW(larger.load_now({picture}, small, no_limit), Error);
}

// By the size in its header, under both rules: the pixels of these files cannot be decoded.
TEST(MediaLoader, TooLargeIsKnownBeforeThePixels) {
  MediaLoader loader({.threads = 1, .cache_bytes = 0});
  MediaInfo small = model();
  small.max_patches = 20;
  for (const std::string name :
       {"420.jpg", "progressive.jpg", "orientation-6.jpg", "rgb-8.png", "interlaced.png", "lossless-alpha.webp",
        "animated.webp", "plain.gif", "animated.gif", "24.bmp", "rle8.bmp"}) {
    SCOPED_TRACE(name);
    std::string bytes = vision_file("pictures/" + name);
    if (name.ends_with(".webp")) {  // whose length is in its header too
      std::fill(bytes.begin() + 60, bytes.end(), '\x55');
    } else {
      bytes.resize(name.ends_with(".gif") ? bytes.size() / 3 : bytes.size() - 20);
    }
    Reference picture = reference(data_url(bytes));
    picture.image.size.min_pixels = 100'000;
    for (const vision::SizeRule rule : {vision::SizeRule::long_side, vision::SizeRule::area}) {
      picture.image.size.rule = rule;
      EXPECT_THROW(loader.load_now({picture}, small, no_limit), Error);
      EXPECT_NE(problem(loader, {picture}), "");
      EXPECT_EQ(problem(loader, {picture}).find("context"), std::string::npos);
      EXPECT_NE(problem(loader, {picture}, 1).find("context"), std::string::npos);
      try {
        loader.load_now({picture}, small, no_limit);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("--max-picture-patches"), std::string::npos) << error.what();
      }
    }
  }
}

// One that is begun on the small pictures' thread and goes on as a large one counts once.
TEST(MediaLoader, TokensOfAPictureThatBeginsAnew) {
  MediaLoader loader({.threads = 1, .cache_bytes = 0, .decode_memory_bytes = std::int64_t{16} << 20});
  const Reference picture = reference(data_url(bitmap(1400, 1400)));  // 2500 tokens; 5.9 MB, more than small ones have
  EXPECT_EQ(problem(loader, {picture}, 2500), "");
}

// Room is made of what is only kept for later.
TEST(MediaLoader, TheCacheGivesWay) {
  MediaLoader loader({.threads = 1, .memory_bytes = 2'000'000, .cache_bytes = 2'000'000});
  for (unsigned seed = 0; seed < 4; ++seed) {
    EXPECT_EQ(problem(loader, {reference(data_url(bitmap(280, 280, seed)))}), "");
    EXPECT_TRUE(eventually([&] { return loader.held_bytes() == 400 * 1176 * 4; }));
  }
}

TEST(MediaLoader, CancelledWhileItIsFetched) {
  const test::RawServer silent([](const std::string&) { return std::string(); });
  MediaOptions options{.threads = 1};
  options.sources.web = true;
  options.sources.fetch.private_hosts = {silent.host()};
  options.sources.fetch.seconds = 600;
  MediaLoader loader(options);
  std::promise<std::exception_ptr> over;
  const auto job =
      loader.load({reference("http://" + silent.host() + "/a.png")}, model(), no_limit,
                  [&](const std::vector<Prepared>&, const std::exception_ptr& error) { over.set_value(error); });
  ASSERT_TRUE(eventually([&] { return silent.requests() == 1; }));
  // Another request's picture waits for the thread meanwhile.
  std::promise<std::size_t> other;
  loader.load(
      {reference(data_url(bitmap(28, 28)))}, model(), no_limit,
      [&](const std::vector<Prepared>& prepared, const std::exception_ptr&) { other.set_value(prepared.size()); });
  loader.cancel(job);
  EXPECT_THROW(std::rethrow_exception(over.get_future().get()), Error);
  EXPECT_EQ(other.get_future().get(), 1U);
  EXPECT_TRUE(eventually([&] { return loader.waiting() == 0; }));
}

// The destructor waits for no one, whether it is fetching or not.
TEST(MediaLoader, EndsWhileItWorks) {
  const test::RawServer silent([](const std::string&) { return std::string(); });
  MediaOptions options{.threads = 2, .fetches = 2};
  options.sources.web = true;
  options.sources.fetch.private_hosts = {silent.host()};
  options.sources.fetch.seconds = 600;
  std::atomic<int> called = 0;
  {
    MediaLoader loader(options);
    for (int i = 0; i < 5; ++i) {
      loader.load({reference("http://" + silent.host() + "/a.png")}, model(), no_limit,
                  [&](const std::vector<Prepared>&, const std::exception_ptr&) { ++called; });
    }
    ASSERT_TRUE(eventually([&] { return silent.requests() == 2; }));
  }
  EXPECT_EQ(called, 0);
}

TEST(MediaLoader, ManyThatWaitAreRefused) {
  const test::RawServer silent([](const std::string&) { return std::string(); });
  MediaOptions options{.threads = 1, .most_waiting = 2};
  options.sources.web = true;
  options.sources.fetch.private_hosts = {silent.host()};
  options.sources.fetch.seconds = 600;
  MediaLoader loader(options);
  const Reference slow = reference("http://" + silent.host() + "/a.png");
  const auto ignore = [](const std::vector<Prepared>&, const std::exception_ptr&) {};
  loader.load({slow}, model(), no_limit, ignore);
  loader.load({slow}, model(), no_limit, ignore);
  try {
    loader.load({slow}, model(), no_limit, ignore);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::busy);
  }
}

// Half a minute of decoding in 140 kB, so that nothing below is over before it is looked at.
Reference long_video() {
  Reference video = reference(data_url(test::thin_gif(2000, 2000, 6000), "image/gif"), "long", Media::Kind::video);
  video.video.size.max_long_side = 112;
  video.video.sampling = {.fps = 0.2, .min_frames = 2, .max_frames = 2};  // all are decoded all the same
  return video;
}

const MediaLoader::Done nobody = [](const std::vector<Prepared>&, const std::exception_ptr&) {};

TEST(MediaLoader, SmallPicturesDoNotWaitForLongVideos) {
  MediaLoader loader({.threads = 2, .decode_seconds = 3600});
  std::vector<std::shared_ptr<MediaLoader::Job>> videos;
  for (int i = 0; i < 3; ++i) videos.push_back(loader.load({long_video()}, model(), no_limit, nobody));
  ASSERT_TRUE(eventually([&] { return loader.decodings() == 2; }));
  EXPECT_EQ(loader.waiting(), 1U);  // both threads have one
  for (unsigned seed = 0; seed < 4; ++seed) {
    EXPECT_EQ(problem(loader, {reference(data_url(bitmap(112, 112, seed)))}), "");
  }
  EXPECT_EQ(loader.decodings(), 6);
  EXPECT_TRUE(eventually([&] { return loader.open() == 3; }));
  EXPECT_TRUE(eventually([&] { return loader.decoding_bytes() > 0; }));
  for (const auto& video : videos) loader.cancel(video);
  EXPECT_TRUE(eventually([&] { return loader.open() == 0; }));
  EXPECT_TRUE(eventually([&] { return loader.decoding_bytes() == 0; }));
  EXPECT_TRUE(eventually([&] { return loader.held_bytes() == 4 * 64 * 1176 * 4; }));  // the pictures, cached
}

TEST(MediaLoader, WhatIsCachedNeedsNoThread) {
  MediaLoader loader({.threads = 1, .most_waiting = 0});
  const Reference picture = reference(data_url(bitmap(112, 112)));
  EXPECT_NE(problem(loader, {picture}, no_limit, ErrorKind::busy).find("try again"), std::string::npos);
  MediaLoader other({.threads = 1, .decode_seconds = 3600, .most_waiting = 1});
  EXPECT_EQ(problem(other, {picture}), "");
  const auto video = other.load({long_video()}, model(), no_limit, nobody);
  ASSERT_TRUE(eventually([&] { return other.decodings() == 2; }));
  const auto waits = other.load({long_video()}, model(), no_limit, nobody);
  std::size_t prepared = 0;
  const auto count = [&](const std::vector<Prepared>& got, const std::exception_ptr&) { prepared = got.size(); };
  other.load({picture, picture}, model(), no_limit, count);
  EXPECT_EQ(prepared, 2U);  // before load() returned, and with a queue that is full
  EXPECT_EQ(other.decodings(), 2);
  EXPECT_THROW(other.load({reference(data_url(bitmap(112, 112, 1)))}, model(), no_limit, count), Error);
  other.cancel(waits);
  EXPECT_EQ(other.open(), 1U);  // what waited is gone at once
  other.cancel(video);
}

// A picture that seems small and is not goes on among the large ones.
TEST(MediaLoader, LargePicturesBeginAmongSmallOnes) {
  MediaLoader loader({.threads = 1, .decode_memory_bytes = std::int64_t{64} << 20});  // 16 MiB are small
  EXPECT_EQ(problem(loader, {reference(data_url(bitmap(300, 300)))}), "");
  EXPECT_EQ(loader.decodings(), 1);
  EXPECT_EQ(problem(loader, {reference(data_url(bitmap(3000, 3000)))}), "");
  EXPECT_EQ(loader.decodings(), 3);
  EXPECT_NE(problem(loader, {reference(data_url(bitmap(6000, 6000)))}).find("--media-decode-memory-bytes"),
            std::string::npos);
  EXPECT_EQ(loader.decoding_bytes(), 0);
}

TEST(MediaLoader, DecodingHasItsTime) {
  MediaLoader loader({.threads = 1, .decode_seconds = 1e-9});
  EXPECT_NE(problem(loader, {reference(data_url(bitmap(112, 112)))}).find("--media-decode-timeout"), std::string::npos);
  const Reference video = reference(data_url(vision_file("videos/h264.mp4")), "v", Media::Kind::video);
  EXPECT_NE(problem(loader, {video}).find("v: decoding takes longer than"), std::string::npos);
  EXPECT_EQ(loader.decoding_bytes(), 0);
}

TEST(MediaLoader, FetchesHoldUpNobodyElse) {
  const test::RawServer silent([](const std::string&) { return std::string(); });
  const test::RawServer good([](const std::string&) {
    const std::string body = bitmap(112, 112);
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  });
  MediaOptions options{.threads = 1, .fetches = 3, .fetches_per_host = 2};
  options.sources.web = true;
  options.sources.fetch.private_hosts = {silent.host(), good.host()};
  options.sources.fetch.seconds = 600;
  MediaLoader loader(options);
  const std::vector<Reference> slow(20, reference("http://" + silent.host() + "/a.png"));
  std::vector<std::shared_ptr<MediaLoader::Job>> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(loader.load(slow, model(), no_limit, nobody));
  ASSERT_TRUE(eventually([&] { return silent.requests() == 2; }));
  EXPECT_EQ(problem(loader, {reference(data_url(bitmap(112, 112)))}), "");
  EXPECT_EQ(problem(loader, {reference("http://" + good.host() + "/a.png")}), "");
  EXPECT_EQ(silent.requests(), 2);
  EXPECT_EQ(loader.waiting(), 3U);
  // A picture that is wrong ends its request, whatever of it waits for a slow server.
  std::vector<Reference> wrong = slow;
  wrong.insert(wrong.begin(), reference("data:,x", "wrong"));
  EXPECT_EQ(problem(loader, wrong).substr(0, 6), "wrong:");
  for (const auto& job : jobs) loader.cancel(job);
  EXPECT_TRUE(eventually([&] { return loader.open() == 0; }));
}

// Files that wait to be decoded are memory too.
TEST(MediaLoader, FilesThatWaitAreCounted) {
  constexpr std::int64_t limit = 1'000'000;
  MediaLoader loader({.threads = 1, .decode_seconds = 3600, .memory_bytes = limit});
  const auto video = loader.load({long_video()}, model(), no_limit, nobody);
  ASSERT_TRUE(eventually([&] { return loader.held_bytes() > 64 * 1176 * 4; }));  // its file and its values
  const std::int64_t file = loader.held_bytes() - std::int64_t{64} * 1176 * 4;
  std::vector<std::shared_ptr<MediaLoader::Job>> jobs;
  while (loader.held_bytes() + file + 3 <= limit)
    jobs.push_back(loader.load({long_video()}, model(), no_limit, nobody));
  EXPECT_GE(jobs.size(), 2U);
  try {
    loader.load_now({long_video()}, model(), no_limit);
    FAIL();
  } catch (const MediaMemoryError& error) {
    EXPECT_EQ(std::string(error.what()).find("long: "), 0U) << error.what();
  }
  jobs.push_back(video);
  for (const auto& job : jobs) loader.cancel(job);
  EXPECT_TRUE(eventually([&] { return loader.held_bytes() == 0; }));
}

TEST(Prompt, PlaceholdersBecomeTokens) {
  MediaLoader loader({.threads = 1});
  const MediaInfo info = model();
  const auto prepared =
      loader.load_now({reference(data_url(bitmap(112, 140))),
                       reference(data_url(vision_file("videos/h264.mp4"), "video/mp4"), "v", Media::Kind::video)},
                      info, no_limit);
  const std::vector<TokenId> ids =
      expand_prompt(tokenizer(), info, std::vector<TokenId>{1, info.image_id, 2, info.video_id, 3}, prepared);
  const auto count = [&](TokenId id) { return std::ranges::count(ids, id); };
  EXPECT_EQ(count(info.image_id), 20);
  const Media& video = prepared[1].media;
  EXPECT_EQ(count(info.video_id), video.t * video.h * video.w / 4);
  EXPECT_EQ(count(tokenizer().id_of("]<]start of image[>[")), 1 + video.t);
  EXPECT_EQ(count(tokenizer().id_of("]<]end of image[>[")), 1 + video.t);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 3);
  EXPECT_NE(tokenizer().decode(ids).find("]<]0.0 seconds[>[]<]start of image[>["), std::string::npos);
  EXPECT_THROW(expand_prompt(tokenizer(), info, std::vector<TokenId>{1, info.image_id}, prepared), Error);
  MediaInfo other = info;
  other.image_id = 5;
  EXPECT_THROW(expand_prompt(tokenizer(), other, std::vector<TokenId>{1}, prepared), Error);
}

TEST(References, FilesByAnyName) {
  const test::TemporaryDirectory directory;
  const std::string name = (directory / "ä picture 100%.png").string();
  test::write_file(name, vision_file("pictures/rgb-8.png"));
  MediaOptions options{.threads = 1};
  options.sources.local_root = "/";
  MediaLoader loader(options);
  EXPECT_EQ(loader.load_now(file_references({name}, {}, options), model(), no_limit).size(), 1U);
  EXPECT_THROW(file_url((directory / "none.png").string()), Error);
  EXPECT_THROW(file_url(directory.path().string()), Error);
}

}  // namespace
}  // namespace m3::media
