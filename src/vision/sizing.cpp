#include "src/vision/sizing.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace m3::vision {

namespace {

// Half to even, the rounding mode that programs start with.
std::int64_t round_to(double side, int factor) {
  return static_cast<std::int64_t>(std::nearbyint(side / factor)) * factor;
}

struct Sides {
  std::int64_t width, height;
};

// The divisions stand in the reference's order: results at an exact half depend on it.
Sides by_area(const Size& size, const SizeOptions& options, int factor) {
  const auto at_least = [&](std::int64_t side) { return std::max<std::int64_t>(side, factor); };
  Sides sides = {at_least(round_to(size.width, factor)), at_least(round_to(size.height, factor))};
  const auto area = static_cast<double>(size.area());
  if (sides.width * sides.height > options.max_pixels) {
    const double shrink = std::sqrt(area / static_cast<double>(options.max_pixels));
    const auto side = [&](int of) {
      return at_least(static_cast<std::int64_t>(std::floor(of / shrink / factor)) * factor);
    };
    return {side(size.width), side(size.height)};
  }
  if (sides.width * sides.height < options.min_pixels) {
    const double grow = std::sqrt(static_cast<double>(options.min_pixels) / area);
    const auto side = [&](int of) { return static_cast<std::int64_t>(std::ceil(of * grow / factor)) * factor; };
    return {side(size.width), side(size.height)};
  }
  return sides;
}

Sides by_long_side(const Size& size, const SizeOptions& options, int factor) {
  const int whole_cap = options.max_long_side / factor * factor;
  const double cap = whole_cap;
  const double longer = size.long_side();
  const double shorter = size.short_side();
  double scale = 1;
  if (longer > cap) {
    scale = cap / longer;
  } else if (shorter < options.min_short_side) {
    scale = std::min(options.min_short_side / shorter, cap / longer);
  }
  const auto side = [&](int of) { return std::max<std::int64_t>(round_to(of * scale, factor), factor); };
  return {side(size.width), side(size.height)};
}

}  // namespace

SizeRule parse_size_rule(std::string_view name) {
  if (name == "long-side") return SizeRule::long_side;
  if (name == "area") return SizeRule::area;
  fail_usage("image size rule \"{}\": one of long-side, area", name);
}

std::string_view size_rule_name(SizeRule rule) { return rule == SizeRule::area ? "area" : "long-side"; }

void check_size_options(const SizeOptions& options) {
  if (options.max_long_side < 112 || options.max_long_side > 3584 || options.max_long_side % 28 != 0) {
    fail("max_long_side_pixel: {} is not a multiple of 28 in [112, 3584]", options.max_long_side);
  }
  if (options.min_pixels < 1 || options.max_pixels < options.min_pixels || options.max_pixels > largest_area) {
    fail("max_pixels: {} with min_pixels {}; they must be 1 <= min_pixels <= max_pixels <= {}", options.max_pixels,
         options.min_pixels, largest_area);
  }
}

Size resized_size(const Size& size, const SizeOptions& options, const PatchShape& shape) {
  if (size.width <= 0 || size.height <= 0) fail("a picture of {}x{} pixels has no area", size.width, size.height);
  if (size.long_side() > std::int64_t{longest_ratio} * size.short_side()) {
    fail("a picture of {}x{} pixels is too narrow: the sides' ratio may be {} at most", size.width, size.height,
         longest_ratio);
  }
  const int factor = shape.factor();
  const Sides sides =
      options.rule == SizeRule::area ? by_area(size, options, factor) : by_long_side(size, options, factor);
  if (sides.width * sides.height > largest_area) {
    fail("a picture of {}x{} pixels would be resized to {}x{}, more than {} pixels", size.width, size.height,
         sides.width, sides.height, largest_area);
  }
  return {static_cast<int>(sides.width), static_cast<int>(sides.height)};
}

Grid grid_of(const Size& resized, std::int64_t frames, const PatchShape& shape) {
  return {(frames + shape.temporal - 1) / shape.temporal, resized.height / shape.patch, resized.width / shape.patch};
}

}  // namespace m3::vision
