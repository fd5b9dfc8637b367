#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "src/base/error.h"
#include "src/vision/animated_webp.h"
#include "src/vision/image_decoders.h"
#include "src/vision/orientation.h"

namespace m3::vision {

namespace {

const std::uint8_t* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

WebPBitstreamFeatures features_of(std::span<const std::byte> bytes) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(data_of(bytes), bytes.size(), &features);
  if (status == VP8_STATUS_NOT_ENOUGH_DATA) fail("WebP: the file is cut short");
  if (status != VP8_STATUS_OK) fail("WebP: damaged");
  return features;
}

using Demuxer = std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)>;

int orientation_of(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) == 0) return 1;
  const int orientation = exif_orientation({reinterpret_cast<const std::byte*>(chunk.chunk.bytes), chunk.chunk.size});
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

Picture decode_still(std::span<const std::byte> bytes, const Size& size, bool alpha) {
  Picture picture = {size.width, size.height, {}};
  const auto pixels = static_cast<std::size_t>(size.area());
  picture.rgb.resize(pixels * 3);
  bool good = false;
  if (alpha) {
    std::vector<std::uint8_t> rgba(pixels * 4);
    good = WebPDecodeRGBAInto(data_of(bytes), bytes.size(), rgba.data(), rgba.size(), size.width * 4) != nullptr;
    put_on_white(rgba.data(), pixels, picture.rgb.data());
  } else {
    good = WebPDecodeRGBInto(data_of(bytes), bytes.size(), picture.rgb.data(), picture.rgb.size(), size.width * 3) !=
           nullptr;
  }
  if (!good) fail("WebP: damaged or cut short");
  return picture;
}

}  // namespace

AnimatedWebp::AnimatedWebp(std::span<const std::byte> bytes, std::int64_t pixels) {
  const WebPBitstreamFeatures features = features_of(bytes);
  check_declared_size(features.width, features.height, pixels, MediaType::webp);
  WebPAnimDecoderOptions options;
  WebPAnimDecoderOptionsInit(&options);
  options.color_mode = MODE_RGBA;
  const WebPData data = {data_of(bytes), bytes.size()};
  decoder_.reset(WebPAnimDecoderNew(&data, &options));
  WebPAnimInfo info;
  if (decoder_ == nullptr || WebPAnimDecoderGetInfo(decoder_.get(), &info) == 0) {
    fail("WebP: a damaged animation, or cut short");
  }
  check_declared_size(info.canvas_width, info.canvas_height, pixels, MediaType::webp);
  size_ = {static_cast<int>(info.canvas_width), static_cast<int>(info.canvas_height)};
  frames_ = static_cast<int>(info.frame_count);

  const Demuxer::pointer demuxer = const_cast<WebPDemuxer*>(WebPAnimDecoderGetDemuxer(decoder_.get()));
  WebPIterator frame;
  double now = 0;
  for (int i = 1; i <= frames_ && WebPDemuxGetFrame(demuxer, i, &frame) != 0; ++i) {
    starts_.push_back(now);
    milliseconds_ += frame.duration;
    now = static_cast<double>(milliseconds_) / 1000;
    WebPDemuxReleaseIterator(&frame);
  }
  if (static_cast<int>(starts_.size()) != frames_ || frames_ == 0) fail("WebP: an animation without its frames");
}

void AnimatedWebp::Delete::operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }

Picture AnimatedWebp::next() {
  std::uint8_t* rgba = nullptr;
  int end = 0;
  if (WebPAnimDecoderGetNext(decoder_.get(), &rgba, &end) == 0) fail("WebP: a damaged frame");
  Picture picture = {size_.width, size_.height, {}};
  const auto pixels = static_cast<std::size_t>(size_.area());
  picture.rgb.resize(pixels * 3);
  put_on_white(rgba, pixels, picture.rgb.data());
  return picture;
}

DecodedImage decode_webp(std::span<const std::byte> bytes, const ImageLimits& limits) {
  const WebPBitstreamFeatures features = features_of(bytes);
  check_declared_size(features.width, features.height, limits.pixels, MediaType::webp);
  DecodedImage image;
  image.stored = {features.width, features.height};
  image.alpha = features.has_alpha != 0;
  const WebPData data = {data_of(bytes), bytes.size()};
  const Demuxer demuxer(WebPDemux(&data), &WebPDemuxDelete);
  if (demuxer != nullptr) image.orientation = orientation_of(demuxer.get());
  if (features.has_animation == 0) {
    image.picture = decode_still(bytes, image.stored, image.alpha);
    return image;
  }
  AnimatedWebp animation(bytes, limits.pixels);
  image.frames = animation.frames();
  image.picture = animation.next();
  return image;
}

}  // namespace m3::vision
