// m3 inspect --image, --video: every step from a file to tokens.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "src/vision/preprocess.h"

namespace m3::cli {

struct MediaOptions {
  std::string image, video;  // files; one of them at most is asked for
  vision::SizeOptions image_size;
  vision::VideoOptions video_options;
  std::int64_t min_pixels = 0, max_pixels = 0;  // 0: the kind's own
  int max_long_side = 0;

  bool asked() const { return !image.empty() || !video.empty(); }
};

void add_media_options(CLI::App& command, MediaOptions& options);

// Errors: the file cannot be read, decoded or sized; each begins with the file's name.
std::string media_text(const MediaOptions& options);
std::string media_json(const MediaOptions& options);

}  // namespace m3::cli
