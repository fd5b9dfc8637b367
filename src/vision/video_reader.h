// Videos from bytes that nobody vouches for, through FFmpeg's libraries; animated WebP through libwebp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/function_ref.h"
#include "src/vision/decode_control.h"
#include "src/vision/media_type.h"
#include "src/vision/sizing.h"

namespace m3::vision {

// What is refused before decoding, by what a file declares; its frames' areas are counted again as they are decoded.
struct VideoLimits {
  std::int64_t bytes = std::int64_t{256} << 20;  // of the file
  std::int64_t pixels = std::int64_t{36} << 20;  // of a frame: 8K (7680 x 4320) has 33 million
  // Frames x area, of all frames up to the last one that is shown. At one frame a second max_frames' default, 768, are
  // 12.8 minutes: of 1280 x 720 at 30 a second 21e9 pixels; 6 minutes of 1920 x 1080, 100 seconds of 4K.
  std::int64_t all_pixels = 25'000'000'000;
  std::int64_t frames = 1'000'000;
};

class VideoFrames;  // of one kind of file

class VideoReader {
 public:
  // `bytes` and `control` must outlive this. Opens the container and reads its index of frames; decodes nothing yet.
  // Errors (input), one line without the source's name: not a video, no video stream, no decoder for it, too large,
  // damaged; and what `control` throws, here and in read().
  explicit VideoReader(std::span<const std::byte> bytes, const VideoLimits& limits = {},
                       const DecodeControl& control = no_control);
  ~VideoReader();
  VideoReader(const VideoReader&) = delete;
  VideoReader& operator=(const VideoReader&) = delete;

  MediaType type() const;
  const char* codec() const;  // "h264"
  Size stored() const;        // of a frame, as the file has it
  int orientation() const;    // frames come turned already
  // Seconds from the first frame at which each frame is shown, ascending; at least one.
  const std::vector<double>& starts() const;

  // Decodes from the beginning and hands over the frames shown at `wanted`, which are ascending numbers of starts():
  // upright, 8-bit RGB on white, with the time they really have. A frame that the decoder leaves out is replaced by the
  // next one there is. Call once. Errors (input): damaged, more pixels than declared and allowed.
  void read(std::span<const std::size_t> wanted, FunctionRef<void(Picture frame, double seconds)> take);

 private:
  std::unique_ptr<VideoFrames> frames_;
};

}  // namespace m3::vision
