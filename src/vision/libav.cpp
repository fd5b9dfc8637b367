#include "src/vision/libav.h"

#include <dlfcn.h>

#include <string>

#include "src/base/error.h"

namespace m3::vision {

namespace {

// Stays loaded to the end.
class Library {
 public:
  Library(const char* name, int version) : file_(fmt::format("lib{}.so.{}", name, version)) {
    library_ = ::dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) fail_resource("GIF and videos need {}, a part of FFmpeg that is not installed", file_);
  }

  template <typename Function>
  void load(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr) fail_resource("{} lacks {}", file_, name);
  }

 private:
  std::string file_;
  void* library_;
};

Libav load_all() {
  Libav result = {};

  const Library avutil("avutil", LIBAVUTIL_VERSION_MAJOR);
  avutil.load(result.av_frame_alloc, "av_frame_alloc");
  avutil.load(result.av_frame_free, "av_frame_free");
  avutil.load(result.av_frame_get_buffer, "av_frame_get_buffer");
  avutil.load(result.av_frame_move_ref, "av_frame_move_ref");
  avutil.load(result.av_frame_unref, "av_frame_unref");
  avutil.load(result.av_free, "av_free");
  avutil.load(result.av_freep, "av_freep");
  avutil.load(result.av_log_set_level, "av_log_set_level");
  avutil.load(result.av_malloc, "av_malloc");
  avutil.load(result.av_pix_fmt_desc_get, "av_pix_fmt_desc_get");
  avutil.load(result.av_strerror, "av_strerror");

  const Library avcodec("avcodec", LIBAVCODEC_VERSION_MAJOR);
  avcodec.load(result.av_packet_alloc, "av_packet_alloc");
  avcodec.load(result.av_packet_free, "av_packet_free");
  avcodec.load(result.av_packet_unref, "av_packet_unref");
  avcodec.load(result.avcodec_alloc_context3, "avcodec_alloc_context3");
  avcodec.load(result.avcodec_find_decoder, "avcodec_find_decoder");
  avcodec.load(result.avcodec_free_context, "avcodec_free_context");
  avcodec.load(result.avcodec_get_name, "avcodec_get_name");
  avcodec.load(result.avcodec_open2, "avcodec_open2");
  avcodec.load(result.avcodec_parameters_to_context, "avcodec_parameters_to_context");
  avcodec.load(result.avcodec_receive_frame, "avcodec_receive_frame");
  avcodec.load(result.avcodec_send_packet, "avcodec_send_packet");

  const Library avformat("avformat", LIBAVFORMAT_VERSION_MAJOR);
  avformat.load(result.av_find_best_stream, "av_find_best_stream");
  avformat.load(result.av_find_input_format, "av_find_input_format");
  avformat.load(result.av_read_frame, "av_read_frame");
  avformat.load(result.av_stream_get_side_data, "av_stream_get_side_data");
  avformat.load(result.avformat_alloc_context, "avformat_alloc_context");
  avformat.load(result.avformat_close_input, "avformat_close_input");
  avformat.load(result.avformat_find_stream_info, "avformat_find_stream_info");
  avformat.load(result.avformat_open_input, "avformat_open_input");
  avformat.load(result.avio_alloc_context, "avio_alloc_context");
  avformat.load(result.avio_context_free, "avio_context_free");

  const Library swscale("swscale", LIBSWSCALE_VERSION_MAJOR);
  swscale.load(result.sws_freeContext, "sws_freeContext");
  swscale.load(result.sws_getCachedContext, "sws_getCachedContext");
  swscale.load(result.sws_getCoefficients, "sws_getCoefficients");
  swscale.load(result.sws_scale, "sws_scale");
  swscale.load(result.sws_setColorspaceDetails, "sws_setColorspaceDetails");

  result.av_log_set_level(AV_LOG_QUIET);
  return result;
}

}  // namespace

const Libav& libav() {
  static const Libav functions = load_all();
  return functions;
}

}  // namespace m3::vision
