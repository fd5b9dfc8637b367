// Decoded files of every kind against Pillow, and files that are damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "m3/error.h"
#include "src/checkpoint/safetensors.h"
#include "src/vision/decode_image.h"
#include "src/vision/media_type.h"
#include "src/vision/orientation.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/xz.h"
#include "tests/vision/cases.h"

namespace m3::vision {
namespace {

using test::read_bytes;
using test::vision_data;

std::string error_of(std::span<const std::byte> bytes, const ImageLimits& limits = {}) {
  try {
    decode_image(bytes, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    std::string line = error.what();
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    return line;
  }
  return "";
}

std::vector<std::filesystem::path> files() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(vision_data("pictures"))) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

TEST(Pictures, EveryKindIsDecodedAsPillowDoes) {
  const test::TemporaryDirectory folder;
  const TensorFiles expected =
      TensorFiles::open_file(test::unpack_xz(vision_data("pictures.safetensors.xz"), folder.path()));
  std::size_t count = 0;
  for (const auto& path : files()) {
    SCOPED_TRACE(path.filename());
    const StoredTensor* tensor = expected.find(path.filename().string());
    ASSERT_NE(tensor, nullptr);
    const DecodedImage image = decode_image(read_bytes(path));
    ASSERT_EQ(tensor->shape, (std::vector<std::int64_t>{image.picture.height, image.picture.width, 3}));
    ASSERT_EQ(image.picture.rgb.size(), tensor->bytes.size());
    int worst = 0;
    for (std::size_t i = 0; i < tensor->bytes.size(); ++i) {
      worst = std::max(worst, std::abs(image.picture.rgb[i] - std::to_integer<int>(tensor->bytes[i])));
    }
    // Lossless files leave no room; lossy ones may differ where another version of the library is installed.
    const std::string type = path.extension();
    const bool lossy = type == ".jpg" || (type == ".webp" && !path.stem().string().starts_with("lossless"));
    EXPECT_LE(worst, lossy ? 3 : 0);
    ++count;
  }
  EXPECT_GE(count, 62u);
  EXPECT_EQ(count, expected.tensors().size());
}

TEST(Pictures, FactsBesideThePixels) {
  const auto decode = [](const char* name) { return decode_image(read_bytes(vision_data("pictures") / name)); };
  const DecodedImage turned = decode("orientation-6.jpg");
  EXPECT_EQ(turned.type, MediaType::jpeg);
  EXPECT_EQ(turned.orientation, 6);
  EXPECT_EQ(turned.stored, (Size{21, 13}));
  EXPECT_EQ(turned.picture.width, 13);
  EXPECT_TRUE(decode("rgba-8.png").alpha);
  EXPECT_TRUE(decode("palette-alpha.png").alpha);
  EXPECT_FALSE(decode("rgb-8.png").alpha);
  EXPECT_EQ(decode("animated.webp").frames, 3);
  EXPECT_EQ(decode("animated.gif").frames, 3);
}

TEST(Pictures, CutShortAnywhereIsAnErrorOrTheWholePicture) {
  for (const auto& path : files()) {
    SCOPED_TRACE(path.filename());
    const std::vector<std::byte> whole = read_bytes(path);
    const DecodedImage expected = decode_image(whole);
    for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 40) {
      try {
        const DecodedImage image = decode_image(std::span(whole).first(size));
        // What is missing lies behind the pixels: an end mark, further frames.
        EXPECT_EQ(image.picture.rgb == expected.picture.rgb, true) << size << " of " << whole.size();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
      }
    }
    const std::string half = error_of(std::span(whole).first(whole.size() / 2));
    EXPECT_NE(half, "") << "half of the file";
  }
}

TEST(Pictures, RefusedWithOneLine) {
  const auto bytes_of = [](std::string_view text) {
    return std::vector<std::byte>(reinterpret_cast<const std::byte*>(text.data()),
                                  reinterpret_cast<const std::byte*>(text.data()) + text.size());
  };
  EXPECT_NE(error_of({}).find("empty"), std::string::npos);
  EXPECT_NE(error_of(bytes_of("<!DOCTYPE html><p>404")).find("HTML"), std::string::npos);
  EXPECT_NE(error_of(bytes_of("%PDF-1.7")).find("PDF"), std::string::npos);
  EXPECT_NE(error_of(bytes_of(std::string("\0\0\0\x20"
                                          "ftypavif",
                                          12)))
                .find("AVIF"),
            std::string::npos);
  EXPECT_NE(error_of(bytes_of("hello")).find("68 65 6c 6c 6f"), std::string::npos);
  EXPECT_NE(error_of(read_bytes(vision_data("videos/h264.mp4"))).find("video"), std::string::npos);

  const std::vector<std::byte> png = read_bytes(vision_data("pictures/rgb-8.png"));
  EXPECT_NE(error_of(png, {.bytes = 100}).find("100"), std::string::npos);
  EXPECT_NE(error_of(png, {.pixels = 37 * 23 - 1}).find("37x23"), std::string::npos);
  EXPECT_EQ(error_of(png, {.pixels = 37 * 23}), "");
}

// Files that declare sizes are refused by them, before any memory is taken for pixels.
TEST(Pictures, DeclaredSizesAreCheckedFirst) {
  std::vector<std::byte> bmp = read_bytes(vision_data("pictures/rle8.bmp"));
  const auto put = [&](std::size_t at, std::uint32_t value) { std::memcpy(bmp.data() + at, &value, 4); };
  put(18, 60'000);
  put(22, 60'000);
  EXPECT_NE(error_of(bmp).find("60000x60000"), std::string::npos);
  put(18, 30'000);
  put(22, 1);
  EXPECT_NE(error_of(bmp).find("ratio"), std::string::npos);
  put(22, 0x80000000u);
  EXPECT_NE(error_of(bmp), "");
  put(18, 0);
  EXPECT_NE(error_of(bmp), "");

  std::vector<std::byte> gif = read_bytes(vision_data("pictures/plain.gif"));
  for (const std::size_t at : {6, 7, 8, 9}) gif[at] = std::byte{0xff};
  EXPECT_NE(error_of(gif), "");
}

TEST(Pictures, EveryByteChangedIsAnErrorOrAPicture) {
  for (const char* name : {"420.jpg", "progressive.jpg", "interlaced.png", "lossy-alpha.webp", "animated.webp",
                           "transparent.gif", "rle8.bmp", "565.bmp"}) {
    SCOPED_TRACE(name);
    std::vector<std::byte> bytes = read_bytes(vision_data("pictures") / name);
    const std::size_t step = 1 + bytes.size() / 300;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const std::byte before = std::exchange(bytes[at], bytes[at] ^ std::byte{0xff});
      error_of(bytes, {.pixels = 1 << 20});
      bytes[at] = before;
    }
    EXPECT_EQ(error_of(bytes), "") << "the next one works";
  }
}

TEST(Orientation, TagsOfEveryShape) {
  const auto parse = [](std::string_view text) { return exif_orientation(std::as_bytes(std::span(text))); };
  using namespace std::string_view_literals;
  EXPECT_EQ(parse("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"sv), 6);
  EXPECT_EQ(parse("Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\x08\0\0\0\0\0\0"sv), 8);
  EXPECT_EQ(parse("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x09\0\0\0\0\0\0\0"sv), 1) << "no such orientation";
  EXPECT_EQ(parse("II*\0\x08\0\0\0\1\0\x12\1\4\0\1\0\0\0\6\0\0\0\0\0\0\0"sv), 1) << "another type";
  EXPECT_EQ(parse("II*\0\xff\xff\xff\xff"sv), 1) << "a directory outside";
  EXPECT_EQ(parse("II*\0\x08\0\0\0\xff\xff\x12"sv), 1) << "entries outside";
  EXPECT_EQ(parse(""sv), 1);
}

}  // namespace
}  // namespace m3::vision
