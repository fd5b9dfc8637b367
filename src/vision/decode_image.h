// Pictures from bytes that nobody vouches for: JPEG, PNG, WebP, GIF, BMP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/vision/decode_control.h"
#include "src/vision/media_type.h"
#include "src/vision/patches.h"
#include "src/vision/sizing.h"

namespace m3::vision {

// What is refused before any decoding, by the sizes that a file declares.
struct ImageLimits {
  std::int64_t bytes = std::int64_t{30} << 20;    // of the file
  std::int64_t pixels = std::int64_t{128} << 20;  // decoded: 384 MiB as RGB
};

struct DecodedImage {
  MediaType type = MediaType::unknown;
  Size stored;          // as the file has it
  int orientation = 1;  // EXIF; `picture` is turned already
  bool alpha = false;   // there were transparent pixels' levels; `picture` lies on white
  int frames = 1;       // more than one: `picture` is the first
  Picture picture;
};

// One frame, upright, 8-bit RGB on white; 16 bits keep the upper 8; grey, palettes and CMYK become RGB. Errors (input),
// one line without the source's name: empty, too large, another kind of file, too many pixels, sides beyond 200:1,
// damaged, cut short; and what `control` throws.
DecodedImage decode_image(std::span<const std::byte> bytes, const ImageLimits& limits = {},
                          const DecodeControl& control = no_control);

}  // namespace m3::vision
