#include "src/tokenizer/known_patterns.h"

#include "src/tokenizer/char_classes.h"

namespace m3 {

namespace {

constexpr std::string_view o200k_words =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}|)";
constexpr std::string_view o200k_rest = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view o200k_slash_rest = R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr ClassSet uppers = class_set(CharClass::upper, CharClass::letter, CharClass::mark);
constexpr ClassSet lowers = class_set(CharClass::lower, CharClass::letter, CharClass::mark);
constexpr ClassSet uncased = class_set(CharClass::letter, CharClass::mark);
constexpr ClassSet letters = class_set(CharClass::upper, CharClass::lower, CharClass::letter);
constexpr ClassSet numbers = class_set(CharClass::number);
constexpr ClassSet symbols = class_set(CharClass::other, CharClass::mark);
constexpr ClassSet spaces = class_set(CharClass::space, CharClass::newline);
constexpr ClassSet word_prefixes = class_set(CharClass::other, CharClass::mark, CharClass::space);

std::size_t skip_run(std::string_view text, std::size_t position, ClassSet set) {
  for (ClassedChar character = classed_at(text, position); character.in(set); character = classed_at(text, position)) {
    position += character.length;
  }
  return position;
}

char lower_ascii(char value) { return static_cast<char>(value | 0x20); }

// (?i:'s|'t|'re|'ve|'m|'ll|'d)? at `position`. Without case U+017F (C5 BF, long s) is an s.
std::size_t skip_any_case_contraction(std::string_view text, std::size_t position) {
  const std::string_view rest = text.substr(position);
  if (rest.size() < 2 || rest[0] != '\'') return position;
  const char first = lower_ascii(rest[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return position + 2;
  if (rest.size() < 3) return position;
  if (rest[1] == '\xC5' && rest[2] == '\xBF') return position + 3;
  const char second = lower_ascii(rest[2]);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) {
    return position + 3;
  }
  return position;
}

// The first two alternatives: an optional leading character, then letters that change from upper to lower
// case at most once, then an optional contraction. Returns `start` where neither matches.
//
// Letters without case and marks are in both halves. With the upper half taken as far as it goes, a
// lower-case letter next extends the match over the lower half. Else the engine gives characters back until
// the lower half can take one: the match ends after the last uncased one. With none at all, the second
// alternative takes the whole upper run - except that a leading mark could itself have been that uncased
// character, and the first alternative comes first.
std::size_t match_word(std::string_view text, std::size_t start, ClassedChar first) {
  std::size_t position = first.in(word_prefixes) ? start + first.length : start;
  std::size_t end = position;
  std::size_t after_uncased = first.value == CharClass::mark ? position : 0;
  ClassedChar character = classed_at(text, position);
  while (character.in(uppers)) {
    position += character.length;
    if (character.in(uncased)) after_uncased = position;
    character = classed_at(text, position);
  }
  if (character.value == CharClass::lower && character.length != 0) {
    end = skip_run(text, position, lowers);
  } else if (after_uncased != 0) {
    end = after_uncased;
  } else if (position != end) {
    end = position;
  } else {
    return start;
  }
  return skip_any_case_contraction(text, end);
}

// \s*[\r\n]+ where `to_newline`, else nothing; then \s+(?!\S), then \s+. `start` is at a space.
std::size_t match_spaces(std::string_view text, std::size_t start, bool to_newline) {
  std::size_t position = start;
  std::size_t before_last = start;
  std::size_t after_newline = 0;
  for (ClassedChar character = classed_at(text, position); character.in(spaces);
       character = classed_at(text, position)) {
    before_last = position;
    position += character.length;
    if (character.value == CharClass::newline) after_newline = position;
  }
  if (to_newline && after_newline != 0) return after_newline;
  if (position == text.size() || before_last == start) return position;
  return before_last;
}

template <bool slash>
std::size_t next_o200k(std::string_view text, std::size_t start) {
  const ClassedChar first = classed_at(text, start);
  if (first.in(numbers)) {
    std::size_t position = start + first.length;
    for (int taken = 1; taken < 3; ++taken) {
      const ClassedChar character = classed_at(text, position);
      if (!character.in(numbers)) break;
      position += character.length;
    }
    return position;
  }
  if (first.value != CharClass::newline) {
    const std::size_t end = match_word(text, start, first);
    if (end != start) return end;
  }
  const std::size_t symbol = text[start] == ' ' ? start + 1 : start;
  std::size_t position = skip_run(text, symbol, symbols);
  if (position == symbol) return match_spaces(text, start, true);
  while (position < text.size() &&
         (text[position] == '\r' || text[position] == '\n' || (slash && text[position] == '/'))) {
    ++position;
  }
  return position;
}

std::size_t next_gpt2(std::string_view text, std::size_t start) {
  const std::string_view rest = text.substr(start);
  for (const std::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (rest.starts_with(contraction)) return start + contraction.size();
  }
  const std::size_t from = text[start] == ' ' ? start + 1 : start;
  for (const ClassSet set : {letters, numbers, symbols}) {
    const std::size_t end = skip_run(text, from, set);
    if (end != from) return end;
  }
  return match_spaces(text, start, false);
}

}  // namespace

KnownPattern recognise_pattern(std::string_view regex) {
  if (regex == gpt2_pattern) return KnownPattern::gpt2;
  if (!regex.starts_with(o200k_words)) return KnownPattern::none;
  regex.remove_prefix(o200k_words.size());
  if (regex == o200k_rest) return KnownPattern::o200k;
  if (regex == o200k_slash_rest) return KnownPattern::o200k_slash;
  return KnownPattern::none;
}

template <KnownPattern pattern>
std::size_t next_piece(std::string_view text, std::size_t start) {
  if constexpr (pattern == KnownPattern::o200k) return next_o200k<false>(text, start);
  if constexpr (pattern == KnownPattern::o200k_slash) return next_o200k<true>(text, start);
  if constexpr (pattern == KnownPattern::gpt2) return next_gpt2(text, start);
}

template std::size_t next_piece<KnownPattern::o200k>(std::string_view, std::size_t);
template std::size_t next_piece<KnownPattern::o200k_slash>(std::string_view, std::size_t);
template std::size_t next_piece<KnownPattern::gpt2>(std::string_view, std::size_t);

}  // namespace m3
