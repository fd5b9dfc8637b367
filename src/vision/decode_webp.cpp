#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <cstring>
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

// That the container's header tells, with itself; 0: there is none around the bare picture.
std::uint64_t riff_size(std::span<const std::byte> bytes) {
  constexpr std::size_t header = 8;
  if (bytes.size() < header || std::memcmp(bytes.data(), "RIFF", 4) != 0) return 0;
  std::uint64_t size = 0;
  for (std::size_t i = header; i-- > 4;) size = size << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return header + size;
}

using Demuxer = std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)>;

int orientation_of(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) == 0) return 1;
  const int orientation = exif_orientation({reinterpret_cast<const std::byte*>(chunk.chunk.bytes), chunk.chunk.size});
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

struct DeleteDecoder {
  void operator()(WebPIDecoder* decoder) const { WebPIDelete(decoder); }
};

// Of the file's bytes that are decoded between two looks at `control`.
constexpr std::size_t piece_bytes = std::size_t{16} << 10;

// Into `out`, in the mode's bytes a pixel.
void decode_pieces(std::span<const std::byte> bytes, WEBP_CSP_MODE mode, std::span<std::uint8_t> out, int row_bytes,
                   const DecodeControl& control) {
  const std::unique_ptr<WebPIDecoder, DeleteDecoder> decoder(WebPINewRGB(mode, out.data(), out.size(), row_bytes));
  if (decoder == nullptr) fail_resource("WebP: out of memory");
  VP8StatusCode status = VP8_STATUS_SUSPENDED;
  for (std::size_t at = 0; at < bytes.size() && status == VP8_STATUS_SUSPENDED;) {
    control.keep_on();
    at = std::min(bytes.size(), at + piece_bytes);
    status = WebPIUpdate(decoder.get(), data_of(bytes), at);
  }
  if (status != VP8_STATUS_OK) fail("WebP: damaged or cut short");
}

Picture decode_still(std::span<const std::byte> bytes, const Size& size, bool alpha, const DecodeControl& control) {
  Picture picture = {size.width, size.height, {}};
  const auto pixels = static_cast<std::size_t>(size.area());
  picture.rgb.resize(pixels * 3);
  if (!alpha) {
    decode_pieces(bytes, MODE_RGB, picture.rgb, size.width * 3, control);
    return picture;
  }
  std::vector<std::uint8_t> rgba(pixels * 4);
  decode_pieces(bytes, MODE_RGBA, rgba, size.width * 4, control);
  put_on_white(rgba.data(), pixels, picture.rgb.data());
  return picture;
}

// Beside a picture's RGB: what a lossless one is decoded into, or an alpha plane and its own decoder's.
constexpr std::int64_t lossless_bytes = 4, alpha_bytes = 2;
// Of an animation: two canvases and a frame's own pixels, with what they are decoded into.
constexpr std::int64_t animation_bytes = 2 * rgba_bytes + rgba_bytes + lossless_bytes + rgb_bytes;

}  // namespace

AnimatedWebp::AnimatedWebp(std::span<const std::byte> bytes, std::int64_t pixels, const DecodeControl& control) {
  const WebPBitstreamFeatures features = features_of(bytes);
  check_declared_size(features.width, features.height, pixels, MediaType::webp);
  control.need(animation_bytes * features.width * features.height);
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

DecodedImage decode_webp(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control) {
  const WebPBitstreamFeatures features = features_of(bytes);
  check_declared_size(features.width, features.height, limits.pixels, MediaType::webp);
  // What follows the pixels, orientation for one, belongs to the picture: libwebp takes less when it decodes in pieces.
  if (riff_size(bytes) > bytes.size()) fail("WebP: the file is cut short");
  DecodedImage image;
  image.stored = {features.width, features.height};
  image.alpha = features.has_alpha != 0;
  const WebPData data = {data_of(bytes), bytes.size()};
  const Demuxer demuxer(WebPDemux(&data), &WebPDemuxDelete);
  if (demuxer != nullptr) image.orientation = orientation_of(demuxer.get());
  control.declare(upright(image.stored, image.orientation));
  if (features.has_animation == 0) {
    constexpr int lossy = 1;
    const std::int64_t inside =
        (features.format == lossy ? (image.alpha ? alpha_bytes : 0) : lossless_bytes) + (image.alpha ? rgba_bytes : 0);
    const std::int64_t turned = image.orientation == 1 ? 0 : rgb_bytes;
    control.need((rgb_bytes + std::max(inside, turned)) * image.stored.area());
    image.picture = decode_still(bytes, image.stored, image.alpha, control);
    return image;
  }
  AnimatedWebp animation(bytes, limits.pixels, control);
  control.keep_on();
  image.frames = animation.frames();
  image.picture = animation.next();
  return image;
}

}  // namespace m3::vision
