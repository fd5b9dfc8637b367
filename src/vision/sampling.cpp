#include "src/vision/sampling.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace m3::vision {

namespace {

constexpr double slack = 1e-4;

// As many frames, the first and the last among them.
std::vector<std::size_t> evenly(std::size_t frames, std::size_t count) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(count == 1 ? 0 : (2 * i * (frames - 1) + (count - 1)) / (2 * (count - 1)));
  }
  return chosen;
}

// All but the last place are filled from the front in equal steps; the last one keeps the last frame.
std::vector<std::size_t> thin(const std::vector<std::size_t>& chosen, std::size_t count) {
  const double step = static_cast<double>(chosen.size()) / static_cast<double>(count - 1);
  std::vector<std::size_t> fewer;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    const std::size_t frame = chosen[static_cast<std::size_t>(static_cast<double>(i) * step)];
    if (frame != chosen.back()) fewer.push_back(frame);
  }
  fewer.push_back(chosen.back());
  return fewer;
}

}  // namespace

void check_sampling_options(const SamplingOptions& options) {
  if (!(options.fps >= 0.2 && options.fps <= 5)) fail("fps: {} is not in [0.2, 5]", options.fps);
  if (options.min_frames < 1) fail("min_frames: {} is below 1", options.min_frames);
  if (options.max_frames < 2 || options.max_frames < options.min_frames) {
    fail("max_frames: {} is below {}", options.max_frames, std::max(2, options.min_frames));
  }
}

std::vector<std::size_t> choose_frames(std::span<const double> starts, const SamplingOptions& options) {
  if (starts.empty()) return {};
  std::vector<std::size_t> chosen = {0};
  const double interval = 1 / options.fps - slack;
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] >= starts[chosen.back()] + interval) chosen.push_back(i);
  }
  const std::size_t last = starts.size() - 1;
  if (starts[last] - starts[chosen.back()] > slack) chosen.push_back(last);
  const auto least = std::min(static_cast<std::size_t>(options.min_frames), starts.size());
  if (chosen.size() < least) return evenly(starts.size(), least);
  const auto most = static_cast<std::size_t>(options.max_frames);
  return chosen.size() > most ? thin(chosen, most) : chosen;
}

}  // namespace m3::vision
