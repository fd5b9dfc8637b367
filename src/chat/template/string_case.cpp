#include "src/chat/template/string_case.h"

#include <algorithm>

#include "src/chat/template/unicode.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {

Characters::Characters(const Text& text) {
  points.reserve(text.size());
  starts.reserve(text.size() + 1);
  for (std::size_t at = 0; at < text.size();) {
    starts.push_back(at);
    points.push_back(next_code_point(text.bytes(), at));
  }
  starts.push_back(text.size());
}

namespace {

void append_mapped(Text& out, const Mapped& mapped, Origin origin) {
  std::string bytes;
  for (int i = 0; i < mapped.count; ++i) append_utf8(bytes, mapped.points[i]);
  out.append(bytes, origin);
}

// A capital sigma ends a word if a cased letter stands before it and none behind it, case-ignorable ones aside.
Mapped lower_in_context(const Characters& characters, std::size_t at) {
  constexpr char32_t capital_sigma = 0x3a3, final_sigma = 0x3c2, sigma = 0x3c3;
  if (characters.points[at] != capital_sigma) return lower_of(characters.points[at]);
  std::size_t before = at;
  while (before > 0 && is_case_ignorable(characters.points[before - 1])) --before;
  const bool cased_before = before > 0 && is_cased(characters.points[before - 1]);
  std::size_t behind = at + 1;
  while (behind < characters.size() && is_case_ignorable(characters.points[behind])) ++behind;
  const bool cased_behind = behind < characters.size() && is_cased(characters.points[behind]);
  return {{cased_before && !cased_behind ? final_sigma : sigma, 0, 0}, 1};
}

template <typename Map>
Text map_characters(const Text& text, Map&& map) {
  const Characters characters(text);
  Text out;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    append_mapped(out, map(characters, i), text.origin_at(characters.starts[i]));
  }
  return out;
}

}  // namespace

Text to_upper(const Text& text) {
  return map_characters(text, [](const Characters& c, std::size_t i) { return upper_of(c.points[i]); });
}

Text to_lower(const Text& text) { return map_characters(text, lower_in_context); }

Text case_fold(const Text& text) {
  return map_characters(text, [](const Characters& c, std::size_t i) { return folded_of(c.points[i]); });
}

Text to_capitalized(const Text& text) {
  return map_characters(
      text, [](const Characters& c, std::size_t i) { return i == 0 ? title_of(c.points[0]) : lower_in_context(c, i); });
}

Text swap_case(const Text& text) {
  return map_characters(text, [](const Characters& c, std::size_t i) {
    if (is_uppercase(c.points[i])) return lower_in_context(c, i);
    if (is_lowercase(c.points[i])) return upper_of(c.points[i]);
    return Mapped{{c.points[i], 0, 0}, 1};
  });
}

Text to_title(const Text& text) {
  bool after_cased = false;
  return map_characters(text, [&](const Characters& c, std::size_t i) {
    const Mapped mapped = after_cased ? lower_in_context(c, i) : title_of(c.points[i]);
    after_cased = is_cased(c.points[i]);
    return mapped;
  });
}

Text to_filter_title(const Text& text) {
  const auto separates = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  const Characters characters(text);
  Text out;
  std::size_t begin = 0;
  while (begin < characters.size()) {
    const bool separator = separates(characters.points[begin]);
    std::size_t end = begin + 1;
    while (end < characters.size() && separates(characters.points[end]) == separator) ++end;
    const Text first = text.slice(characters.starts[begin], characters.starts[begin + 1]);
    out.append(to_upper(first));
    out.append(to_lower(text.slice(characters.starts[begin + 1], characters.starts[end])));
    begin = end;
  }
  return out;
}

Text strip(const Text& text, Side side, const Text* chars) {
  const Characters characters(text);
  std::vector<char32_t> set;
  if (chars != nullptr) set = Characters(*chars).points;
  const auto strips = [&](char32_t c) {
    return chars == nullptr ? is_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  std::size_t begin = 0, end = characters.size();
  if (side != Side::right) {
    while (begin < end && strips(characters.points[begin])) ++begin;
  }
  if (side != Side::left) {
    while (end > begin && strips(characters.points[end - 1])) --end;
  }
  return text.slice(characters.starts[begin], characters.starts[end]);
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  const auto breaks = [](char32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t c = next_code_point(text.bytes(), at);
    if (!breaks(c)) continue;
    if (c == '\r' && at < text.size() && text.bytes()[at] == '\n') ++at;
    lines.push_back(text.slice(begin, keep_ends ? at : here));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.slice(begin, text.size()));
  return lines;
}

}  // namespace m3::chat
