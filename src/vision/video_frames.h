// The readers behind VideoReader.
#pragma once

#include <memory>

#include "src/vision/video_reader.h"

namespace m3::vision {

class VideoFrames {
 public:
  virtual ~VideoFrames() = default;
  virtual void read(std::span<const std::size_t> wanted, FunctionRef<void(Picture, double)> take) = 0;

  MediaType type = MediaType::unknown;
  const char* codec = "";
  Size stored;
  int orientation = 1;
  std::vector<double> starts;
};

std::unique_ptr<VideoFrames> make_libav_frames(std::span<const std::byte> bytes, MediaType type,
                                               const VideoLimits& limits, const DecodeControl& control);

}  // namespace m3::vision
