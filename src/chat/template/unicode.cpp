#include "src/chat/template/unicode.h"

#include <algorithm>
#include <iterator>

namespace m3::chat {
namespace {

struct Range {
  char32_t first, last;
};
struct Mapping {
  char32_t from;
  char32_t to[3];
};

#include "src/chat/template/unicode_tables.inc"

template <std::size_t N>
bool contains(const Range (&table)[N], char32_t c) {
  const auto* next = std::upper_bound(std::begin(table), std::end(table), c,
                                      [](char32_t value, const Range& range) { return value < range.first; });
  return next != std::begin(table) && c <= std::prev(next)->last;
}

template <std::size_t N>
const Mapping* find(const Mapping (&table)[N], char32_t c) {
  const auto* found = std::lower_bound(std::begin(table), std::end(table), c,
                                       [](const Mapping& row, char32_t value) { return row.from < value; });
  return found != std::end(table) && found->from == c ? found : nullptr;
}

Mapped mapped(const Mapping* row, char32_t c) {
  if (row == nullptr) return {{c, 0, 0}, 1};
  const int count = row->to[2] != 0 ? 3 : row->to[1] != 0 ? 2 : 1;
  return {{row->to[0], row->to[1], row->to[2]}, count};
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return at += 1, lead;
  if (lead < 0xe0) {
    const char32_t c = (lead & 0x1fu) << 6 | (byte(at + 1) & 0x3fu);
    return at += 2, c;
  }
  if (lead < 0xf0) {
    const char32_t c = (lead & 0x0fu) << 12 | (byte(at + 1) & 0x3fu) << 6 | (byte(at + 2) & 0x3fu);
    return at += 3, c;
  }
  const char32_t c =
      (lead & 0x07u) << 18 | (byte(at + 1) & 0x3fu) << 12 | (byte(at + 2) & 0x3fu) << 6 | (byte(at + 3) & 0x3fu);
  return at += 4, c;
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::size_t byte_offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  while (index > 0 && at < text.size()) {
    next_code_point(text, at);
    --index;
  }
  return std::min(at, text.size());
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_alphabetic(char32_t c) { return contains(alphabetic, c); }
bool is_decimal(char32_t c) { return contains(decimal, c); }
bool is_digit(char32_t c) { return contains(digit, c); }
bool is_numeric(char32_t c) { return contains(numeric, c); }
bool is_space(char32_t c) { return c < 0x80 ? (c >= 9 && c <= 13) || (c >= 28 && c <= 32) : contains(white_space, c); }
bool is_uppercase(char32_t c) { return contains(uppercase, c); }
bool is_lowercase(char32_t c) { return contains(lowercase, c); }
bool is_titlecase(char32_t c) { return contains(titlecase, c); }
bool is_printable(char32_t c) { return !contains(unprintable, c); }
bool is_cased(char32_t c) { return contains(cased, c); }
bool is_case_ignorable(char32_t c) { return contains(case_ignorable, c); }

int decimal_value(char32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  // Scripts hold their ten digits in a row, several rows may touch.
  for (const Range& range : decimal) {
    if (c >= range.first && c <= range.last) return static_cast<int>((c - range.first) % 10);
  }
  return -1;
}

Mapped upper_of(char32_t c) { return mapped(find(to_upper, c), c); }
Mapped lower_of(char32_t c) { return mapped(find(to_lower, c), c); }
Mapped title_of(char32_t c) {
  const Mapping* row = find(to_title, c);
  return row != nullptr ? mapped(row, c) : upper_of(c);
}
Mapped folded_of(char32_t c) {
  const Mapping* row = find(to_folded, c);
  return row != nullptr ? mapped(row, c) : lower_of(c);
}

}  // namespace m3::chat
