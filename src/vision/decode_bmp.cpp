// BMP: the rows of every depth, run-length coding and bit masks. Formats within the format (JPEG, PNG) are refused.
#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "src/base/error.h"
#include "src/vision/image_decoders.h"

namespace m3::vision {

namespace {

enum Compression : std::uint32_t { plain = 0, rle8 = 1, rle4 = 2, masks = 3, alpha_masks = 6 };

[[noreturn]] void cut_short() { fail("BMP: the file is cut short"); }

struct Mask {
  std::uint32_t bits = 0;

  std::uint8_t level(std::uint32_t pixel) const {
    if (bits == 0) return 0;
    const int shift = std::countr_zero(bits);
    const std::uint64_t most = bits >> shift;
    return static_cast<std::uint8_t>(std::uint64_t{(pixel & bits) >> shift} * 255 / most);
  }
};

class BmpReader {
 public:
  BmpReader(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control)
      : bytes_(bytes), control_(control) {
    read_header(limits);
    if (depth_ <= 8) read_palette();
  }

  DecodedImage decode() {
    DecodedImage image;
    image.stored = {width_, height_};
    image.alpha = alpha_.bits != 0;
    image.picture = {width_, height_, {}};
    control_.declare(image.stored);
    const bool runs = compression_ == rle8 || compression_ == rle4;
    control_.need((rgb_bytes + (runs ? 1 : 0)) * image.stored.area());
    if (runs) {
      read_runs(image.picture.rgb);
    } else {
      read_rows(image.picture.rgb);
    }
    return image;
  }

 private:
  using Colour = std::array<std::uint8_t, 3>;

  std::uint32_t number(std::size_t at, int size) const {
    if (at > bytes_.size() || bytes_.size() - at < static_cast<std::size_t>(size)) cut_short();
    std::uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      value |= std::to_integer<std::uint32_t>(bytes_[at + static_cast<std::size_t>(i)]) << (8 * i);
    }
    return value;
  }

  void read_header(const ImageLimits& limits) {
    pixels_at_ = number(10, 4);
    header_ = number(14, 4);
    if (header_ != 12 && (header_ < 16 || header_ > 1024)) fail("BMP: a header of {} bytes", header_);
    const bool old = header_ == 12;  // of OS/2
    std::int64_t width = 0;
    std::int64_t height = 0;
    if (old) {
      width = number(18, 2);
      height = number(20, 2);
      depth_ = static_cast<int>(number(24, 2));
    } else {
      width = static_cast<std::int32_t>(number(18, 4));
      height = static_cast<std::int32_t>(number(22, 4));
      depth_ = static_cast<int>(number(28, 2));
      compression_ = header_ >= 20 ? number(30, 4) : std::uint32_t{plain};
      colours_ = header_ >= 36 ? number(46, 4) : 0;
    }
    top_down_ = height < 0;
    if (top_down_) height = -height;
    check_declared_size(width, height, limits.pixels, MediaType::bmp);
    width_ = static_cast<int>(width);
    height_ = static_cast<int>(height);
    read_masks();

    const bool known_depth = depth_ == 1 || depth_ == 4 || depth_ == 8 || depth_ == 16 || depth_ == 24 || depth_ == 32;
    const bool known = compression_ == plain || (compression_ == rle8 && depth_ == 8) ||
                       (compression_ == rle4 && depth_ == 4) ||
                       ((compression_ == masks || compression_ == alpha_masks) && (depth_ == 16 || depth_ == 32));
    if (!known_depth || !known) fail("BMP: {} bits a pixel with compression {} is not read", depth_, compression_);
    if (top_down_ && (compression_ == rle8 || compression_ == rle4)) fail("BMP: run-length coding from the top");
  }

  void read_masks() {
    if (compression_ != masks && compression_ != alpha_masks) {
      if (depth_ == 16) {
        red_.bits = 0x7c00;
        green_.bits = 0x03e0;
        blue_.bits = 0x001f;
      } else {
        red_.bits = 0xff0000;
        green_.bits = 0x00ff00;
        blue_.bits = 0x0000ff;
      }
      return;
    }
    // At the end of the first 40 bytes of the header, whether it counts them as its own or not.
    red_.bits = number(54, 4);
    green_.bits = number(58, 4);
    blue_.bits = number(62, 4);
    if (header_ >= 56 || compression_ == alpha_masks) alpha_.bits = number(66, 4);
  }

  void read_palette() {
    const std::size_t entry = header_ == 12 ? 3 : 4;
    const std::size_t most = std::size_t{1} << depth_;
    const std::size_t count = colours_ == 0 ? most : std::min<std::size_t>(colours_, most);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = 14 + header_ + i * entry;
      if (at + 3 > pixels_at_) break;  // an old palette that is shorter than it says
      palette_[i] = {static_cast<std::uint8_t>(number(at + 2, 1)), static_cast<std::uint8_t>(number(at + 1, 1)),
                     static_cast<std::uint8_t>(number(at, 1))};
    }
  }

  std::size_t row_at(int y) const { return std::size_t(top_down_ ? y : height_ - 1 - y) * std::size_t(width_) * 3; }

  void read_rows(LargeVector<std::uint8_t>& rgb) const {
    const std::size_t stride = (std::size_t(width_) * std::size_t(depth_) + 31) / 32 * 4;
    // The last row may lack its padding.
    const std::size_t needed = stride * std::size_t(height_ - 1) + (std::size_t(width_) * std::size_t(depth_) + 7) / 8;
    if (pixels_at_ > bytes_.size() || bytes_.size() - pixels_at_ < needed) cut_short();
    rgb.resize(std::size_t(width_) * std::size_t(height_) * 3);
    for (int y = 0; y < height_; ++y) {
      control_.keep_on();
      read_row(bytes_.data() + pixels_at_ + stride * std::size_t(y), rgb.data() + row_at(y));
    }
  }

  void read_row(const std::byte* in, std::uint8_t* out) const {
    const auto byte = [&](int at) { return std::to_integer<std::uint32_t>(in[at]); };
    for (int x = 0; x < width_; ++x, out += 3) {
      if (depth_ <= 8) {
        const int bit = x * depth_;
        const std::uint32_t index = byte(bit / 8) >> (8 - depth_ - bit % 8) & ((1u << depth_) - 1);
        std::ranges::copy(palette_[index], out);
      } else if (depth_ == 24) {
        out[0] = static_cast<std::uint8_t>(byte(x * 3 + 2));
        out[1] = static_cast<std::uint8_t>(byte(x * 3 + 1));
        out[2] = static_cast<std::uint8_t>(byte(x * 3));
      } else {
        std::uint32_t pixel = byte(x * (depth_ / 8)) | byte(x * (depth_ / 8) + 1) << 8;
        if (depth_ == 32) pixel |= byte(x * 4 + 2) << 16 | byte(x * 4 + 3) << 24;
        const std::array<std::uint8_t, 4> rgba = {red_.level(pixel), green_.level(pixel), blue_.level(pixel),
                                                  alpha_.bits == 0 ? std::uint8_t{255} : alpha_.level(pixel)};
        put_on_white(rgba.data(), 1, out);
      }
    }
  }

  // Runs and literals; what they skip keeps colour 0.
  void read_runs(LargeVector<std::uint8_t>& rgb) const {
    std::vector<std::uint8_t> indices(std::size_t(width_) * std::size_t(height_));
    std::size_t at = pixels_at_;
    int x = 0;
    int y = 0;
    const auto next = [&] { return static_cast<int>(number(at++, 1)); };
    const auto put = [&](int index) {
      if (y < height_ && x < width_)
        indices[std::size_t(y) * std::size_t(width_) + std::size_t(x)] = std::uint8_t(index);
      ++x;
    };
    // Of a byte: with 4 bits a pixel two indices, taken in turn.
    const auto index = [&](int byte, int i) {
      if (compression_ == rle8) return byte;
      return i % 2 == 0 ? byte >> 4 : byte & 15;
    };
    while (y < height_) {
      const int count = next();
      const int value = next();
      if (count > 0) {
        for (int i = 0; i < count; ++i) put(index(value, i));
      } else if (value == 0) {
        x = 0;
        ++y;
      } else if (value == 1) {
        break;
      } else if (value == 2) {
        x += next();
        y += next();
      } else {
        const std::size_t literal = compression_ == rle8 ? std::size_t(value) : (std::size_t(value) + 1) / 2;
        int byte = 0;
        for (int i = 0; i < value; ++i) {
          if (compression_ == rle8 || i % 2 == 0) byte = next();
          put(index(byte, i));
        }
        at += literal % 2;
      }
      x = std::min(x, width_);  // bounded, whatever the runs say
    }
    rgb.resize(indices.size() * 3);
    for (int row = 0; row < height_; ++row) {
      std::uint8_t* out = rgb.data() + row_at(row);
      for (int column = 0; column < width_; ++column, out += 3) {
        std::ranges::copy(palette_[indices[std::size_t(row) * std::size_t(width_) + std::size_t(column)]], out);
      }
    }
  }

  std::span<const std::byte> bytes_;
  const DecodeControl& control_;
  std::size_t pixels_at_ = 0, header_ = 0;
  int width_ = 0, height_ = 0, depth_ = 0;
  bool top_down_ = false;
  std::uint32_t compression_ = plain, colours_ = 0;
  Mask red_, green_, blue_, alpha_;
  std::array<Colour, 256> palette_ = {};
};

}  // namespace

DecodedImage decode_bmp(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control) {
  return BmpReader(bytes, limits, control).decode();
}

}  // namespace m3::vision
