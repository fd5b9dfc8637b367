#include "src/vision/preprocess.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/vision/orientation.h"
#include "src/vision/resize.h"

namespace m3::vision {

namespace {

Size size_of(const Picture& picture) { return {picture.width, picture.height}; }

// The size of every frame of a video with `frames` of them.
Size frame_size(const Size& shown, std::int64_t frames, const VideoOptions& options) {
  const std::int64_t counted = (frames + options.shape.temporal - 1) / options.shape.temporal * options.shape.temporal;
  const std::int64_t total = std::min(options.total_pixels, largest_video);
  SizeOptions sizes = options.size;
  if (sizes.rule == SizeRule::area) {
    const std::int64_t share = total / counted;
    if (share < sizes.min_pixels) {
      fail("{} frames leave {} pixels for each of the {} in all, less than min_pixels {}; ask for fewer frames", frames,
           share, total, sizes.min_pixels);
    }
    sizes.max_pixels = std::min(sizes.max_pixels, share);
  }
  const Size resized = resized_size(shown, sizes, options.shape);
  if (resized.area() > total / counted) {
    fail("{} frames of {}x{} are more than {} pixels in all; ask for fewer or smaller frames", frames, resized.width,
         resized.height, total);
  }
  return resized;
}

// Takes frames one by one and keeps the patches of full groups.
class GroupWriter {
 public:
  GroupWriter(const Size& resized, std::int64_t frames, const VideoOptions& options)
      : options_(options), resized_(resized) {
    pixels_.video = true;
    pixels_.grid = grid_of(resized, frames, options.shape);
    pixels_.values.reserve(static_cast<std::size_t>(pixels_.grid.patches() * options.shape.values()));
    pixels_.grid.t = 0;
  }

  void add(const Picture& frame) {
    group_.push_back(resize(frame, resized_.width, resized_.height));
    if (static_cast<int>(group_.size()) == options_.shape.temporal) flush();
  }

  Pixels finish() {
    if (!group_.empty()) flush();
    return std::move(pixels_);
  }

 private:
  void flush() {
    append_group(group_, options_.shape, options_.levels, pixels_.values);
    ++pixels_.grid.t;
    group_.clear();
  }

  const VideoOptions& options_;
  Size resized_;
  std::vector<Picture> group_;
  Pixels pixels_;
};

}  // namespace

Pixels image_pixels(const Picture& picture, const ImageOptions& options) {
  check_size_options(options.size);
  const Size size = resized_size(size_of(picture), options.size, options.shape);
  const Picture resized = resize(picture, size.width, size.height);
  return make_pixels({&resized, 1}, options.shape, options.levels);
}

Pixels image_pixels(std::span<const std::byte> bytes, const ImageOptions& options) {
  check_size_options(options.size);
  return image_pixels(decode_image(bytes, options.limits).picture, options);
}

VideoPlan plan_video(const VideoReader& reader, const VideoOptions& options) {
  check_size_options(options.size);
  check_sampling_options(options.sampling);
  VideoPlan plan;
  plan.shown = reader.stored();
  if (turns_sideways(reader.orientation())) std::swap(plan.shown.width, plan.shown.height);
  plan.frames = choose_frames(reader.starts(), options.sampling);
  const auto count = static_cast<std::int64_t>(plan.frames.size());
  plan.resized = frame_size(plan.shown, count, options);
  plan.grid = grid_of(plan.resized, count, options.shape);
  return plan;
}

Pixels video_pixels(std::span<const std::byte> bytes, const VideoOptions& options) {
  VideoReader reader(bytes, options.limits);
  return video_pixels(reader, plan_video(reader, options), options);
}

Pixels video_pixels(VideoReader& reader, const VideoPlan& plan, const VideoOptions& options) {
  GroupWriter writer(plan.resized, static_cast<std::int64_t>(plan.frames.size()), options);
  std::vector<double> timestamps;
  std::size_t count = 0;
  const auto take = [&](const Picture& frame, double seconds) {
    if (count++ % static_cast<std::size_t>(options.shape.temporal) == 0) timestamps.push_back(seconds);
    writer.add(frame);
  };
  reader.read(plan.frames, take);
  Pixels pixels = writer.finish();
  pixels.timestamps = std::move(timestamps);
  return pixels;
}

Pixels video_pixels(std::span<const Picture> frames, const VideoOptions& options) {
  check_size_options(options.size);
  if (frames.empty()) fail("a video without frames");
  for (const Picture& frame : frames) {
    if (size_of(frame) != size_of(frames[0])) {
      fail("a video with frames of {}x{} and {}x{}", frames[0].width, frames[0].height, frame.width, frame.height);
    }
  }
  const auto count = static_cast<std::int64_t>(frames.size());
  GroupWriter writer(frame_size(size_of(frames[0]), count, options), count, options);
  for (const Picture& frame : frames) writer.add(frame);
  return writer.finish();
}

}  // namespace m3::vision
