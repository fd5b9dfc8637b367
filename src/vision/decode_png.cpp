#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "src/base/error.h"
#include "src/base/function_ref.h"
#include "src/vision/image_decoders.h"
#include "src/vision/orientation.h"

namespace m3::vision {

namespace {

// Of one chunk beside the pixels (profiles, text), which may be compressed: bytes.
constexpr png_alloc_size_t chunk_limit = 8 << 20;

// Owns libpng's state. Errors leave its functions by longjmp to the latest attempt().
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : rest_(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, leave, ignore);
    info = png == nullptr ? nullptr : png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      fail_resource("PNG: out of memory");
    }
    png_set_read_fn(png, this, read);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // the caller checks
    png_set_chunk_malloc_max(png, chunk_limit);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Runs `work`, which must own nothing: it may be left in the middle. False: it failed.
  bool attempt(FunctionRef<void()> work) {
    if (setjmp(jump_) != 0) return false;
    work();
    return true;
  }
  [[noreturn]] void refuse() const { fail("PNG: {}", message_); }

  png_structp png = nullptr;
  png_infop info = nullptr;

 private:
  [[noreturn]] static void leave(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof self->message_, "%s", message);
    std::longjmp(self->jump_, 1);
  }
  static void ignore(png_structp, png_const_charp) {}
  static void read(png_structp png, png_bytep out, std::size_t size) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > self->rest_.size()) png_error(png, "the file is cut short");
    std::memcpy(out, self->rest_.data(), size);
    self->rest_ = self->rest_.subspan(size);
  }

  std::span<const std::byte> rest_;
  std::jmp_buf jump_;
  char message_[256] = "damaged";
};

int orientation_of(const PngReader& reader) {
  png_uint_32 size = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(reader.png, reader.info, &size, &exif) == 0 || exif == nullptr) return 1;
  return exif_orientation({reinterpret_cast<const std::byte*>(exif), size});
}

}  // namespace

DecodedImage decode_png(std::span<const std::byte> bytes, const ImageLimits& limits, const DecodeControl& control) {
  PngReader reader(bytes);
  png_structp png = reader.png;
  if (!reader.attempt([&] { png_read_info(png, reader.info); })) reader.refuse();
  const png_uint_32 width = png_get_image_width(png, reader.info);
  const png_uint_32 height = png_get_image_height(png, reader.info);
  check_declared_size(width, height, limits.pixels, MediaType::png);

  DecodedImage image;
  image.stored = {static_cast<int>(width), static_cast<int>(height)};
  image.alpha = (png_get_color_type(png, reader.info) & PNG_COLOR_MASK_ALPHA) != 0 ||
                png_get_valid(png, reader.info, PNG_INFO_tRNS) != 0;
  control.declare(upright(image.stored, orientation_of(reader)));
  const bool interlaced = png_get_interlace_type(png, reader.info) != PNG_INTERLACE_NONE;
  // Orientation may follow the pixels, so turning is always counted.
  control.need((rgb_bytes + (interlaced && image.alpha ? rgba_bytes : rgb_bytes)) * image.stored.area());
  const auto prepare = [&] {
    png_set_expand(png);    // palettes, small greys and transparent colours
    png_set_strip_16(png);  // the upper 8 bits
    png_set_gray_to_rgb(png);
    if (image.alpha) png_set_add_alpha(png, 0xff, PNG_FILLER_AFTER);
    png_set_interlace_handling(png);
    png_read_update_info(png, reader.info);
  };
  if (!reader.attempt(prepare)) reader.refuse();
  const std::size_t row_bytes = std::size_t{width} * (image.alpha ? 4 : 3);
  if (png_get_rowbytes(png, reader.info) != row_bytes) fail("PNG: rows of an unexpected kind");

  image.picture = {image.stored.width, image.stored.height, {}};
  image.picture.rgb.resize(std::size_t{width} * height * 3);
  std::uint8_t* const rgb = image.picture.rgb.data();
  // An interlaced file completes its rows in the last of seven passes.
  std::vector<std::uint8_t> rgba(image.alpha ? row_bytes * (interlaced ? height : 1) : 0);
  for (int pass = 0; pass < (interlaced ? PNG_INTERLACE_ADAM7_PASSES : 1); ++pass) {
    for (png_uint_32 y = 0; y < height; ++y) {
      control.keep_on();
      std::uint8_t* row = !image.alpha ? rgb + y * row_bytes : rgba.data() + (interlaced ? y * row_bytes : 0);
      if (!reader.attempt([&] { png_read_row(png, row, nullptr); })) reader.refuse();
      if (image.alpha && !interlaced) put_on_white(row, width, rgb + std::size_t{y} * width * 3);
    }
  }
  if (image.alpha && interlaced) put_on_white(rgba.data(), std::size_t{width} * height, rgb);
  // Orientation may follow the pixels; a file without its end is cut short.
  if (!reader.attempt([&] { png_read_end(png, reader.info); })) reader.refuse();
  image.orientation = orientation_of(reader);
  return image;
}

}  // namespace m3::vision
