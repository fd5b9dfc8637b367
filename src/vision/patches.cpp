#include "src/vision/patches.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/vision/patch_kernels.h"

namespace m3::vision {

namespace {

constexpr std::array<double, 3> published_mean = {0.48145466, 0.4578275, 0.40821073};
constexpr std::array<double, 3> published_deviation = {0.26862954, 0.26130258, 0.27577711};

// One channel of a patch, from the level of its first pixel on.
void write_channel(const std::uint8_t* in, std::ptrdiff_t row_bytes, int side, const float* values, float* out) {
  for (int row = 0; row < side; ++row, in += row_bytes) {
    for (int x = 0; x < side; ++x) *out++ = values[in[x * 3]];
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
    shift_[c] = static_cast<float>(mean[c]) * 255.0f;
    scale_[c] = static_cast<float>(deviation[c]) * 255.0f;
    for (std::size_t level = 0; level < 256; ++level) {
      table_[c][level] = (static_cast<float>(level) - shift_[c]) / scale_[c];
    }
  }
}

Pixels empty_pixels(const Grid& grid, const PatchShape& shape) {
  Pixels pixels;
  pixels.grid = grid;
  pixels.values.reserve(static_cast<std::size_t>(grid.patches() * shape.values()));
  prefer_huge_pages(pixels.values.data(), pixels.values.capacity() * sizeof(float));
  return pixels;
}

std::vector<Segment> segments(const Grid& grid, std::int64_t max_groups) {
  std::vector<Segment> result;
  for (std::int64_t t = 0; t < grid.t; t += max_groups) {
    result.push_back({t * grid.h * grid.w, {std::min(max_groups, grid.t - t), grid.h, grid.w}});
  }
  return result;
}

std::string timestamp_text(double seconds) { return fmt::format("]<]{:.1f} seconds[>[", seconds); }

void append_blocks(std::span<const std::span<const std::uint8_t>> frames, int width, const PatchShape& shape,
                   const Normalisation& levels, std::vector<float>& values, Kernels kernels) {
  const bool avx2 = kernels == Kernels::fastest && __builtin_cpu_supports("avx2") != 0;
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{width} * 3;
  const std::ptrdiff_t area = std::ptrdiff_t{shape.patch} * shape.patch;
  const int steps = (shape.patch + detail::patch_step - 1) / detail::patch_step;
  // What the kernel reads, from a patch's first pixel on.
  const std::ptrdiff_t reach = row_bytes * (shape.patch - 1) + std::ptrdiff_t{steps} * detail::patch_step * 3;
  const int present = std::min(shape.temporal, static_cast<int>(frames.size()));
  // Rows are made where they stay in the nearest cache, and written out once. What the kernel writes behind a channel
  // of a frame is where the next one comes, or behind the row.
  std::vector<float> row(static_cast<std::size_t>(shape.values() + detail::patch_step));
  for (int bx = 0; bx < width; bx += shape.factor()) {
    for (int inside = 0; inside < shape.merge * shape.merge; ++inside) {
      const std::ptrdiff_t at =
          inside / shape.merge * shape.patch * row_bytes + std::ptrdiff_t{bx + inside % shape.merge * shape.patch} * 3;
      float* out = row.data();
      for (int c = 0; c < shape.channels; ++c) {
        for (int f = 0; f < present; ++f, out += area) {
          const std::span<const std::uint8_t> frame = frames[static_cast<std::size_t>(f)];
          const std::uint8_t* in = frame.data() + at;
          if (avx2 && at + reach <= std::ssize(frame)) {
            detail::normalise_channel_avx2(in, row_bytes, shape.patch, c, levels.shift(c), levels.scale(c), out);
          } else {
            write_channel(in + c, row_bytes, shape.patch, levels.of(c), out);
          }
        }
        for (int f = present; f < shape.temporal; ++f, out += area) std::copy_n(out - area, area, out);
      }
      values.insert(values.end(), row.data(), row.data() + shape.values());
    }
  }
}

void append_group(std::span<const Picture> frames, const PatchShape& shape, const Normalisation& levels,
                  std::vector<float>& values, Kernels kernels) {
  check(frames, shape);
  std::vector<std::span<const std::uint8_t>> rows;
  for (const Picture& frame : frames) rows.emplace_back(frame.rgb);
  const std::size_t block = static_cast<std::size_t>(shape.factor()) * static_cast<std::size_t>(frames[0].width) * 3;
  for (int y = 0; y < frames[0].height; y += shape.factor()) {
    append_blocks(rows, frames[0].width, shape, levels, values, kernels);
    for (auto& frame : rows) frame = frame.subspan(block);
  }
}

Pixels make_pixels(std::span<const Picture> frames, const PatchShape& shape, const Normalisation& levels,
                   Kernels kernels) {
  check(frames, shape);
  const auto temporal = static_cast<std::size_t>(shape.temporal);
  Pixels result = empty_pixels({static_cast<std::int64_t>((frames.size() + temporal - 1) / temporal),
                                frames[0].height / shape.patch, frames[0].width / shape.patch},
                               shape);
  for (std::size_t first = 0; first < frames.size(); first += temporal) {
    append_group(frames.subspan(first, std::min(temporal, frames.size() - first)), shape, levels, result.values,
                 kernels);
  }
  return result;
}

}  // namespace m3::vision
