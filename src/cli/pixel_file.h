// Pictures as files of patches, for m3 trace --pixels.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "m3/request.h"

namespace m3::cli {

// A safetensors file with `pixel_values` F32 or BF16 [patches, 3·2·14·14], `grid` I32 or I64 [n, 3] (temporal groups,
// rows and columns of each picture, whose patches stand one after another), and, where clips of one group are among
// them, `is_video` of the same types [n]; without it, more than one group is a video. Errors name the file and the
// tensor.
std::vector<Media> read_pixel_file(const std::string& path);
// The same of a file's bytes; `path` names it in errors.
std::vector<Media> parse_pixel_file(std::span<const std::byte> bytes, const std::string& path);

}  // namespace m3::cli
