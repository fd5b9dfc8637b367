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

// Oniguruma, which tokenizer.json patterns are written for, reads \h as a hexadecimal digit; PCRE2 as a
// blank.
bool has_escape(std::string_view pattern, std::string_view letters) {
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    ++i;
    if (letters.find(pattern[i]) != std::string_view::npos) return true;
  }
  return false;
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
  if (has_escape(pattern, "hH")) fail("{}: the pattern uses \\h, whose meaning differs between regex engines", where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->where = where;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->compiled == nullptr) {
    fail("{}: the pattern is not usable at its byte {}: {}", where, offset, pcre2_message(error));
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
