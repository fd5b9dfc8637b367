#include "src/vision/video_reader.h"

#include "src/base/error.h"
#include "src/vision/animated_webp.h"
#include "src/vision/video_frames.h"

namespace m3::vision {

namespace {

// Animated WebP, which FFmpeg's libraries do not decode.
class WebpFrames final : public VideoFrames {
 public:
  WebpFrames(std::span<const std::byte> bytes, const VideoLimits& limits, const DecodeControl& control)
      : animation_(bytes, limits.pixels, control), control_(control) {
    type = MediaType::webp;
    codec = "webp";
    stored = animation_.size();
    starts = animation_.starts();
  }

  void read(std::span<const std::size_t> wanted, FunctionRef<void(Picture, double)> take) override {
    std::size_t next = 0;
    for (const std::size_t frame : wanted) {
      Picture picture;
      for (; next <= frame; ++next) {
        control_.keep_on();
        picture = animation_.next();
      }
      take(std::move(picture), starts[frame]);
    }
  }

 private:
  AnimatedWebp animation_;
  const DecodeControl& control_;
};

}  // namespace

VideoReader::VideoReader(std::span<const std::byte> bytes, const VideoLimits& limits, const DecodeControl& control) {
  if (static_cast<std::int64_t>(bytes.size()) > limits.bytes) {
    fail("{} bytes, more than the {} allowed for a video", bytes.size(), limits.bytes);
  }
  const MediaType type = media_type(bytes);
  if (!is_video(type)) {
    fail("not a video: {}; MP4, QuickTime, Matroska, WebM, AVI, MPEG, Ogg, GIF and WebP are read",
         type == MediaType::unknown ? describe_unknown(bytes) : std::string(media_type_name(type)));
  }
  if (type == MediaType::webp) {
    frames_ = std::make_unique<WebpFrames>(bytes, limits, control);
  } else {
    frames_ = make_libav_frames(bytes, type, limits, control);
  }
  const auto count = static_cast<std::int64_t>(starts().size());
  if (count > limits.frames)
    fail("{}: {} frames, more than the {} allowed", media_type_name(type), count, limits.frames);
  if (stored().area() > limits.all_pixels / count) {
    fail("{}: {} frames of {}x{}, more than {} pixels in all (--media-max-video-total-pixels)", media_type_name(type),
         count, stored().width, stored().height, limits.all_pixels);
  }
}

VideoReader::~VideoReader() = default;

MediaType VideoReader::type() const { return frames_->type; }
const char* VideoReader::codec() const { return frames_->codec; }
Size VideoReader::stored() const { return frames_->stored; }
int VideoReader::orientation() const { return frames_->orientation; }
const std::vector<double>& VideoReader::starts() const { return frames_->starts; }

void VideoReader::read(std::span<const std::size_t> wanted, FunctionRef<void(Picture frame, double seconds)> take) {
  frames_->read(wanted, take);
}

}  // namespace m3::vision
