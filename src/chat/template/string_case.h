// Case conversion and stripping of texts, each character keeping its origin.
#pragma once

#include <vector>

#include "src/chat/template/text.h"

namespace m3::chat {

// A text by code points: points[i] occupies bytes [starts[i], starts[i + 1]).
struct Characters {
  explicit Characters(const Text& text);
  std::vector<char32_t> points;
  std::vector<std::size_t> starts;
  std::size_t size() const { return points.size(); }
};

Text to_upper(const Text& text);
Text to_lower(const Text& text);
Text to_title(const Text& text);         // str.title()
Text to_filter_title(const Text& text);  // the filter's own rule: words begin behind space - ( { [ <
Text to_capitalized(const Text& text);
Text swap_case(const Text& text);
Text case_fold(const Text& text);

enum class Side { left, right, both };
// Without `chars`: white space.
Text strip(const Text& text, Side side, const Text* chars);

std::vector<Text> split_lines(const Text& text, bool keep_ends);

}  // namespace m3::chat
