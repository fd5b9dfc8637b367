// Which frames of a video the model sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace m3::vision {

struct SamplingOptions {
  double fps = 1.0;      // frames a second, in [0.2, 5]
  int min_frames = 4;    // taken evenly where fps gives fewer, as far as the video has them
  int max_frames = 768;  // thinned evenly where fps gives more
};

// Errors (input): fps outside of [0.2, 5], min_frames < 1, max_frames < 2 or below min_frames.
void check_sampling_options(const SamplingOptions& options);

// Ascending numbers of frames. `starts`: seconds at which each frame is shown, ascending, from 0. The first frame; then
// always the first one that is shown 1 / fps (less 0.1 ms) after the one before; and the last frame.
std::vector<std::size_t> choose_frames(std::span<const double> starts, const SamplingOptions& options);

}  // namespace m3::vision
