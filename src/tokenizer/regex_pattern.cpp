#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/tokenizer/regex_pattern.h"

#include <pcre2.h>

#include <array>

#include "src/base/error.h"
#include "src/tokenizer/utf8.h"

namespace m3 {

namespace {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// tokenizer.json patterns are written for Oniguruma. What PCRE2 would read otherwise is rewritten (\s, which there takes
// U+180E too) or refused: \h (a hexadecimal digit, in PCRE2 a blank), and classes inside or intersected with classes.
std::string translate(std::string_view pattern, const std::string& where) {
  constexpr std::string_view spaces =
      R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string result;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view pair = pattern.substr(i, 2);
    if (pair == "\\h" || pair == "\\H") fail("{}: \\h means different things to different regex engines", where);
    if (in_class && pair == "&&") fail("{}: && inside [] is not implemented", where);
    if (pair == "\\s") {
      result += in_class ? std::string(spaces) : fmt::format("[{}]", spaces);
      ++i;
    } else if (pair == "\\S" && !in_class) {
      result += fmt::format("[^{}]", spaces);
      ++i;
    } else if (pattern[i] == '\\') {
      result += pair;
      ++i;
    } else if (pattern[i] == '[' && in_class) {
      const std::size_t end = pattern.find(":]", i);
      if (pair != "[:" || end == std::string_view::npos) fail("{}: nested [] are not implemented", where);
      result += pattern.substr(i, end + 2 - i);
      i = end + 1;
    } else {
      result += pattern[i];
      if (pattern[i] == '[') {
        in_class = true;
        // A ] that comes first is a member.
        for (const char first : {'^', ']'}) {
          if (i + 1 < pattern.size() && pattern[i + 1] == first) result += pattern[++i];
        }
      } else if (pattern[i] == ']') {
        in_class = false;
      }
    }
  }
  return result;
}

// A text without broken UTF-8, and the way back to offsets of the original.
class ValidText {
 public:
  explicit ValidText(std::string_view original) : text_(original) {
    if (is_valid_utf8(original)) return;
    for (std::size_t position = 0; position < original.size();) {
      const Utf8Character character = decode_utf8(original, position);
      append_utf8(copy_, character.code);
      offsets_.resize(copy_.size(), position);
      position += character.length;
    }
    offsets_.push_back(original.size());
    text_ = copy_;
  }
  std::string_view text() const { return text_; }
  std::size_t original(std::size_t offset) const { return offsets_.empty() ? offset : offsets_[offset]; }

 private:
  std::string_view text_;
  std::string copy_;
  std::vector<std::size_t> offsets_;
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct RegexPattern::Code {
  pcre2_code* compiled = nullptr;
  std::string where;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }
};

RegexPattern::RegexPattern(const std::string& pattern, const std::string& where) : code_(std::make_unique<Code>()) {
  const std::string translated = translate(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->where = where;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->compiled == nullptr) {
    fail("{}: the pattern is not usable at byte {} of {}: {}", where, offset, in_quotes(translated),
         pcre2_message(error));
  }
}

RegexPattern::~RegexPattern() = default;
RegexPattern::RegexPattern(RegexPattern&&) noexcept = default;
RegexPattern& RegexPattern::operator=(RegexPattern&&) noexcept = default;

std::vector<std::pair<std::size_t, std::size_t>> RegexPattern::matches(std::string_view text) const {
  const ValidText valid(text);
  const std::string_view subject = valid.text();
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(code_->compiled, nullptr));
  if (data == nullptr) fail_resource("{}: out of memory", code_->where);
  std::vector<std::pair<std::size_t, std::size_t>> found;
  std::size_t position = 0;
  std::size_t last_end = std::string_view::npos;
  while (position <= subject.size()) {
    const int count = pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                                  position, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0)
      fail("{}: the pattern failed on a text of {} bytes: {}", code_->where, text.size(), pcre2_message(count));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    // \K inside a lookaround can set a match's begin after its end, or before what is already taken.
    if (begin > end || begin < position) fail("{}: the pattern moves its match backwards (\\K)", code_->where);
    if (begin == end && end == last_end) {
      if (position >= subject.size()) break;
      position += decode_utf8(subject, position).length;
      continue;
    }
    found.emplace_back(valid.original(begin), valid.original(end));
    position = last_end = end;
  }
  return found;
}

}  // namespace m3
