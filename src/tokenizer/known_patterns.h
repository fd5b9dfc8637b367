// Own matchers for the split patterns of the o200k family, over Unicode 16 and without backtracking: linear
// time, no match limit. They give what the pattern gives under a backtracking engine, character for
// character.
#pragma once

#include <cstddef>
#include <string_view>

namespace m3 {

enum class KnownPattern {
  none,
  o200k,        // spec §5.1, punctuation may end in [\r\n]*
  o200k_slash,  // the same ending in [\r\n/]*, as in the o200k file
  gpt2,         // ByteLevel's own pattern (use_regex)
};

KnownPattern recognise_pattern(std::string_view regex);

// The end of the piece that begins at `start` < text.size(). These patterns match at every position, so the
// pieces cover the text. Broken UTF-8 counts as one symbol for each part that would become U+FFFD.
template <KnownPattern pattern>
std::size_t next_piece(std::string_view text, std::size_t start);

extern template std::size_t next_piece<KnownPattern::o200k>(std::string_view, std::size_t);
extern template std::size_t next_piece<KnownPattern::o200k_slash>(std::string_view, std::size_t);
extern template std::size_t next_piece<KnownPattern::gpt2>(std::string_view, std::size_t);

// Calls visit(begin, end) for each piece. `pattern` is not none.
template <typename Visit>
void for_each_known_piece(KnownPattern pattern, std::string_view text, Visit&& visit) {
  const auto walk = [&](auto next) {
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t end = next(text, start);
      visit(start, end);
      start = end;
    }
  };
  switch (pattern) {
    case KnownPattern::o200k: return walk(next_piece<KnownPattern::o200k>);
    case KnownPattern::o200k_slash: return walk(next_piece<KnownPattern::o200k_slash>);
    case KnownPattern::gpt2: return walk(next_piece<KnownPattern::gpt2>);
    case KnownPattern::none: return;
  }
}

}  // namespace m3
