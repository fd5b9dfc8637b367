// Files of patches for m3 trace --pixels: any bytes give pictures whose values fit their grids, or one m3::Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/error.h"
#include "src/cli/pixel_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const m3::Media& media : m3::cli::parse_pixel_file(std::as_bytes(std::span(data, size)), "fuzz")) {
      if (media.t < 1 || media.h < 1 || media.w < 1) __builtin_trap();
      if (media.pixels->size() % static_cast<std::size_t>(media.t * media.h * media.w) != 0) __builtin_trap();
    }
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
  return 0;
}
