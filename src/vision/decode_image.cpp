#include "src/vision/decode_image.h"

#include "src/base/error.h"
#include "src/vision/image_decoders.h"
#include "src/vision/orientation.h"

namespace m3::vision {

void check_declared_size(std::int64_t width, std::int64_t height, std::int64_t pixels, MediaType type) {
  const std::string_view name = media_type_name(type);
  if (width < 1 || height < 1) fail("{}: a size of {}x{} pixels", name, width, height);
  if (width > pixels / height) fail("{}: {}x{} pixels, more than the {} allowed", name, width, height, pixels);
  if (width > longest_ratio * height || height > longest_ratio * width) {
    fail("{}: {}x{} pixels, a ratio of sides above {}", name, width, height, longest_ratio);
  }
}

void put_on_white(const std::uint8_t* rgba, std::size_t count, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < count; ++i, rgba += 4, rgb += 3) {
    const unsigned alpha = rgba[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned sum = rgba[c] * alpha + 255 * (255 - alpha) + 128;
      rgb[c] = static_cast<std::uint8_t>((sum + (sum >> 8)) >> 8);  // sum / 255
    }
  }
}

DecodedImage decode_image(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control) {
  if (static_cast<std::int64_t>(bytes.size()) > limits.bytes) {
    fail("{} bytes, more than the {} allowed for a picture", bytes.size(), limits.bytes);
  }
  const MediaType type = media_type(bytes);
  const auto decode = [&]() -> DecodedImage {
    switch (type) {
      case MediaType::jpeg: return decode_jpeg(bytes, limits, control);
      case MediaType::png: return decode_png(bytes, limits, control);
      case MediaType::webp: return decode_webp(bytes, limits, control);
      case MediaType::gif: return decode_gif(bytes, limits, control);
      case MediaType::bmp: return decode_bmp(bytes, limits, control);
      case MediaType::unknown:
        fail("not a picture: {}; JPEG, PNG, WebP, GIF and BMP are read", describe_unknown(bytes));
      default: fail("not a picture but a video ({}); pass it as one", media_type_name(type));
    }
  };
  DecodedImage image = decode();
  image.type = type;
  control.keep_on();
  image.picture = turn_upright(std::move(image.picture), image.orientation);
  return image;
}

}  // namespace m3::vision
