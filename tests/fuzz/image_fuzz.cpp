// Any bytes as a picture: decoded within the limits and turned into patches, or refused with an m3::Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/error.h"
#include "src/vision/preprocess.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    m3::vision::ImageOptions options;
    options.limits.pixels = 1 << 18;
    options.size.max_long_side = 112;
    m3::vision::image_pixels(std::as_bytes(std::span(data, size)), options);
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
  return 0;
}
