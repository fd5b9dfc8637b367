#include "src/vision/orientation.h"

#include <optional>
#include <string_view>

namespace m3::vision {

namespace {

// Numbers of a TIFF structure in its own byte order.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> bytes, bool big) : bytes_(bytes), big_(big) {}

  std::optional<std::uint32_t> number(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t shift = 8 * (big_ ? size - 1 - i : i);
      value |= std::to_integer<std::uint32_t>(bytes_[at + i]) << shift;
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_;
};

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  using namespace std::string_view_literals;
  const auto begins = [&](std::string_view with) {
    return std::string_view(reinterpret_cast<const char*>(exif.data()), exif.size()).starts_with(with);
  };
  if (begins("Exif\0\0"sv)) exif = exif.subspan(6);
  const bool big = begins("MM\0*"sv);
  if (!big && !begins("II*\0"sv)) return 1;
  const TiffReader reader(exif, big);
  const auto directory = reader.number(4, 4);
  if (!directory) return 1;
  const std::size_t base = *directory;
  const std::uint32_t count = reader.number(base, 2).value_or(0);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t entry = base + 2 + std::size_t{12} * i;
    const auto tag = reader.number(entry, 2);
    if (!tag) return 1;
    if (*tag != 0x0112) continue;
    if (reader.number(entry + 2, 2) != 3u) return 1;  // a 16-bit number
    const std::uint32_t value = reader.number(entry + 8, 2).value_or(1);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Picture turn_upright(Picture picture, int orientation) {
  if (orientation <= 1 || orientation > 8) return picture;
  const int width = picture.width;
  const int height = picture.height;
  const bool sideways = turns_sideways(orientation);
  Picture result = {sideways ? height : width, sideways ? width : height, {}};
  result.rgb.resize(picture.rgb.size());
  // Where in the stored picture the first pixel lies, and the steps to the next one to the right and below.
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::ptrdiff_t across = from_right ? -3 : 3;
  const std::ptrdiff_t down = std::ptrdiff_t{width} * (from_bottom ? -3 : 3);
  const std::ptrdiff_t right = sideways ? down : across;
  const std::ptrdiff_t below = sideways ? across : down;
  const std::uint8_t* first = picture.rgb.data() + (from_right ? std::ptrdiff_t{width - 1} * 3 : 0) +
                              (from_bottom ? std::ptrdiff_t{height - 1} * width * 3 : 0);
  std::uint8_t* out = result.rgb.data();
  for (int y = 0; y < result.height; ++y) {
    for (int x = 0; x < result.width; ++x, out += 3) {
      const std::uint8_t* in = first + y * below + x * right;
      out[0] = in[0];
      out[1] = in[1];
      out[2] = in[2];
    }
  }
  return result;
}

}  // namespace m3::vision
