// str() and repr() as Python writes them.
#include <charconv>
#include <cmath>

#include "src/base/error.h"
#include "src/chat/template/unicode.h"
#include "src/chat/template/value.h"

namespace m3::chat {
namespace {

constexpr int max_repr_depth = 2 * max_value_depth;

void write_repr(Text& out, const Value& value, int depth);

std::string escape_code(unsigned code) {
  if (code <= 0xff) return fmt::format("\\x{:02x}", code);
  if (code <= 0xffff) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\U{:08x}", code);
}

void write_string_repr(Text& out, const Text& text) {
  const std::string& bytes = text.bytes();
  const bool has_single = bytes.find('\'') != std::string::npos;
  const bool has_double = bytes.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const Origin edge = bytes.empty() ? Origin::template_text : text.origin_at(0);
  out.append(std::string(1, quote), edge);
  std::size_t at = 0, plain = 0;
  while (at < bytes.size()) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(bytes, at);
    std::string escaped;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      escaped += '\\';
      escaped += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      escaped += '\\';
      escaped += c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    } else if (c < 0x20 || c == 0x7f || (c > 0x7f && !is_printable(c))) {
      escaped = escape_code(static_cast<unsigned>(c));
    } else {
      continue;
    }
    out.append(text, plain, begin);
    out.append(escaped, text.origin_at(begin));
    plain = at;
  }
  out.append(text, plain, bytes.size());
  out.append(std::string(1, quote), edge);
}

void write_items(Text& out, const std::vector<Value>& items, Origin origin, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ", origin);
    write_repr(out, items[i], depth);
  }
}

void write_dict(Text& out, const Dict& dict, Origin origin, int depth) {
  out.append("{", origin);
  for (std::size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ", origin);
    write_repr(out, dict.items[i].first, depth);
    out.append(": ", origin);
    write_repr(out, dict.items[i].second, depth);
  }
  out.append("}", origin);
}

void write_view(Text& out, const View& view, int depth) {
  static constexpr const char* names[] = {"dict_keys([", "dict_values([", "dict_items(["};
  out.append(names[static_cast<int>(view.kind)], view.origin);
  bool first = true;
  for (const auto& [key, item] : view.dict->items) {
    if (!first) out.append(", ", view.origin);
    first = false;
    if (view.kind == ViewKind::items) out.append("(", view.origin);
    if (view.kind != ViewKind::values) write_repr(out, key, depth);
    if (view.kind == ViewKind::items) out.append(", ", view.origin);
    if (view.kind != ViewKind::keys) write_repr(out, item, depth);
    if (view.kind == ViewKind::items) out.append(")", view.origin);
  }
  out.append("])", view.origin);
}

std::string range_repr(const Range& range) {
  std::string text = fmt::format("range({}, {}", range.start, range.stop);
  if (range.step != 1) text += fmt::format(", {}", range.step);
  return text + ")";
}

void write_repr(Text& out, const Value& value, int depth) {
  if (depth > max_repr_depth) fault("a value that contains itself cannot be printed");
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: return out.append("Undefined", Origin::template_text);
    case Kind::none: return out.append("None", value.origin());
    case Kind::boolean: return out.append(value.as_bool() ? "True" : "False", value.origin());
    case Kind::integer: return out.append(std::to_string(value.as_int()), value.origin());
    case Kind::big_integer: return out.append(value.digits(), value.origin());
    case Kind::floating: return out.append(float_repr(value.as_double()), value.origin());
    case Kind::string:
      if (value.as_string().markup) out.append("Markup(", Origin::template_text);
      write_string_repr(out, value.text());
      if (value.as_string().markup) out.append(")", Origin::template_text);
      return;
    case Kind::list:
    case Kind::tuple: {
      const bool list = value.is(Kind::list);
      out.append(list ? "[" : "(", value.origin());
      write_items(out, value.items(), value.origin(), depth + 1);
      out.append(list ? "]" : value.items().size() == 1 ? ",)" : ")", value.origin());
      return;
    }
    case Kind::dict: return write_dict(out, value.as_dict(), value.origin(), depth + 1);
    case Kind::range: return out.append(range_repr(value.as<Range>()), Origin::template_text);
    case Kind::view: return write_view(out, value.as<View>(), depth + 1);
    case Kind::name_space:
      out.append("<Namespace ", Origin::template_text);
      write_dict(out, value.as<NameSpace>().attributes, Origin::template_text, depth + 1);
      return out.append(">", Origin::template_text);
    default:
      // Python prints an address here, which no two runs share.
      fault("a ", type_name(value), " cannot be printed");
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);
  const std::size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02d}", text.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const bool negative = text[0] == '-';
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string fixed;
  if (exponent < 0) {
    fixed = "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= whole) {
      fixed = digits + std::string(whole - digits.size(), '0') + ".0";
    } else {
      fixed = digits.substr(0, whole) + "." + digits.substr(whole);
    }
  }
  if (negative) fixed.insert(0, 1, '-');
  return fixed;
}

Text to_repr(const Value& value) {
  Text out;
  write_repr(out, value, 0);
  return out;
}

Text to_text(const Value& value) {
  if (value.is(Kind::string)) return value.text();
  if (value.is(Kind::undefined)) return {};
  return to_repr(value);
}

}  // namespace m3::chat
