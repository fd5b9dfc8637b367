// Patches: what the vision tower reads. Rows of normalised values in the order of the specification, section 4.3, equal
// to the `pixel_values` of the transformers processor.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/large_vector.h"

namespace m3::vision {

// What a patch is, and how many make one token. The published model's numbers.
struct PatchShape {
  int channels = 3;  // always RGB
  int temporal = 2;  // frames in a temporal group
  int patch = 14;    // pixels of a side
  int merge = 2;     // patches of a side of one token

  int factor() const { return patch * merge; }  // sides of pictures are multiples of this: 28
  std::int64_t values() const { return std::int64_t{channels} * temporal * patch * patch; }  // of a row: 1176
};

// Size in patches, before the merge: t temporal groups of h x w patches. h and w are multiples of the merge.
struct Grid {
  std::int64_t t = 0, h = 0, w = 0;

  std::int64_t patches() const { return t * h * w; }
  std::int64_t tokens(int merge = 2) const { return patches() / (std::int64_t{merge} * merge); }
  bool operator==(const Grid&) const = default;
};

// One picture or video, ready for patch_embed.
struct Pixels {
  Grid grid;
  // [t*h*w, channels*temporal*patch*patch]. Rows: temporal group, then rows and columns of 2x2 blocks, then the block's
  // four patches by rows, so that four consecutive rows become one token. Values of a row: channel, frame, y, x.
  std::vector<float> values;
  bool video = false;
  // Videos whose timing is known: seconds of each temporal group's first frame, t numbers. Else empty.
  std::vector<double> timestamps;

  std::int64_t tokens(int merge = 2) const { return grid.tokens(merge); }
};

// A picture of that grid with memory for its values, and no values yet.
Pixels empty_pixels(const Grid& grid, const PatchShape& shape);

// A run of rows that attend to each other and to nothing else (section 4.6). Its positions count t from 0.
struct Segment {
  std::int64_t first_row = 0;  // within the picture's rows
  Grid grid;
};

// A picture is one segment; a video is cut into consecutive ones of at most `max_groups` temporal groups.
std::vector<Segment> segments(const Grid& grid, std::int64_t max_groups = 4);

// What stands before a temporal group's placeholder in a prompt, as plain text: "]<]5.2 seconds[>[" (section 4.8).
std::string timestamp_text(double seconds);

// Normalised values of the levels 0..255 of each channel: (level - 255 mean) / (255 std) in fp32, bit-equal to the
// reference.
class Normalisation {
 public:
  Normalisation();  // the published mean and deviation (section 4.1)
  Normalisation(const std::array<double, 3>& mean, const std::array<double, 3>& deviation);
  const float* of(int channel) const { return table_[static_cast<std::size_t>(channel)].data(); }
  // 255 mean and 255 std.
  float shift(int channel) const { return shift_[static_cast<std::size_t>(channel)]; }
  float scale(int channel) const { return scale_[static_cast<std::size_t>(channel)]; }

 private:
  std::array<float, 3> shift_, scale_;
  std::array<std::array<float, 256>, 3> table_;
};

// 8-bit RGB, rows from the top, no padding.
struct Picture {
  int width = 0, height = 0;
  LargeVector<std::uint8_t> rgb;  // [height, width, 3]
};

// `plain` is the same arithmetic without special instructions; results are equal.
enum class Kernels : std::uint8_t { fastest, plain };

// Rows of frames of one size, whose sides are multiples of shape.factor(). One frame fills its temporal group by itself;
// of several, an odd last one is repeated (section 4.2). Errors (internal): no frame, sizes that differ or do not fit.
Pixels make_pixels(std::span<const Picture> frames, const PatchShape& shape = {}, const Normalisation& levels = {},
                   Kernels kernels = Kernels::fastest);

// One temporal group of the same: 1 to shape.temporal frames, the last one repeated to fill it, as h*w rows at the end
// of `values`.
void append_group(std::span<const Picture> frames, const PatchShape& shape, const Normalisation& levels,
                  std::vector<float>& values, Kernels kernels = Kernels::fastest);

// Of such a group the next row of blocks: shape.factor() rows of `width` pixels of each frame, as `width` / shape.patch
// * shape.merge rows of `values`. Frames may go on behind these rows: patches near a frame's end take longer.
void append_blocks(std::span<const std::span<const std::uint8_t>> frames, int width, const PatchShape& shape,
                   const Normalisation& levels, std::vector<float>& values, Kernels kernels = Kernels::fastest);

}  // namespace m3::vision
