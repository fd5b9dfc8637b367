#include "src/vision/patches.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"

namespace m3::vision {

namespace {

constexpr std::array<double, 3> published_mean = {0.48145466, 0.4578275, 0.40821073};
constexpr std::array<double, 3> published_deviation = {0.26862954, 0.26130258, 0.27577711};

// The patch of one frame at (y, x) in pixels: `step` values apart in the output for each channel.
void write_patch(const Picture& frame, int y, int x, const PatchShape& shape, const Normalisation& levels, float* out,
                 std::ptrdiff_t step) {
  const float* red = levels.of(0);
  const float* green = levels.of(1);
  const float* blue = levels.of(2);
  for (int row = 0; row < shape.patch; ++row) {
    const std::uint8_t* in = frame.rgb.data() + (std::size_t(y + row) * std::size_t(frame.width) + std::size_t(x)) * 3;
    for (int column = 0; column < shape.patch; ++column, in += 3, ++out) {
      out[0] = red[in[0]];
      out[step] = green[in[1]];
      out[2 * step] = blue[in[2]];
    }
  }
}

void check(std::span<const Picture> frames, const PatchShape& shape) {
  if (frames.empty()) fail_internal("make_pixels: no frame");
  if (shape.channels != 3) fail_internal("make_pixels: {} channels", shape.channels);
  for (const Picture& frame : frames) {
    if (frame.width != frames[0].width || frame.height != frames[0].height || frame.width <= 0 || frame.height <= 0 ||
        frame.width % shape.factor() != 0 || frame.height % shape.factor() != 0 ||
        frame.rgb.size() != std::size_t(frame.width) * std::size_t(frame.height) * 3) {
      fail_internal("make_pixels: a frame of {}x{} beside {}x{}", frame.width, frame.height, frames[0].width,
                    frames[0].height);
    }
  }
}

}  // namespace

Normalisation::Normalisation() : Normalisation(published_mean, published_deviation) {}

Normalisation::Normalisation(const std::array<double, 3>& mean, const std::array<double, 3>& deviation) {
  for (std::size_t c = 0; c < 3; ++c) {
    // Each step in fp32, as the reference does it.
    const float shift = static_cast<float>(mean[c]) * 255.0f;
    const float scale = static_cast<float>(deviation[c]) * 255.0f;
    for (std::size_t level = 0; level < 256; ++level) {
      table_[c][level] = (static_cast<float>(level) - shift) / scale;
    }
  }
}

std::vector<Segment> segments(const Grid& grid, std::int64_t max_groups) {
  std::vector<Segment> result;
  for (std::int64_t t = 0; t < grid.t; t += max_groups) {
    result.push_back({t * grid.h * grid.w, {std::min(max_groups, grid.t - t), grid.h, grid.w}});
  }
  return result;
}

std::string timestamp_text(double seconds) { return fmt::format("]<]{:.1f} seconds[>[", seconds); }

void append_group(std::span<const Picture> frames, const PatchShape& shape, const Normalisation& levels,
                  std::vector<float>& values) {
  check(frames, shape);
  const std::ptrdiff_t area = std::ptrdiff_t{shape.patch} * shape.patch;
  const int rows = frames[0].height / shape.patch;
  const int columns = frames[0].width / shape.patch;
  const int present = std::min(shape.temporal, static_cast<int>(frames.size()));
  // Rows are made where they stay in the nearest cache, and written out once.
  std::vector<float> row(static_cast<std::size_t>(shape.values()));
  for (int by = 0; by < rows; by += shape.merge) {
    for (int bx = 0; bx < columns; bx += shape.merge) {
      for (int inside = 0; inside < shape.merge * shape.merge; ++inside) {
        const int y = (by + inside / shape.merge) * shape.patch;
        const int x = (bx + inside % shape.merge) * shape.patch;
        for (int f = 0; f < present; ++f) {
          const Picture& frame = frames[static_cast<std::size_t>(f)];
          write_patch(frame, y, x, shape, levels, row.data() + f * area, shape.temporal * area);
        }
        for (int f = present; f < shape.temporal; ++f) {
          for (int c = 0; c < shape.channels; ++c) {
            float* copy = row.data() + (c * shape.temporal + f) * area;
            std::copy_n(copy - area, area, copy);
          }
        }
        values.insert(values.end(), row.begin(), row.end());
      }
    }
  }
}

Pixels make_pixels(std::span<const Picture> frames, const PatchShape& shape, const Normalisation& levels) {
  check(frames, shape);
  Pixels result;
  const auto temporal = static_cast<std::size_t>(shape.temporal);
  result.grid = {static_cast<std::int64_t>((frames.size() + temporal - 1) / temporal), frames[0].height / shape.patch,
                 frames[0].width / shape.patch};
  result.values.reserve(static_cast<std::size_t>(result.grid.patches() * shape.values()));
  for (std::size_t first = 0; first < frames.size(); first += temporal) {
    append_group(frames.subspan(first, std::min(temporal, frames.size() - first)), shape, levels, result.values);
  }
  return result;
}

}  // namespace m3::vision
