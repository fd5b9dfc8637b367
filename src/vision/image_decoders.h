// The decoders behind decode_image(), one a file.
#pragma once

#include <cstddef>
#include <span>

#include "src/vision/decode_image.h"

namespace m3::vision {

// `picture` as stored, not turned; `orientation` as read. Each checks the declared size with check_declared_size() and
// tells `control` of it and of the memory before it allocates. Errors (input): one line that begins with the type's name.
DecodedImage decode_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control);
DecodedImage decode_png(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control);
DecodedImage decode_webp(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control);
DecodedImage decode_gif(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control);
DecodedImage decode_bmp(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control);

// Bytes of a decoded picture and of what turn_upright() or a conversion to it holds beside it.
constexpr std::int64_t rgb_bytes = 3, rgba_bytes = 4;

// Errors (input): no area, more than `pixels`, a ratio of sides above 200.
void check_declared_size(std::int64_t width, std::int64_t height, std::int64_t pixels, MediaType type);

// `count` RGBA pixels on white, as RGB. Rounds to nearest, as Pillow does.
void put_on_white(const std::uint8_t* rgba, std::size_t count, std::uint8_t* rgb);

}  // namespace m3::vision
