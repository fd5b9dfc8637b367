#include "src/vision/media_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace m3::vision {

namespace {

using namespace std::string_view_literals;

struct Signature {
  std::size_t at;
  std::string_view bytes;
};

struct Known {
  MediaType type;
  Signature first;
  Signature second = {0, ""};
};

constexpr std::array known = {
    Known{MediaType::jpeg, {0, "\xff\xd8\xff"sv}},
    Known{MediaType::png, {0, "\x89PNG\r\n\x1a\n"sv}},
    Known{MediaType::webp, {0, "RIFF"sv}, {8, "WEBP"sv}},
    Known{MediaType::gif, {0, "GIF87a"sv}},
    Known{MediaType::gif, {0, "GIF89a"sv}},
    Known{MediaType::bmp, {0, "BM"sv}},
    Known{MediaType::iso_media, {4, "ftyp"sv}},
    Known{MediaType::iso_media, {4, "moov"sv}},
    Known{MediaType::iso_media, {4, "mdat"sv}},
    Known{MediaType::iso_media, {4, "wide"sv}},
    Known{MediaType::iso_media, {4, "free"sv}},
    Known{MediaType::iso_media, {4, "skip"sv}},
    Known{MediaType::matroska, {0, "\x1a\x45\xdf\xa3"sv}},
    Known{MediaType::avi, {0, "RIFF"sv}, {8, "AVI "sv}},
    Known{MediaType::mpeg_ts, {0, "G"sv}, {188, "G"sv}},
    Known{MediaType::mpeg_ps, {0, "\x00\x00\x01\xba"sv}},
    Known{MediaType::flv, {0, "FLV\x01"sv}},
    Known{MediaType::ogg, {0, "OggS"sv}},
    Known{MediaType::asf, {0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11"sv}},
};

// Still pictures in the container of MP4 are none that FFmpeg 5.1 reads.
constexpr std::array still_brands = {"avif"sv, "avis"sv, "heic"sv, "heix"sv, "heim"sv, "heis"sv, "hevc"sv, "mif1"sv};

struct Named {
  Signature signature;
  std::string_view name;
};
constexpr std::array not_supported = {
    Named{{0, "II*\0"sv}, "a TIFF file"},
    Named{{0, "MM\0*"sv}, "a TIFF file"},
    Named{{0, "%PDF"sv}, "a PDF file"},
    Named{{0, "<svg"sv}, "an SVG drawing"},
    Named{{0, "<?xml"sv}, "XML, perhaps an SVG drawing"},
    Named{{0, "<!DOCTYPE"sv}, "HTML"},
    Named{{0, "<!doctype"sv}, "HTML"},
    Named{{0, "<html"sv}, "HTML"},
    Named{{0, "{"sv}, "JSON text"},
    Named{{0, "8BPS"sv}, "a Photoshop file"},
    Named{{0, "\0\0\1\0"sv}, "an icon file"},
    Named{{0, "\xff\x0a"sv}, "a JPEG XL file"},
    Named{{0, "\0\0\0\x0cJXL "sv}, "a JPEG XL file"},
    Named{{0, "\0\0\0\x0cjP  "sv}, "a JPEG 2000 file"},
    Named{{0, "PK\3\4"sv}, "a ZIP archive"},
    Named{{0, "\x1f\x8b"sv}, "gzip data"},
    Named{{0, "ID3"sv}, "an MP3 file"},
    Named{{0, "data:"sv}, "a data: URL inside of data"},
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool holds(std::string_view text, const Signature& signature) {
  return text.size() >= signature.at && text.substr(signature.at).starts_with(signature.bytes);
}

bool is_still_iso(std::string_view text) {
  return text.size() >= 12 && text.substr(4, 4) == "ftyp" &&
         std::ranges::find(still_brands, text.substr(8, 4)) != still_brands.end();
}

}  // namespace

MediaType media_type(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  if (is_still_iso(text)) return MediaType::unknown;
  for (const Known& one : known) {
    if (holds(text, one.first) && holds(text, one.second)) return one.type;
  }
  return MediaType::unknown;
}

std::string_view media_type_name(MediaType type) {
  switch (type) {
    case MediaType::unknown: return "unknown";
    case MediaType::jpeg: return "JPEG";
    case MediaType::png: return "PNG";
    case MediaType::webp: return "WebP";
    case MediaType::gif: return "GIF";
    case MediaType::bmp: return "BMP";
    case MediaType::iso_media: return "MP4 or QuickTime";
    case MediaType::matroska: return "Matroska or WebM";
    case MediaType::avi: return "AVI";
    case MediaType::mpeg_ts: return "MPEG transport stream";
    case MediaType::mpeg_ps: return "MPEG program stream";
    case MediaType::flv: return "Flash video";
    case MediaType::ogg: return "Ogg";
    case MediaType::asf: return "ASF or WMV";
  }
  return "unknown";
}

bool is_picture(MediaType type) {
  return type == MediaType::jpeg || type == MediaType::png || type == MediaType::webp || type == MediaType::gif ||
         type == MediaType::bmp;
}

bool is_video(MediaType type) {
  return type == MediaType::webp || type == MediaType::gif || (type != MediaType::unknown && !is_picture(type));
}

std::string describe_unknown(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  if (text.empty()) return "empty";
  if (is_still_iso(text)) return text.substr(8, 3) == "avi" ? "an AVIF file" : "a HEIC or HEIF file";
  for (const Named& one : not_supported) {
    if (holds(text, one.signature)) return std::string(one.name);
  }
  std::string line = "bytes that begin with";
  for (const char c : text.substr(0, 8)) line += fmt::format(" {:02x}", static_cast<unsigned char>(c));
  return line;
}

}  // namespace m3::vision
