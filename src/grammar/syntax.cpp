#include "src/grammar/syntax.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "cmake/xgrammar/hooks.h"
#include "src/base/error.h"
#include "src/grammar/ebnf.h"

namespace m3::grammar {
namespace {

constexpr std::size_t max_regex = std::size_t{1} << 20;
constexpr std::size_t max_grammar = std::size_t{4} << 20;  // what Rules may write
constexpr int max_nesting = 1000;                          // groups within groups; whoever reads them recurses

bool too_deep(std::string_view pattern) {
  int depth = 0;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
    } else if (in_class) {
      in_class = pattern[i] != ']';
    } else if (pattern[i] == '[') {
      in_class = true;
    } else {
      depth += pattern[i] == '(' ? 1 : pattern[i] == ')' ? -1 : 0;
    }
    if (depth > max_nesting) return true;
  }
  return false;
}

// Half of a surrogate pair by its number (\ud800, \u{d800}, \U0000d800, \x{d800}): no text holds one.
bool names_surrogate(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '\\') continue;
    const char kind = text[++i];
    if (kind != 'u' && kind != 'U' && kind != 'x') continue;
    std::size_t at = i + 1;
    const bool braces = at < text.size() && text[at] == '{';
    if (braces) ++at;
    const std::size_t most = braces || kind == 'U' ? 8 : kind == 'u' ? 4 : 2;
    unsigned long code = 0;
    for (const std::size_t end = std::min(text.size(), at + most); at < end; ++at) {
      if (std::isxdigit(static_cast<unsigned char>(text[at])) == 0) break;
      code = code * 16 + std::stoul(std::string(1, text[at]), nullptr, 16);
    }
    if (code >= 0xd800 && code <= 0xdfff) return true;
  }
  return false;
}

constexpr const char* surrogate_problem = "half of a surrogate pair (D800 to DFFF) is no character";

std::string line_of(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  constexpr std::size_t most = 300;
  if (text.size() <= most) return text;
  std::size_t end = most;  // not within a character
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + " …";
}

}  // namespace

std::string regex_problem(const std::string& pattern) {
  if (pattern.empty()) return "the expression is empty";
  if (pattern.size() > max_regex) return fmt::format("more than {} MiB", max_regex >> 20);
  if (too_deep(pattern)) return fmt::format("groups nested deeper than {}", max_nesting);
  if (names_surrogate(pattern)) return surrogate_problem;
  return line_of(xgrammar::regex_problem(pattern));
}

void check_regex(const std::string& pattern, const std::string& path) {
  const std::string problem = regex_problem(pattern);
  if (!problem.empty()) fail("{}: no regular expression that can be enforced: {}", path, problem);
}

void check_grammar(const std::string& text, const std::string& path) {
  if (text.size() > max_grammar) fail("{}: more than {} MiB", path, max_grammar >> 20);
  // Special("…") is ours and stands for a number.
  std::string plain;
  bool special = false;
  int depth = 0;
  for (const Piece& piece : pieces(text)) {
    const bool escapes = piece.kind == Piece::Kind::literal || piece.text.starts_with('[');
    if (escapes && (names_surrogate(piece.text) || names_surrogate(unquote(piece.text))))
      fail("{}: {}", path, surrogate_problem);
    if (piece.kind == Piece::Kind::other) depth += piece.text == "(" ? 1 : piece.text == ")" ? -1 : 0;
    if (depth > max_nesting) fail("{}: groups nested deeper than {}", path, max_nesting);
    if (piece.kind == Piece::Kind::name && piece.text == "Special") {
      special = true;
      plain += '0';
    } else if (!special) {
      plain += piece.text;
    } else if (piece.text == ")") {
      special = false;
    }
  }
  const std::string problem = line_of(xgrammar::grammar_problem(plain));
  if (!problem.empty()) fail("{}: {}", path, problem);
}

}  // namespace m3::grammar
