// How large a picture becomes before it is cut into patches: the two rules of the servers of this model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/vision/patches.h"

namespace m3::vision {

struct Size {
  int width = 0, height = 0;

  std::int64_t area() const { return std::int64_t{width} * height; }
  int long_side() const { return width > height ? width : height; }
  int short_side() const { return width > height ? height : width; }
  bool operator==(const Size&) const = default;
};

enum class SizeRule : std::uint8_t {
  long_side,  // what MiniMax serves and its verifier expects: a cap on the long side, a floor under the short one
  area,       // transformers and vLLM (specification, section 4.1): the area between two bounds
};

// "long-side", "area": the names that options and requests use. Errors (usage): another word.
SizeRule parse_size_rule(std::string_view name);
std::string_view size_rule_name(SizeRule rule);

// The largest picture there is, whatever the rule: 3584 x 3584.
inline constexpr std::int64_t largest_area = 12'845'056;
inline constexpr int longest_ratio = 200;

struct SizeOptions {
  SizeRule rule = SizeRule::long_side;
  // Area rule, in pixels after resizing.
  std::int64_t min_pixels = 3136;
  std::int64_t max_pixels = 451'584;
  // Long-side rule: the field `max_long_side_pixel` of requests.
  int max_long_side = 2016;
  int min_short_side = 112;
};

// Errors (input): max_long_side is no multiple of 28 in [112, 3584], or min_pixels and max_pixels make no range within
// [1, largest_area].
void check_size_options(const SizeOptions& options);

// The size to resize to; both sides are multiples of shape.factor(). Errors (input), one line: no area, a ratio of
// sides above 200, a result above largest_area.
Size resized_size(const Size& size, const SizeOptions& options, const PatchShape& shape = {});

// In patches.
Grid grid_of(const Size& resized, std::int64_t frames, const PatchShape& shape = {});

}  // namespace m3::vision
