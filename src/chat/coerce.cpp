#include "src/chat/coerce.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "src/base/error.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t skip_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

// JSON's own grammar: -0|[1-9]digits, then a fraction and an exponent.
bool is_json_number(std::string_view text, bool& whole) {
  std::size_t at = !text.empty() && text[0] == '-' ? 1 : 0;
  const std::size_t first = at;
  at = skip_digits(text, at);
  if (at == first || (text[first] == '0' && at > first + 1)) return false;
  whole = true;
  if (at < text.size() && text[at] == '.') {
    const std::size_t fraction = ++at;
    at = skip_digits(text, at);
    if (at == fraction) return false;
    whole = false;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const std::size_t exponent = at;
    at = skip_digits(text, at);
    if (at == exponent) return false;
    whole = false;
  }
  return at == text.size();
}

// A number as people also write it (+5, 007, .5, 5.), in JSON's spelling; empty if it is none.
std::string loose_number(std::string_view text, bool& whole) {
  std::string out;
  std::size_t at = 0;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) {
    if (text[at] == '-') out += '-';
    ++at;
  }
  std::size_t end = skip_digits(text, at);
  std::string digits(text.substr(at, end - at));
  std::string fraction;
  if (end < text.size() && text[end] == '.') {
    const std::size_t behind = skip_digits(text, end + 1);
    fraction = std::string(text.substr(end + 1, behind - end - 1));
    end = behind;
  }
  if (digits.empty() && fraction.empty()) return {};
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  out += digits.empty() ? "0" : digits;
  if (!fraction.empty()) {
    out += '.';
    out += fraction;
  }
  out += text.substr(end);
  return is_json_number(out, whole) ? out : std::string();
}

// A number where an integer is asked for: "3.0" and "1e3" are 3 and 1000.
std::string as_integer(const std::string& number) {
  const double value = std::strtod(number.c_str(), nullptr);
  if (!std::isfinite(value) || value != std::floor(value) || std::fabs(value) > 9007199254740992.0) return {};
  return fmt::format("{:.0f}", value == 0 ? 0.0 : value);
}

std::string numeric(std::string_view text, const SchemaView& schema) {
  if (!schema.allows(kind_integer | kind_number)) return {};
  bool whole = false;
  std::string number(text);
  if (!is_json_number(text, whole)) {
    if (schema.allows(kind_string)) return {};  // "0123" stays what it is where it may
    number = loose_number(text, whole);
    if (number.empty()) return {};
  }
  if (whole || schema.allows(kind_number)) return number;
  return schema.allows(kind_string) ? std::string() : as_integer(number);
}

std::string boolean(std::string_view text, const SchemaView& schema) {
  if (!schema.allows(kind_boolean)) return {};
  if (text == "true" || text == "True") return "true";
  if (text == "false" || text == "False") return "false";
  const bool numbers_are_free = !schema.allows(kind_integer | kind_number | kind_string);
  if (numbers_are_free && text == "1") return "true";
  if (numbers_are_free && text == "0") return "false";
  return {};
}

std::string compact_json(const Value& value) {
  JsonStyle style;
  style.item_separator = Text(",", Origin::template_text);
  style.key_separator = Text(":", Origin::template_text);
  return to_json(value, style).bytes();
}

std::optional<Value> container_of(std::string_view text) {
  if (text.empty() || (text[0] != '{' && text[0] != '[')) return std::nullopt;
  std::string error;
  return try_parse_json(text, error);
}

// The member of an enum that the text spells, as JSON.
std::string enumerated(std::string_view text, const SchemaView& schema) {
  for (const Value* value : schema.enumerated()) {
    if (value->is(Kind::string) && value->bytes() == text) return json_string(text);
  }
  const std::string_view trimmed = trim_spaces(text);
  for (const Value* value : schema.enumerated()) {
    if (value->is(Kind::string)) {
      if (value->bytes() == trimmed) return json_string(trimmed);
    } else if (std::string json = compact_json(*value); json == trimmed) {
      return json;
    }
  }
  return {};
}

}  // namespace

std::string_view trim_spaces(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          out += c;
        }
    }
  }
}

std::string json_string(std::string_view text) {
  std::string out;
  out += '"';
  append_json_escaped(out, text);
  out += '"';
  return out;
}

namespace {

// A schema of arrays within itself would wrap a text for ever.
constexpr int max_wrapping = 8;

std::string coerce(std::string_view text, const SchemaView& schema, int depth);

std::vector<std::string> elements_of(std::string_view text, const SchemaView& schema, int depth) {
  const std::string_view trimmed = trim_spaces(text);
  std::vector<std::string> elements;
  if (trimmed.empty()) return elements;
  if (const auto value = container_of(trimmed); value && value->is(Kind::list)) {
    for (const Value& item : value->items()) elements.push_back(compact_json(item));
    return elements;
  }
  elements.push_back(coerce(text, schema.item(0), depth + 1));
  return elements;
}

std::string coerce(std::string_view text, const SchemaView& schema, int depth) {
  if (!schema.typed() || depth > max_wrapping) return json_string(text);
  if (std::string value = enumerated(text, schema); !value.empty()) return value;
  if (schema.only(kind_string)) return json_string(text);
  const std::string_view trimmed = trim_spaces(text);
  if (schema.allows(kind_null) && (trimmed == "null" || (trimmed.empty() && !schema.allows(kind_string)))) {
    return "null";
  }
  if (std::string value = numeric(trimmed, schema); !value.empty()) return value;
  if (std::string value = boolean(trimmed, schema); !value.empty()) return value;
  if (schema.allows(kind_object | kind_array)) {
    if (const auto value = container_of(trimmed)) {
      if (schema.allows(value->is(Kind::dict) ? kind_object : kind_array)) return compact_json(*value);
    }
  }
  if (schema.allows(kind_string)) return json_string(text);
  if (trimmed.empty() && schema.allows(kind_object)) return "{}";
  if (schema.allows(kind_array)) {
    std::string out = "[";
    for (const std::string& element : elements_of(text, schema, depth)) {
      if (out.size() > 1) out += ',';
      out += element;
    }
    out += ']';
    return out;
  }
  return json_string(text);
}

}  // namespace

std::string coerce_leaf(std::string_view text, const SchemaView& schema) { return coerce(text, schema, 0); }

std::vector<std::string> coerce_elements(std::string_view text, const SchemaView& schema) {
  return elements_of(text, schema, 0);
}

bool is_surely_string(std::string_view text, const SchemaView& schema) {
  if (!schema.allows(kind_string) || schema.allows(kind_array | kind_object) || !schema.enumerated().empty()) {
    return false;
  }
  if (schema.only(kind_string)) return true;
  const std::string_view trimmed = trim_spaces(text);
  if (trimmed.empty()) return false;
  const auto may_become = [&](std::string_view word) { return word.substr(0, trimmed.size()) == trimmed; };
  if (schema.allows(kind_null) && may_become("null")) return false;
  if (schema.allows(kind_boolean)) {
    for (const std::string_view word : {"true", "false", "True", "False"}) {
      if (may_become(word)) return false;
    }
  }
  if (schema.allows(kind_integer | kind_number)) {
    const bool numeral = std::all_of(trimmed.begin(), trimmed.end(), [](char c) {
      return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
    });
    if (numeral) return false;
  }
  return true;
}

}  // namespace m3::chat
