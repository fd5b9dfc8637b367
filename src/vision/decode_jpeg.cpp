// jpeglib.h needs these before it.
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

// And this one needs jpeglib.h.
#include <jerror.h>

#include <algorithm>
#include <csetjmp>
#include <exception>

#include "src/base/error.h"
#include "src/base/function_ref.h"
#include "src/vision/image_decoders.h"
#include "src/vision/orientation.h"

namespace m3::vision {

namespace {

// A progressive file may ask for any number of passes over the whole picture; real ones have about ten.
constexpr int most_scans = 200;

// Owns libjpeg's state. Errors leave its functions by longjmp to the latest attempt().
class JpegReader {
 public:
  JpegReader(std::span<const std::byte> bytes, const DecodeControl& control) : control_(control) {
    info.err = jpeg_std_error(&errors_);
    info.client_data = this;
    errors_.error_exit = leave;
    errors_.emit_message = warn;
    created_ = attempt([&] { jpeg_create_decompress(&info); });
    if (!created_) refuse();
    progress_.progress_monitor = watch;
    info.progress = &progress_;
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    if (!attempt([&] { jpeg_mem_src(&info, data, static_cast<unsigned long>(bytes.size())); })) refuse();
  }
  ~JpegReader() {
    if (created_) jpeg_destroy_decompress(&info);
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Runs `work`, which must own nothing: it may be left in the middle. False: it failed.
  bool attempt(FunctionRef<void()> work) {
    if (setjmp(jump_) != 0) return false;
    work();
    return true;
  }
  [[noreturn]] void refuse() const {
    if (stopped_) std::rethrow_exception(stopped_);
    fail("JPEG: {}", message_);
  }

  jpeg_decompress_struct info = {};

 private:
  [[noreturn]] static void leave(j_common_ptr common) {
    auto* self = static_cast<JpegReader*>(common->client_data);
    self->errors_.format_message(common, self->message_);
    std::longjmp(self->jump_, 1);
  }

  // Damage to the picture itself is an error; harmless oddities are not.
  static void warn(j_common_ptr common, int level) {
    if (level >= 0) return;
    auto* self = static_cast<JpegReader*>(common->client_data);
    switch (common->err->msg_code) {
      case JWRN_JPEG_EOF:
        std::snprintf(self->message_, sizeof self->message_, "the file is cut short");
        std::longjmp(self->jump_, 1);
      case JWRN_ARITH_BAD_CODE:
      case JWRN_BOGUS_PROGRESSION:
      case JWRN_HIT_MARKER:
      case JWRN_HUFF_BAD_CODE:
      case JWRN_MUST_RESYNC: leave(common);
      default: break;
    }
  }

  // Called for each row of blocks of each scan.
  static void watch(j_common_ptr common) {
    auto* self = static_cast<JpegReader*>(common->client_data);
    if (self->info.input_scan_number > most_scans) {
      std::snprintf(self->message_, sizeof self->message_, "more than %d scans", most_scans);
      std::longjmp(self->jump_, 1);
    }
    try {
      self->control_.keep_on();
      return;
    } catch (...) {
      self->stopped_ = std::current_exception();
    }
    std::longjmp(self->jump_, 1);
  }

  const DecodeControl& control_;
  std::exception_ptr stopped_;
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = "out of memory";
  bool created_ = false;
};

// Files with CMYK store 255 - ink, as Pillow reads them: `cmyk` holds what is left of the paper's white.
void cmyk_to_rgb(const std::uint8_t* cmyk, int count, std::uint8_t* rgb) {
  for (int i = 0; i < count; ++i, cmyk += 4, rgb += 3) {
    const unsigned black = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned ink = (255u - cmyk[c]) * black + 128;
      const unsigned covered = (ink + (ink >> 8)) >> 8;
      rgb[c] = static_cast<std::uint8_t>(covered > black ? 0 : black - covered);
    }
  }
}

// A file of several scans is held as coefficients until the last one.
std::int64_t coefficient_bytes(const jpeg_decompress_struct& info) {
  if (jpeg_has_multiple_scans(const_cast<j_decompress_ptr>(&info)) == FALSE) return 0;
  std::int64_t blocks = 0;
  for (int i = 0; i < info.num_components; ++i) {
    blocks += std::int64_t{info.comp_info[i].width_in_blocks} * info.comp_info[i].height_in_blocks;
  }
  return blocks * DCTSIZE2 * static_cast<std::int64_t>(sizeof(JCOEF));
}

}  // namespace

DecodedImage decode_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control) {
  JpegReader reader(bytes, control);
  jpeg_decompress_struct& info = reader.info;
  const auto read_header = [&] {
    jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&info, TRUE);
  };
  if (!reader.attempt(read_header)) reader.refuse();
  check_declared_size(info.image_width, info.image_height, limits.pixels, MediaType::jpeg);

  DecodedImage image;
  image.stored = {static_cast<int>(info.image_width), static_cast<int>(info.image_height)};
  for (jpeg_saved_marker_ptr marker = info.marker_list; marker != nullptr; marker = marker->next) {
    const std::span block(reinterpret_cast<const std::byte*>(marker->data), marker->data_length);
    image.orientation = exif_orientation(block);
    if (image.orientation != 1) break;
  }
  control.declare(upright(image.stored, image.orientation));
  const std::int64_t turned = image.orientation == 1 ? 0 : rgb_bytes * image.stored.area();
  control.need(rgb_bytes * image.stored.area() + std::max(coefficient_bytes(info), turned));

  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  const auto row_bytes = static_cast<std::size_t>(image.stored.width) * 3;
  image.picture = {image.stored.width, image.stored.height, {}};
  image.picture.rgb.resize(row_bytes * static_cast<std::size_t>(image.stored.height));
  std::vector<std::uint8_t> inks(cmyk ? static_cast<std::size_t>(image.stored.width) * 4 : 0);
  if (!reader.attempt([&] { jpeg_start_decompress(&info); })) reader.refuse();
  const auto read_row = [&] {
    std::uint8_t* out = image.picture.rgb.data() + info.output_scanline * row_bytes;
    JSAMPROW row = cmyk ? inks.data() : out;
    jpeg_read_scanlines(&info, &row, 1);
    if (cmyk) cmyk_to_rgb(inks.data(), image.stored.width, out);
  };
  while (info.output_scanline < info.output_height) {
    control.keep_on();
    if (!reader.attempt(read_row)) reader.refuse();
  }
  return image;
}

}  // namespace m3::vision
