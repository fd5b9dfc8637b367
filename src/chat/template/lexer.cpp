#include "src/chat/template/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "src/base/error.h"
#include "src/chat/template/unicode.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {

void fail_at(Position at, std::string_view what) {
  fail("chat template line {} column {}: {}", at.line, at.column, what);
}

namespace {

constexpr std::size_t max_source_bytes = 4u << 20;
constexpr auto npos = std::string::npos;

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit_char(c); }

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
    for (std::size_t i = 0; i < source_.size(); ++i) {
      if (source_[i] == '\n') line_starts_.push_back(i + 1);
    }
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_root();
    add(TokenKind::end, "", source_.size());
    return std::move(tokens_);
  }

 private:
  Position position(std::size_t offset) const {
    const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
    const std::size_t start = next == line_starts_.begin() ? 0 : *(next - 1);
    return {static_cast<int>(next - line_starts_.begin()) + 1, static_cast<int>(offset - start) + 1};
  }

  void add(TokenKind kind, std::string text, std::size_t offset) {
    tokens_.push_back({kind, std::move(text), position(offset)});
  }

  bool starts(std::string_view text, std::size_t at) const { return source_.compare(at, text.size(), text) == 0; }

  // The first offset at or behind `at` that holds no white space.
  std::size_t skip_space(std::size_t at) const {
    while (at < source_.size()) {
      std::size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at;
  }

  // Behind "{%- raw %}" if one begins at `at`, else npos.
  std::size_t raw_begin(std::size_t at) const {
    std::size_t i = at + 2;
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
    i = skip_space(i);
    if (!starts("raw", i)) return npos;
    i = skip_space(i + 3);
    if (starts("-%}", i)) return skip_space(i + 3);
    return starts("%}", i) ? i + 2 : npos;
  }

  // Emits text that stands before a tag whose sign character is `sign` (0 where there is none).
  void add_data(std::size_t begin, std::size_t end, char sign, bool before_variable) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      std::size_t keep = 0;
      for (std::size_t i = 0; i < text.size();) {
        const bool space = is_space(next_code_point(text, i));
        if (!space) keep = i;
      }
      text = text.substr(0, keep);
    } else if (sign != '+' && !before_variable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == npos ? 0 : newline + 1;
      if (line > 0 || line_starting_) {
        if (is_blank(text.substr(line))) text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(TokenKind::data, std::string(text), begin);
  }

  static bool is_blank(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      if (!is_space(next_code_point(text, i))) return false;
    }
    return true;
  }

  char sign_at(std::size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  void lex_root() {
    std::size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == npos || tag + 1 >= source_.size()) {
        if (at_ < source_.size()) add(TokenKind::data, source_.substr(at_), at_);
        at_ = source_.size();
        return;
      }
      const char next = source_[tag + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    }
    const char type = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_data(at_, tag, sign, type == '{');
    if (type == '%') {
      if (const std::size_t body = raw_begin(tag); body != npos) return lex_raw(tag, body);
    }
    at_ = tag + 2 + (sign != 0 ? 1 : 0);
    line_starting_ = false;
    if (type == '#') return lex_comment(tag);
    add(type == '%' ? TokenKind::block_begin : TokenKind::variable_begin, "", tag);
    lex_tag(type == '%', tag);
  }

  // Behind a closing "%}" or "#}" at `at`, where a sign may stand before it; npos if there is none.
  std::size_t close(std::string_view mark, std::size_t at) {
    const std::string m(mark);
    if (starts("+" + m, at)) return at + 3;
    if (starts("-" + m, at)) return skip_space(at + 3);
    if (starts(m, at)) return at + 2 + (at + 2 < source_.size() && source_[at + 2] == '\n' ? 1 : 0);
    return npos;
  }

  void finish_tag(std::size_t next) {
    line_starting_ = source_[next - 1] == '\n';
    at_ = next;
  }

  void lex_comment(std::size_t tag) {
    for (std::size_t i = at_; i < source_.size(); ++i) {
      if (const std::size_t next = close("#}", i); next != npos) return finish_tag(next);
    }
    fail_at(position(tag), "a comment is not closed with #}");
  }

  void lex_raw(std::size_t tag, std::size_t body) {
    line_starting_ = source_[body - 1] == '\n';
    for (std::size_t i = source_.find("{%", body); i != npos; i = source_.find("{%", i + 1)) {
      const char sign = sign_at(i + 2);
      std::size_t word = skip_space(i + 2 + (sign != 0 ? 1 : 0));
      if (!starts("endraw", word)) continue;
      const std::size_t next = close("%}", skip_space(word + 6));
      if (next == npos) continue;
      add_data(body, i, sign, false);
      return finish_tag(next);
    }
    fail_at(position(tag), "a raw block is not closed with {% endraw %}");
  }

  void lex_tag(bool block, std::size_t tag) {
    std::string open;  // brackets not closed yet
    while (true) {
      if (at_ >= source_.size())
        fail_at(position(tag), block ? "a tag is not closed with %}" : "a tag is not closed with }}");
      if (open.empty()) {
        if (block) {
          if (const std::size_t next = close("%}", at_); next != npos) {
            add(TokenKind::block_end, "", at_);
            return finish_tag(next);
          }
        } else if (starts("-}}", at_) || starts("}}", at_)) {
          add(TokenKind::variable_end, "", at_);
          return finish_tag(source_[at_] == '-' ? skip_space(at_ + 3) : at_ + 2);
        }
      }
      const std::size_t after = skip_space(at_);
      if (after != at_) {
        at_ = after;
        continue;
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit_char(c)) return lex_number();
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
      add(TokenKind::name, source_.substr(at_, end - at_), at_);
      at_ = end;
      return;
    }
    if (c == '\'' || c == '"') return lex_string();
    if (static_cast<unsigned char>(c) >= 0x80) {
      fail_at(position(at_), "only ASCII identifiers are supported outside of strings");
    }
    lex_operator(open);
  }

  // Digits with single underscores between them, from `at`; its end, or `at`.
  template <typename IsDigit>
  std::size_t digits(std::size_t at, IsDigit is_valid) const {
    std::size_t end = at;
    while (end < source_.size()) {
      const std::size_t next = source_[end] == '_' && end > at ? end + 1 : end;
      if (next >= source_.size() || !is_valid(source_[next])) break;
      end = next + 1;
    }
    return end;
  }

  void lex_number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    const std::size_t whole = digits(at_, is_digit_char);
    std::size_t end = whole;
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit_char(source_[end + 1])) {
        end = digits(end + 1, is_digit_char);
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        const std::size_t stop = digits(exponent, is_digit_char);
        if (stop > exponent) end = stop;
      }
      if (end > whole) return add_number(TokenKind::floating, end);
    }
    const char next =
        at_ + 1 < source_.size() ? static_cast<char>(std::tolower(static_cast<unsigned char>(source_[at_ + 1]))) : '\0';
    if (source_[at_] == '0' && (next == 'x' || next == 'o' || next == 'b')) {
      const auto valid = [next](char c) {
        if (next == 'x') return std::isxdigit(static_cast<unsigned char>(c)) != 0;
        return c >= '0' && c <= (next == 'o' ? '7' : '1');
      };
      std::size_t first = at_ + 2;
      if (first < source_.size() && source_[first] == '_') ++first;
      const std::size_t stop = digits(first, valid);
      if (stop > first) return add_number(TokenKind::integer, stop);
    }
    if (source_[at_] == '0') {
      return add_number(TokenKind::integer, digits(at_, [](char c) { return c == '0'; }));
    }
    add_number(TokenKind::integer, whole);
  }

  void add_number(TokenKind kind, std::size_t end) {
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(kind, std::move(text), at_);
    at_ = end;
  }

  void lex_string() {
    const std::size_t begin = at_;
    const char quote = source_[at_];
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at(position(begin), "a string is not closed");
    add(TokenKind::string, unescape(begin + 1, end), begin);
    at_ = end + 1;
  }

  std::string unescape(std::size_t at, std::size_t end) const {
    std::string out;
    while (at < end) {
      const char c = source_[at++];
      if (c != '\\') {
        out += c;
        continue;
      }
      unescape_one(out, at, end);
    }
    return out;
  }

  void unescape_one(std::string& out, std::size_t& at, std::size_t end) const {
    static constexpr std::array<std::pair<char, char>, 10> simple = {{{'\\', '\\'},
                                                                      {'\'', '\''},
                                                                      {'"', '"'},
                                                                      {'a', '\a'},
                                                                      {'b', '\b'},
                                                                      {'f', '\f'},
                                                                      {'n', '\n'},
                                                                      {'r', '\r'},
                                                                      {'t', '\t'},
                                                                      {'v', '\v'}}};
    const std::size_t escape = at - 1;
    const char c = source_[at];
    if (static_cast<unsigned char>(c) >= 0x80) {
      // Python encodes the character as an escape first, and this backslash then escapes that escape's backslash.
      const auto code = static_cast<unsigned>(next_code_point(source_, at));
      out += code <= 0xff     ? fmt::format("\\x{:02x}", code)
             : code <= 0xffff ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
      return;
    }
    ++at;
    if (c == '\n') return;
    for (const auto& [from, to] : simple) {
      if (c == from) {
        out += to;
        return;
      }
    }
    if (c >= '0' && c <= '7') {
      unsigned code = static_cast<unsigned>(c - '0');
      for (int i = 0; i < 2 && at < end && source_[at] >= '0' && source_[at] <= '7'; ++i) {
        code = code * 8 + static_cast<unsigned>(source_[at++] - '0');
      }
      return append_utf8(out, code);
    }
    const int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') fail_at(position(escape), "\\N{...} escapes are not supported");
    if (width == 0) {
      out += '\\';
      out += c;
      return;
    }
    unsigned code = 0;
    for (int i = 0; i < width; ++i, ++at) {
      if (at >= end || !std::isxdigit(static_cast<unsigned char>(source_[at]))) {
        fail_at(position(escape), "a truncated \\x, \\u or \\U escape");
      }
      const char digit = static_cast<char>(std::tolower(static_cast<unsigned char>(source_[at])));
      code = code * 16 + static_cast<unsigned>(is_digit_char(digit) ? digit - '0' : digit - 'a' + 10);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      fail_at(position(escape), "an escape that names no character");
    }
    append_utf8(out, code);
  }

  void lex_operator(std::string& open) {
    static constexpr std::string_view two[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view one = "+-/*%~[](){}><=.:|,;";
    std::string text;
    for (const std::string_view candidate : two) {
      if (starts(candidate, at_)) text = candidate;
    }
    if (text.empty() && one.find(source_[at_]) != npos) text = source_[at_];
    if (text.empty()) fail_at(position(at_), fmt::format("unexpected character '{}'", source_[at_]));
    if (text == "{" || text == "(" || text == "[") {
      open += text == "{" ? '}' : text == "(" ? ')' : ']';
    } else if (text == "}" || text == ")" || text == "]") {
      if (open.empty() || open.back() != text[0]) fail_at(position(at_), fmt::format("unexpected '{}'", text));
      open.pop_back();
    }
    add(TokenKind::op, text, at_);
    at_ += text.size();
  }

  std::string source_;
  std::vector<std::size_t> line_starts_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  if (source.size() > max_source_bytes) {
    fail("the chat template has {} bytes; at most {} are accepted", source.size(), max_source_bytes);
  }
  if (!is_valid_utf8(source)) fail("the chat template is not valid UTF-8");
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data: return "template text";
    case TokenKind::variable_begin: return "{{";
    case TokenKind::variable_end: return "}}";
    case TokenKind::block_begin: return "{%";
    case TokenKind::block_end: return "%}";
    case TokenKind::end: return "end of template";
    case TokenKind::string: return "a string";
    default: return "'" + token.text + "'";
  }
}

}  // namespace m3::chat
