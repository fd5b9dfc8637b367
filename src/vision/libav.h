// FFmpeg's libraries, loaded when the first video comes: they bring some hundred others along and take 35 ms to load,
// four times what the rest of the program takes to start.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

namespace m3::vision {

// The functions in use. Each type is the one that FFmpeg's header declares.
struct Libav {
  // libavutil
  decltype(&::av_frame_alloc) av_frame_alloc;
  decltype(&::av_frame_free) av_frame_free;
  decltype(&::av_frame_get_buffer) av_frame_get_buffer;
  decltype(&::av_frame_move_ref) av_frame_move_ref;
  decltype(&::av_frame_unref) av_frame_unref;
  decltype(&::av_free) av_free;
  decltype(&::av_freep) av_freep;
  decltype(&::av_log_set_level) av_log_set_level;
  decltype(&::av_malloc) av_malloc;
  decltype(&::av_pix_fmt_desc_get) av_pix_fmt_desc_get;
  decltype(&::av_strerror) av_strerror;
  // libavcodec
  decltype(&::av_packet_alloc) av_packet_alloc;
  decltype(&::av_packet_free) av_packet_free;
  decltype(&::av_packet_unref) av_packet_unref;
  decltype(&::avcodec_alloc_context3) avcodec_alloc_context3;
  decltype(&::avcodec_find_decoder) avcodec_find_decoder;
  decltype(&::avcodec_free_context) avcodec_free_context;
  decltype(&::avcodec_get_name) avcodec_get_name;
  decltype(&::avcodec_open2) avcodec_open2;
  decltype(&::avcodec_parameters_to_context) avcodec_parameters_to_context;
  decltype(&::avcodec_receive_frame) avcodec_receive_frame;
  decltype(&::avcodec_send_packet) avcodec_send_packet;
  // libavformat
  decltype(&::av_find_best_stream) av_find_best_stream;
  decltype(&::av_find_input_format) av_find_input_format;
  decltype(&::av_read_frame) av_read_frame;
  decltype(&::av_stream_get_side_data) av_stream_get_side_data;
  decltype(&::avformat_alloc_context) avformat_alloc_context;
  decltype(&::avformat_close_input) avformat_close_input;
  decltype(&::avformat_find_stream_info) avformat_find_stream_info;
  decltype(&::avformat_open_input) avformat_open_input;
  decltype(&::avio_alloc_context) avio_alloc_context;
  decltype(&::avio_context_free) avio_context_free;
  // libswscale
  decltype(&::sws_freeContext) sws_freeContext;
  decltype(&::sws_getCachedContext) sws_getCachedContext;
  decltype(&::sws_getCoefficients) sws_getCoefficients;
  decltype(&::sws_scale) sws_scale;
  decltype(&::sws_setColorspaceDetails) sws_setColorspaceDetails;
};

// Of the major versions that this program was compiled for. Errors (resource): one is not installed.
const Libav& libav();

}  // namespace m3::vision
