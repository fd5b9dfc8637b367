// FFmpeg's libraries, reading from memory and from nothing else.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "src/base/error.h"
#include "src/vision/image_decoders.h"
#include "src/vision/libav.h"
#include "src/vision/orientation.h"
#include "src/vision/video_frames.h"

namespace m3::vision {

namespace {

// Times that differ by less are the same.
constexpr double same_time = 1e-6;

struct Release {
  void operator()(AVPacket* packet) const { libav().av_packet_free(&packet); }
  void operator()(AVFrame* frame) const { libav().av_frame_free(&frame); }
  void operator()(AVCodecContext* codec) const { libav().avcodec_free_context(&codec); }
};
using Packet = std::unique_ptr<AVPacket, Release>;
using Frame = std::unique_ptr<AVFrame, Release>;
using Codec = std::unique_ptr<AVCodecContext, Release>;

template <typename T>
T* allocated(T* object) {
  if (object == nullptr) fail_resource("video: out of memory");
  return object;
}

// FFmpeg's name of the format; it reads no other.
const char* format_name(MediaType type) {
  switch (type) {
    case MediaType::iso_media: return "mov";
    case MediaType::matroska: return "matroska";
    case MediaType::gif: return "gif";
    case MediaType::avi: return "avi";
    case MediaType::mpeg_ts: return "mpegts";
    case MediaType::mpeg_ps: return "mpeg";
    case MediaType::flv: return "flv";
    case MediaType::ogg: return "ogg";
    case MediaType::asf: return "asf";
    default: return "";
  }
}

std::string reason(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  libav().av_strerror(code, text, sizeof text);
  return text;
}

// FFmpeg's reader of Matroska takes the end of the bytes for the end of the video. Whether the file's one segment,
// which follows its header, says that it is longer; streams that were written without a size say nothing.
bool matroska_cut_short(std::span<const std::byte> bytes) {
  // A number of 1 to 8 bytes, whose first one's leading zeros tell how many; `marked` keeps that byte's marking bit.
  const auto number = [&](std::size_t& at, bool marked) -> std::uint64_t {
    if (at >= bytes.size()) return 0;
    const auto first = std::to_integer<std::uint8_t>(bytes[at]);
    const auto length = static_cast<std::size_t>(std::countl_zero(first)) + 1;
    if (length > 8 || length > bytes.size() - at) return 0;
    std::uint64_t value = marked ? first : first & (0x7fu >> (length - 1));
    for (std::size_t i = 1; i < length; ++i) value = value << 8 | std::to_integer<std::uint8_t>(bytes[at + i]);
    at += length;
    const bool unknown = !marked && value == (std::uint64_t{1} << (7 * length)) - 1;
    return unknown ? 0 : value;
  };
  constexpr std::uint64_t segment = 0x18538067;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t id = number(at, true);
    const std::uint64_t size = number(at, false);
    if (id == 0) return false;
    if (id == segment || size > bytes.size() - at) return size > bytes.size() - at;
    at += static_cast<std::size_t>(size);
  }
  return false;
}

// Whether a GIF's blocks end within one. What lies behind the end mark is not looked at, and the mark itself may
// lack, as in many files.
bool gif_cut_short(std::span<const std::byte> bytes) {
  std::size_t at = 0;
  const auto skip = [&](std::size_t count) {
    const bool there = count <= bytes.size() - at;
    at = there ? at + count : bytes.size();
    return there;
  };
  const auto byte = [&](std::size_t i) { return std::to_integer<std::size_t>(bytes[i]); };
  const auto colours = [&](std::size_t flags) { return (flags & 0x80) == 0 ? 0 : std::size_t{3} << ((flags & 7) + 1); };
  const auto skip_blocks = [&] {
    while (at < bytes.size()) {
      const std::size_t size = byte(at);
      if (!skip(1 + size)) return false;
      if (size == 0) return true;
    }
    return false;
  };
  constexpr std::size_t head = 13, extension = 0x21, image = 0x2c;
  if (!skip(head) || !skip(colours(byte(10)))) return true;
  while (at < bytes.size()) {
    const std::size_t kind = byte(at);
    if (kind == extension) {
      if (!skip(2) || !skip_blocks()) return true;
    } else if (kind == image) {
      const std::size_t begin = at;
      if (!skip(10) || !skip(colours(byte(begin + 9))) || !skip(1) || !skip_blocks()) return true;
    } else {
      return false;
    }
  }
  return false;
}

int decoder_threads() {
#if defined(__SANITIZE_THREAD__)
  return 1;  // its locks are unknown there
#else
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
#endif
}

// At the peak, of a video with frames of that size. A GIF's frames have 4 bytes a pixel: FFmpeg holds its canvas, the
// frame and one that waits (measured with the rest: 14.4 bytes a pixel). Other codecs have frames to refer to, 16 at
// most, and one a thread; most have 1.5 bytes a pixel, and large ones refer to fewer frames, which makes up for those
// with 3. Beside them there is the frame in RGB, padded, plain and turned.
std::int64_t decoding_bytes(const Size& size, AVCodecID codec) {
  constexpr std::int64_t gif_frames = 3, codec_frames = 18, codec_bytes = 2;
  const std::int64_t frames =
      codec == AV_CODEC_ID_GIF ? gif_frames * rgba_bytes : (codec_frames + decoder_threads()) * codec_bytes;
  return (frames + rgba_bytes + 2 * rgb_bytes) * size.area();
}

// An open container over bytes in memory, and its video stream.
class Container {
 public:
  Container(std::span<const std::byte> bytes, MediaType type, const VideoLimits& limits, const DecodeControl& control)
      : bytes_(bytes), type_(type), control_(control) {
    constexpr int buffer_size = 1 << 15;
    auto* buffer = static_cast<unsigned char*>(allocated(libav().av_malloc(buffer_size)));
    io_ = libav().avio_alloc_context(buffer, buffer_size, 0, this, read, nullptr, seek);
    if (io_ == nullptr) libav().av_free(buffer);
    allocated(io_);
    try {
      open(limits);
    } catch (...) {
      close();
      throw;
    }
  }
  ~Container() { close(); }
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  AVStream& stream() const { return *context_->streams[stream_]; }

  // The next packet of the video stream; false at the end.
  bool next(AVPacket& packet) {
    for (;;) {
      libav().av_packet_unref(&packet);
      const int status = libav().av_read_frame(context_, &packet);
      if (stopped_) std::rethrow_exception(stopped_);  // which FFmpeg may take for the end
      if (status == AVERROR_EOF) return false;
      if (status < 0) refuse("damaged or cut short", status);
      if (packet.stream_index != stream_) continue;
      // Streams that are cut anywhere are the rule for broadcasts alone.
      if ((packet.flags & AV_PKT_FLAG_CORRUPT) != 0 && type_ != MediaType::mpeg_ts && type_ != MediaType::mpeg_ps) {
        refuse("damaged or cut short");
      }
      return true;
    }
  }

  [[noreturn]] void refuse(const char* what, int code = 0) const {
    if (stopped_) std::rethrow_exception(stopped_);
    if (code == 0) fail("{}: {}", media_type_name(type_), what);
    fail("{}: {} ({})", media_type_name(type_), what, reason(code));
  }

 private:
  static int read(void* self, std::uint8_t* out, int size) {
    auto& from = *static_cast<Container*>(self);
    if (from.stopped_) return AVERROR_EXIT;
    try {
      from.control_.keep_on();
    } catch (...) {
      from.stopped_ = std::current_exception();
      return AVERROR_EXIT;
    }
    const auto count = std::min<std::size_t>(static_cast<std::size_t>(size), from.bytes_.size() - from.at_);
    if (count == 0) return AVERROR_EOF;
    std::memcpy(out, from.bytes_.data() + from.at_, count);
    from.at_ += count;
    return static_cast<int>(count);
  }

  static std::int64_t seek(void* self, std::int64_t offset, int whence) {
    auto& from = *static_cast<Container*>(self);
    const auto size = static_cast<std::int64_t>(from.bytes_.size());
    switch (whence & ~AVSEEK_FORCE) {
      case AVSEEK_SIZE: return size;
      case SEEK_SET: break;
      case SEEK_CUR: offset += static_cast<std::int64_t>(from.at_); break;
      case SEEK_END: offset += size; break;
      default: return AVERROR(EINVAL);
    }
    if (offset < 0 || offset > size) return AVERROR(EINVAL);
    from.at_ = static_cast<std::size_t>(offset);
    return offset;
  }

  // A file must not name others to read.
  static int deny(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) { return AVERROR(EPERM); }

  void open(const VideoLimits& limits) {
    const AVInputFormat* format = libav().av_find_input_format(format_name(type_));
    if (format == nullptr) refuse("these FFmpeg libraries do not read it");
    if (type_ == MediaType::matroska && matroska_cut_short(bytes_)) refuse("cut short");
    context_ = allocated(libav().avformat_alloc_context());
    context_->pb = io_;
    context_->io_open = deny;
    context_->flags |= AVFMT_FLAG_CUSTOM_IO;
    context_->max_streams = 64;
    // On failure it frees the context.
    if (const int status = libav().avformat_open_input(&context_, "", format, nullptr); status < 0) {
      refuse("damaged or cut short", status);
    }
    for (unsigned i = 0; i < context_->nb_streams; ++i) {
      AVStream& stream = *context_->streams[i];
      if (stream.codecpar->codec_type != AVMEDIA_TYPE_VIDEO) {
        stream.discard = AVDISCARD_ALL;
      } else if (stream.codecpar->width > 0 && stream.codecpar->height > 0) {
        const Size size = {stream.codecpar->width, stream.codecpar->height};
        check_declared_size(size.width, size.height, limits.pixels, type_);
        control_.declare(size);
        control_.need(decoding_bytes(size, stream.codecpar->codec_id));
      }
    }
    if (const int status = libav().avformat_find_stream_info(context_, nullptr); status < 0) {
      refuse("damaged or cut short", status);
    }
    if (stopped_) std::rethrow_exception(stopped_);
    stream_ = libav().av_find_best_stream(context_, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
    if (stream_ < 0 || (stream().disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) refuse("no video in it");
    const AVCodecParameters& found = *stream().codecpar;
    check_declared_size(found.width, found.height, limits.pixels, type_);
    control_.need(decoding_bytes({found.width, found.height}, found.codec_id));
  }

  void close() {
    libav().avformat_close_input(&context_);
    if (io_ != nullptr) libav().av_freep(&io_->buffer);
    libav().avio_context_free(&io_);
  }

  std::span<const std::byte> bytes_;
  MediaType type_;
  const DecodeControl& control_;
  std::exception_ptr stopped_;  // what the control threw within FFmpeg
  std::size_t at_ = 0;
  AVIOContext* io_ = nullptr;
  AVFormatContext* context_ = nullptr;
  int stream_ = -1;
};

int orientation_of(const AVStream& stream) {
  std::size_t size = 0;
  const auto* bytes = libav().av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
  if (bytes == nullptr || size < 9 * sizeof(std::int32_t)) return 1;
  std::int32_t matrix[9];
  std::memcpy(matrix, bytes, sizeof matrix);
  // Where the x and y axes go: multiples of a right angle, mirrored or not; anything else is left alone.
  const auto sign = [](std::int32_t value) { return (value > 0) - (value < 0); };
  const int a = sign(matrix[0]), b = sign(matrix[1]), c = sign(matrix[3]), d = sign(matrix[4]);
  if (a != 0 && d != 0 && b == 0 && c == 0) return a > 0 ? (d > 0 ? 1 : 4) : (d > 0 ? 2 : 3);
  if (b != 0 && c != 0 && a == 0 && d == 0) return b > 0 ? (c > 0 ? 5 : 6) : (c > 0 ? 8 : 7);
  return 1;
}

// Pictures of frames: colours by what the stream says of its matrix and range, transparency on white.
class Converter {
 public:
  ~Converter() { libav().sws_freeContext(context_); }

  Picture convert(const AVFrame& frame) {
    const auto format = static_cast<AVPixelFormat>(frame.format);
    const AVPixFmtDescriptor* description = libav().av_pix_fmt_desc_get(format);
    const bool alpha = description != nullptr && (description->flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
    // Rows end on a full vector, which swscale may write to.
    Frame out(allocated(libav().av_frame_alloc()));
    out->format = alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
    out->width = frame.width;
    out->height = frame.height;
    if (libav().av_frame_get_buffer(out.get(), 64) < 0) fail_resource("video: out of memory");
    context_ = libav().sws_getCachedContext(
        context_, frame.width, frame.height, format, frame.width, frame.height, static_cast<AVPixelFormat>(out->format),
        SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr, nullptr, nullptr);
    if (context_ == nullptr) fail("video: frames of a kind that cannot become RGB");
    const int* matrix = libav().sws_getCoefficients(frame.colorspace);
    const bool full = frame.color_range == AVCOL_RANGE_JPEG || format == AV_PIX_FMT_YUVJ420P ||
                      format == AV_PIX_FMT_YUVJ422P || format == AV_PIX_FMT_YUVJ444P || format == AV_PIX_FMT_YUVJ440P;
    libav().sws_setColorspaceDetails(context_, matrix, full, matrix, 1, 0, 1 << 16, 1 << 16);
    libav().sws_scale(context_, frame.data, frame.linesize, 0, frame.height, out->data, out->linesize);

    Picture picture = {frame.width, frame.height, {}};
    const auto row = static_cast<std::size_t>(frame.width) * 3;
    picture.rgb.resize(row * static_cast<std::size_t>(frame.height));
    for (int y = 0; y < frame.height; ++y) {
      const std::uint8_t* in = out->data[0] + std::ptrdiff_t{y} * out->linesize[0];
      std::uint8_t* to = picture.rgb.data() + static_cast<std::size_t>(y) * row;
      if (alpha) {
        put_on_white(in, static_cast<std::size_t>(frame.width), to);
      } else {
        std::memcpy(to, in, row);
      }
    }
    return picture;
  }

 private:
  SwsContext* context_ = nullptr;
};

class LibavFrames final : public VideoFrames {
 public:
  LibavFrames(std::span<const std::byte> bytes, MediaType of, const VideoLimits& limits, const DecodeControl& control)
      : bytes_(bytes), limits_(limits), control_(control) {
    type = of;
    Container container(bytes_, type, limits_, control_);
    const AVStream& stream = container.stream();
    if (libav().avcodec_find_decoder(stream.codecpar->codec_id) == nullptr) {
      fail("{}: these FFmpeg libraries do not decode {}", media_type_name(type),
           libav().avcodec_get_name(stream.codecpar->codec_id));
    }
    codec = libav().avcodec_get_name(stream.codecpar->codec_id);
    stored = {stream.codecpar->width, stream.codecpar->height};
    orientation = orientation_of(stream);
    read_index(container);
  }

  void read(std::span<const std::size_t> wanted, FunctionRef<void(Picture, double)> take) override {
    Container container(bytes_, type, limits_, control_);
    Codec decoder = open_decoder(container.stream());
    Packet packet(allocated(libav().av_packet_alloc()));
    Frame frame(allocated(libav().av_frame_alloc()));
    Frame last(allocated(libav().av_frame_alloc()));  // decoded and not handed over
    Converter converter;
    std::size_t at = 0;
    double now = 0;
    const auto hand_over = [&](const AVFrame& decoded) {
      take(turn_upright(converter.convert(decoded), orientation), now);
    };
    bool taken = false;
    bool more = true;
    while (more && at < wanted.size()) {
      control_.keep_on();
      more = container.next(*packet);
      check(libav().avcodec_send_packet(decoder.get(), more ? packet.get() : nullptr));
      while (at < wanted.size() && avcodec_receive(*decoder, *frame)) {
        control_.keep_on();
        if (decoded_ += std::int64_t{frame->width} * frame->height; decoded_ > limits_.all_pixels) {
          fail("{}: its frames have more than the {} pixels allowed in all (--media-max-video-total-pixels)",
               media_type_name(type), limits_.all_pixels);
        }
        now = std::max(now, seconds_of(*frame, now));
        libav().av_frame_unref(last.get());
        if (now < starts[wanted[at]] - same_time) {
          libav().av_frame_move_ref(last.get(), frame.get());
          continue;
        }
        hand_over(*frame);
        taken = true;
        while (at < wanted.size() && starts[wanted[at]] <= now + same_time) ++at;
      }
    }
    if (at < wanted.size() && last->data[0] != nullptr) {
      hand_over(*last);
      taken = true;
    }
    if (!taken) container.refuse("no frame could be decoded");
  }

 private:
  // Times of all frames, from the packets alone.
  void read_index(Container& container) {
    const AVStream& stream = container.stream();
    Packet packet(allocated(libav().av_packet_alloc()));
    std::vector<std::int64_t> times;
    std::vector<std::int64_t> decoded;
    bool timed = true;
    bool all_shown = true;
    bool all_decoded = true;
    std::uint64_t delay = 0;
    while (container.next(*packet)) {
      if ((packet->flags & AV_PKT_FLAG_DISCARD) != 0) continue;
      const bool shown = packet->pts != AV_NOPTS_VALUE;
      const std::int64_t time = shown ? packet->pts : packet->dts;
      timed = timed && time != AV_NOPTS_VALUE;
      all_shown = all_shown && shown;
      all_decoded = all_decoded && packet->dts != AV_NOPTS_VALUE;
      if (times.empty() && shown && all_decoded) delay = std::uint64_t(packet->pts) - std::uint64_t(packet->dts);
      times.push_back(time);
      decoded.push_back(packet->dts);
      if (static_cast<std::int64_t>(times.size()) > limits_.frames) container.refuse("too many frames");
    }
    if (times.empty()) {
      container.refuse(type == MediaType::gif && gif_cut_short(bytes_) ? "cut short" : "no frames in it");
    }
    // MPEG's program streams tell of every frame when it is decoded, and of some when they are shown: at the same times,
    // as much later as the first one, in another order.
    if (!all_shown && all_decoded) {
      times = std::move(decoded);
      for (std::int64_t& time : times) time = static_cast<std::int64_t>(std::uint64_t(time) + delay);
    }
    tick_ = stream.time_base;
    const AVRational rate = stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : AVRational{25, 1};
    frame_seconds_ = static_cast<double>(rate.den) / rate.num;
    if (timed) {
      std::ranges::sort(times);
      first_ = times.front();
      times.erase(std::unique(times.begin(), times.end()), times.end());
      for (const std::int64_t time : times) starts.push_back(seconds(time));
    } else {
      for (std::size_t i = 0; i < times.size(); ++i) {
        starts.push_back(static_cast<double>(static_cast<std::int64_t>(i) * rate.den) / rate.num);
      }
    }
    if (!std::isfinite(starts.back()) || starts.back() > 1e7) container.refuse("times that make no sense");
    timed_ = timed;
  }

  // The product is exact for every sensible time, so this is the quotient's nearest double.
  double seconds(std::int64_t time) const {
    return (static_cast<double>(time) - static_cast<double>(first_)) * tick_.num / tick_.den;
  }

  double seconds_of(const AVFrame& frame, double before) {
    const bool first = std::exchange(first_frame_, false);
    if (timed_ && frame.best_effort_timestamp != AV_NOPTS_VALUE) return seconds(frame.best_effort_timestamp);
    return first ? 0 : before + frame_seconds_;
  }

  Codec open_decoder(const AVStream& stream) const {
    const AVCodec* found = libav().avcodec_find_decoder(stream.codecpar->codec_id);
    Codec context(allocated(libav().avcodec_alloc_context3(found)));
    context->thread_count = decoder_threads();
    context->max_pixels = limits_.pixels;
    context->pkt_timebase = stream.time_base;
    int status = libav().avcodec_parameters_to_context(context.get(), stream.codecpar);
    if (status >= 0) status = libav().avcodec_open2(context.get(), found, nullptr);
    check(status);
    return context;
  }

  bool avcodec_receive(AVCodecContext& decoder, AVFrame& frame) const {
    const int status = libav().avcodec_receive_frame(&decoder, &frame);
    if (status == AVERROR(EAGAIN) || status == AVERROR_EOF) return false;
    check(status);
    if (status < 0) return false;
    const int damage = FF_DECODE_ERROR_INVALID_BITSTREAM | FF_DECODE_ERROR_CONCEALMENT_ACTIVE;
    const bool broadcast = type == MediaType::mpeg_ts || type == MediaType::mpeg_ps;
    if (!broadcast && (frame.decode_error_flags & damage) != 0) check(AVERROR_INVALIDDATA);
    return true;
  }

  void check(int status) const {
    if (status >= 0 || status == AVERROR_EOF) return;
    if (status == AVERROR_INVALIDDATA && (type == MediaType::mpeg_ts || type == MediaType::mpeg_ps)) return;
    fail("{}: a frame cannot be decoded as {} ({})", media_type_name(type), codec, reason(status));
  }

  std::span<const std::byte> bytes_;
  VideoLimits limits_;
  const DecodeControl& control_;
  std::int64_t decoded_ = 0;  // pixels
  AVRational tick_ = {1, 1};
  std::int64_t first_ = 0;
  double frame_seconds_ = 0;
  bool timed_ = true;
  bool first_frame_ = true;
};

}  // namespace

std::unique_ptr<VideoFrames> make_libav_frames(std::span<const std::byte> bytes, MediaType type,
                                               const VideoLimits& limits, const DecodeControl& control) {
  // FFmpeg takes the bytes' end for the video's.
  if (type == MediaType::gif && gif_cut_short(bytes)) fail("{}: cut short", media_type_name(type));
  return std::make_unique<LibavFrames>(bytes, type, limits, control);
}

DecodedImage decode_gif(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control) {
  LibavFrames frames(bytes, MediaType::gif, {.bytes = limits.bytes, .pixels = limits.pixels}, control);
  DecodedImage image;
  image.stored = frames.stored;
  image.frames = static_cast<int>(frames.starts.size());
  const std::size_t first = 0;
  try {
    frames.read({&first, 1}, [&](Picture picture, double) { image.picture = std::move(picture); });
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::input && gif_cut_short(bytes))
      fail("{}: cut short", media_type_name(MediaType::gif));
    throw;
  }
  return image;
}

}  // namespace m3::vision
