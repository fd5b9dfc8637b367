// From a file's bytes to what the tower reads, and what it amounts to on the way.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "src/vision/decode_image.h"
#include "src/vision/patches.h"
#include "src/vision/sampling.h"
#include "src/vision/sizing.h"
#include "src/vision/video_reader.h"

namespace m3::vision {

struct ImageOptions {
  SizeOptions size;
  ImageLimits limits;
  PatchShape shape;
  Normalisation levels;
};

// Frames have bounds of their own, smaller or larger than a picture's.
inline constexpr SizeOptions frame_sizes = {.min_pixels = 3136, .max_pixels = 602'112, .max_long_side = 672};
// Pixels after resizing, all frames together (an odd number counts the repeated one).
inline constexpr std::int64_t largest_video = 301'056'000;

struct VideoOptions {
  SamplingOptions sampling;
  SizeOptions size = frame_sizes;
  // Where given, frames shrink (area rule) until all of them fit; the long-side rule refuses instead.
  std::int64_t total_pixels = largest_video;
  VideoLimits limits;
  PatchShape shape;
  Normalisation levels;
};

// A picture, decoded, resized and cut into patches. Errors (input): one line without the source's name.
Pixels image_pixels(std::span<const std::byte> bytes, const ImageOptions& options);
Pixels image_pixels(const Picture& picture, const ImageOptions& options);

// What a video will become, before any frame is decoded.
struct VideoPlan {
  Size shown;  // of a frame, upright
  Size resized;
  std::vector<std::size_t> frames;  // chosen ones
  Grid grid;
};
// Errors (input): sizes and totals beyond the limits.
VideoPlan plan_video(const VideoReader& reader, const VideoOptions& options);

// A video, sampled, decoded, resized and cut into patches, with timestamps. Errors as for pictures.
Pixels video_pixels(std::span<const std::byte> bytes, const VideoOptions& options);
// The same of what was planned.
Pixels video_pixels(VideoReader& reader, const VideoPlan& plan, const VideoOptions& options);

// Frames that were sampled elsewhere, without timestamps. All of one size. Errors (input): none, sizes that differ.
Pixels video_pixels(std::span<const Picture> frames, const VideoOptions& options);

}  // namespace m3::vision
