// What Python's str methods know about characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace m3::chat {

// The code point at `at`, which must lie at the start of a character of valid UTF-8; moves `at` behind it.
char32_t next_code_point(std::string_view text, std::size_t& at);
std::size_t count_code_points(std::string_view text);
// The byte offset of code point `index` (at most the text's end).
std::size_t byte_offset(std::string_view text, std::size_t index);
bool is_ascii(std::string_view text);

bool is_alphabetic(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_space(char32_t c);  // str.isspace(), which str.strip() and re's \s share
bool is_uppercase(char32_t c);
bool is_lowercase(char32_t c);
bool is_titlecase(char32_t c);
bool is_printable(char32_t c);
bool is_cased(char32_t c);
bool is_case_ignorable(char32_t c);
// The value of a decimal digit of any script, or -1.
int decimal_value(char32_t c);

// One to three code points; a final sigma is the caller's business.
struct Mapped {
  char32_t points[3];
  int count;
};
Mapped upper_of(char32_t c);
Mapped lower_of(char32_t c);
Mapped title_of(char32_t c);
Mapped folded_of(char32_t c);

}  // namespace m3::chat
