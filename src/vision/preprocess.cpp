#include "src/vision/preprocess.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/vision/orientation.h"
#include "src/vision/patch_kernels.h"
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
      : options_(options),
        resized_(resized),
        pixels_(empty_pixels(grid_of(resized, frames, options.shape), options.shape)),
        group_(static_cast<std::size_t>(options.shape.temporal)) {
    pixels_.video = true;
    pixels_.grid.t = 0;
    for (Picture& frame : group_) {
      frame = {resized.width, resized.height, {}};
      frame.rgb.resize(static_cast<std::size_t>(resized.area()) * 3);
    }
  }

  void add(const Picture& frame) {
    Resizer(frame, resized_.width, resized_.height).next(resized_.height, group_[present_].rgb.data());
    if (++present_ == group_.size()) flush();
  }

  Pixels finish() {
    if (present_ > 0) flush();
    return std::move(pixels_);
  }

 private:
  void flush() {
    append_group({group_.data(), present_}, options_.shape, options_.levels, pixels_.values);
    ++pixels_.grid.t;
    present_ = 0;
  }

  const VideoOptions& options_;
  Size resized_;
  Pixels pixels_;
  std::vector<Picture> group_;  // whose memory serves all groups
  std::size_t present_ = 0;
};

}  // namespace

Pixels image_pixels(const Picture& picture, const ImageOptions& options) {
  check_size_options(options.size);
  const Size size = resized_size(size_of(picture), options.size, options.shape);
  if (size == size_of(picture)) return make_pixels({&picture, 1}, options.shape, options.levels);
  // A row of blocks at a time, which stays in the cache.
  const PatchShape& shape = options.shape;
  Pixels pixels = empty_pixels(grid_of(size, 1, shape), shape);
  Resizer resizer(picture, size.width, size.height);
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(shape.factor()) * static_cast<std::size_t>(size.width) * 3 +
                                 detail::patch_slack);
  const std::span<const std::uint8_t> frame = rows;
  for (int y = 0; y < size.height; y += shape.factor()) {
    resizer.next(shape.factor(), rows.data());
    append_blocks({&frame, 1}, size.width, shape, options.levels, pixels.values);
  }
  return pixels;
}

Pixels image_pixels(std::span<const std::byte> bytes, const ImageOptions& options) {
  check_size_options(options.size);
  return image_pixels(decode_image(bytes, options.limits).picture, options);
}

VideoPlan plan_video(const VideoReader& reader, const VideoOptions& options) {
  check_size_options(options.size);
  check_sampling_options(options.sampling);
  VideoPlan plan;
  plan.shown = upright(reader.stored(), reader.orientation());
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
