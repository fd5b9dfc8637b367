// A split pattern outside the known family, run by PCRE2, whose Unicode version is the system's (14 in Debian
// 12).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace m3 {

class RegexPattern {
 public:
  // Errors: a pattern that PCRE2 does not compile, or one whose meaning differs there (\h); `where` begins
  // the line.
  RegexPattern(const std::string& pattern, const std::string& where);
  ~RegexPattern();
  RegexPattern(RegexPattern&&) noexcept;
  RegexPattern& operator=(RegexPattern&&) noexcept;

  // The successive matches, as [begin, end) byte ranges, empty ones included unless they touch the match
  // before. Broken UTF-8 is seen as U+FFFD. Errors: the engine's match or heap limit. Thread-safe.
  std::vector<std::pair<std::size_t, std::size_t>> matches(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace m3
