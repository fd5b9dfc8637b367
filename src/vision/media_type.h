// What bytes are, by what they hold: names and MIME types of a source are never believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace m3::vision {

enum class MediaType : std::uint8_t {
  unknown,
  jpeg,
  png,
  webp,
  gif,
  bmp,
  iso_media,  // MP4, QuickTime, 3GP
  matroska,   // WebM too
  avi,
  mpeg_ts,
  mpeg_ps,
  flv,
  ogg,
  asf,  // WMV
};

MediaType media_type(std::span<const std::byte> bytes);
// "JPEG", "MP4 or QuickTime".
std::string_view media_type_name(MediaType type);

// What can be read as a picture; of animated files that is the first frame.
bool is_picture(MediaType type);
// What can be read as a video: containers, GIF and WebP.
bool is_video(MediaType type);

// What the bytes seem to be, for an error about bytes that are neither: "a TIFF file", "HTML", "empty",
// "bytes that begin with 00 01 02 03".
std::string describe_unknown(std::span<const std::byte> bytes);

}  // namespace m3::vision
