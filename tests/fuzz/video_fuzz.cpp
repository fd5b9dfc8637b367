// Any bytes as a video: sampled and decoded within the limits, or refused with an m3::Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/error.h"
#include "src/vision/preprocess.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    m3::vision::VideoOptions options;
    options.limits = {.bytes = 1 << 20, .pixels = 1 << 16, .all_pixels = 1 << 22, .frames = 100};
    options.sampling = {.fps = 5, .max_frames = 16};
    options.size.max_long_side = 112;
    m3::vision::video_pixels(std::as_bytes(std::span(data, size)), options);
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
  return 0;
}
