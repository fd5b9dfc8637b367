// str % values, str.format() and format(): the parts that templates use.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/chat/template/builtins.h"
#include "src/chat/template/interpreter.h"
#include "src/chat/template/unicode.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {
namespace {

constexpr std::int64_t max_width = 100000;
constexpr int max_precision = 500;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  char group = '\0';  // , or _
  std::int64_t width = 0;
  int precision = -1;
  char type = '\0';
};

std::int64_t read_number(std::string_view text, std::size_t& at) {
  std::int64_t value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    value = value * 10 + (text[at++] - '0');
    if (value > max_width) fault("a width or precision in a format is too large");
  }
  return value;
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  std::size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    std::size_t behind = 0;
    next_code_point(text, behind);
    if (behind < text.size() && is_align(text[behind])) {
      spec.fill = std::string(text.substr(0, behind));
      spec.align = text[behind];
      at = behind + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto take = [&](char c) {
    if (at >= text.size() || text[at] != c) return false;
    ++at;
    return true;
  };
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  spec.alternate = take('#');
  if (take('0')) {
    spec.zero = true;
    if (spec.align == '\0') {
      spec.align = '=';
      spec.fill.assign(1, '0');
    }
  }
  spec.width = read_number(text, at);
  if (take(',')) spec.group = ',';
  if (take('_')) spec.group = '_';
  if (take('.')) {
    const std::size_t digits = at;
    spec.precision = static_cast<int>(read_number(text, at));
    if (at == digits) fault("format specifier missing precision");
    if (spec.precision > max_precision) fault("a precision in a format is too large");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fault("invalid format specifier");
  return spec;
}

std::string print_double(double value, char type, int precision, bool alternate) {
  char pattern[16];
  std::snprintf(pattern, sizeof pattern, "%%%s.*%c", alternate ? "#" : "", type);
  const int size = std::snprintf(nullptr, 0, pattern, precision, value);
  std::string out(static_cast<std::size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), pattern, precision, value);
  out.pop_back();
  return out;
}

std::string to_base(std::uint64_t value, unsigned base, bool upper) {
  std::string out;
  do {
    const auto digit = static_cast<char>(value % base);
    out.insert(out.begin(), static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10));
    value /= base;
  } while (value != 0);
  return out;
}

std::string group_digits(const std::string& digits, char separator, std::size_t every = 3) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// A float's digits without sign.
std::string float_body(double value, const Spec& spec) {
  const double magnitude = std::fabs(value);
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  if (!std::isfinite(value)) {
    std::string name = std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
    if (spec.type == '%') name += '%';
    return name;
  }
  switch (spec.type) {
    case '\0':
      if (spec.precision < 0) return float_repr(magnitude);
      {
        const int digits = std::max(spec.precision, 1);
        std::string body = print_double(magnitude, 'g', digits, spec.alternate);
        if (body.find_first_of(".e") != std::string::npos) return body;
        // Without a type one digit stays behind the point, and the point counts towards the exponent form.
        if (static_cast<int>(body.size()) >= digits && digits > 0 && magnitude >= std::pow(10.0, digits - 1)) {
          return print_double(magnitude, 'e', digits - 1, spec.alternate);
        }
        return body + ".0";
      }
    case '%': return print_double(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternate) + "%";
    case 'e':
    case 'E':
    case 'f':
    case 'F': return print_double(magnitude, spec.type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
    case 'g':
    case 'G':
      return print_double(magnitude, spec.type, spec.precision < 0 ? 6 : std::max(spec.precision, 1), spec.alternate);
    default: fault("unknown format code '", std::string(1, spec.type), "' for a float");
  }
}

std::string integer_body(std::int64_t value, const Spec& spec) {
  if (spec.precision >= 0) fault("precision not allowed in integer format specifier");
  const std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  const auto with_prefix = [&](std::string prefix, const std::string& digits) {
    if (!spec.alternate) return digits;
    prefix.append(digits);
    return prefix;
  };
  switch (spec.type) {
    case '\0':
    case 'd':
    case 'n': return std::to_string(magnitude);
    case 'b': return with_prefix("0b", to_base(magnitude, 2, false));
    case 'o': return with_prefix("0o", to_base(magnitude, 8, false));
    case 'x': return with_prefix("0x", to_base(magnitude, 16, false));
    case 'X': return with_prefix("0X", to_base(magnitude, 16, true));
    default: fault("unknown format code '", std::string(1, spec.type), "' for an int");
  }
}

Text padded(const Text& body, const Spec& spec, char default_align, std::size_t sign_bytes) {
  const auto length = static_cast<std::int64_t>(count_code_points(body.bytes()));
  if (spec.width <= length) return body;
  const char align = spec.align == '\0' ? default_align : spec.align;
  const std::int64_t total = spec.width - length;
  const std::int64_t before = align == '<' ? 0 : align == '^' ? total / 2 : total;
  const auto fill = [&](Text& out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out.append(spec.fill, Origin::template_text);
  };
  Text out;
  if (align == '=') {
    out.append(body, 0, sign_bytes);
    fill(out, total);
    out.append(body, sign_bytes, body.size());
    return out;
  }
  fill(out, before);
  out.append(body);
  fill(out, total - before);
  return out;
}

// Puts the sign that the spec asks for before the digits; its length.
std::size_t add_sign(std::string& digits, bool negative, const Spec& spec) {
  if (!negative && spec.sign == '-') return 0;
  digits.insert(digits.begin(), negative ? '-' : spec.sign);
  return 1;
}

Text format_numeric(const Value& value, const Spec& spec) {
  if (value.is(Kind::big_integer)) fault("an integer beyond 64 bits cannot be formatted");
  const std::string_view float_types = "eEfFgG%";
  const bool as_float =
      value.is(Kind::floating) || (spec.type != '\0' && float_types.find(spec.type) != std::string_view::npos);
  if (!as_float && spec.type == 'c') {
    std::string character;
    const std::int64_t code = value.as_int();
    if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) fault("%c arg not in range(0x110000)");
    append_utf8(character, static_cast<char32_t>(value.as_int()));
    return padded(Text(character, value.origin()), spec, '<', 0);
  }
  const bool negative =
      as_float ? std::signbit(value.as_double()) && !std::isnan(value.as_double()) : value.as_int() < 0;
  std::string body = as_float ? float_body(value.as_double(), spec) : integer_body(value.as_int(), spec);
  if (spec.group != '\0') {
    if (spec.zero) fault("zero padding with digit grouping is not supported");
    const std::size_t whole = std::min(body.find_first_not_of("0123456789"), body.size());
    std::string grouped = group_digits(body.substr(0, whole), spec.group);
    grouped.append(body, whole);
    body = std::move(grouped);
  }
  const std::size_t prefix = !as_float && spec.alternate && body.size() > 2 && body[0] == '0' ? 2 : 0;
  const std::size_t sign = add_sign(body, negative, spec);
  return padded(Text(std::move(body), value.origin()), spec, '>', sign + prefix);
}

Text format_text(const Text& text, const Spec& spec) {
  if (spec.type != '\0' && spec.type != 's') fault("unknown format code '", std::string(1, spec.type), "' for a str");
  if (spec.group != '\0' || spec.alternate || spec.sign != '-') fault("invalid format specifier for a str");
  if (spec.align == '=' && !spec.zero) fault("'=' alignment not allowed in string format specifier");
  Text body = text;
  if (spec.precision >= 0) body = text.slice(0, byte_offset(text.bytes(), static_cast<std::size_t>(spec.precision)));
  Spec adjusted = spec;
  if (spec.align == '=') adjusted.align = '<';
  return padded(body, adjusted, '<', 0);
}

// format(value, spec)
Text format_value(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  if (value.is(Kind::string)) return format_text(value.text(), parse_spec(text));
  if (value.is_number()) return format_numeric(value, parse_spec(text));
  fault("unsupported format string passed to ", type_name(value), ".__format__");
}

// --- percent -------------------------------------------------------------------------------------------------------

class PercentFormatter {
 public:
  PercentFormatter(const Text& format, const Value& values) : format_(format), values_(values) {}

  Text run() {
    const std::string& text = format_.bytes();
    Text out;
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t mark = std::min(text.find('%', at), text.size());
      out.append(format_, at, mark);
      if (mark == text.size()) break;
      at = mark + 1;
      convert(out, at);
    }
    const bool single = !values_.is(Kind::tuple) && !values_.is(Kind::dict) && !values_.is(Kind::list) &&
                        !values_.is(Kind::undefined) && !values_.is(Kind::range);
    const std::size_t given = values_.is(Kind::tuple) ? values_.items().size() : single ? 1 : used_;
    if (used_ < given && !by_name_) fault("not all arguments converted during string formatting");
    return out;
  }

 private:
  Value take() {
    if (values_.is(Kind::tuple)) {
      if (used_ >= values_.items().size()) fault("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++ > 0) fault("not enough arguments for format string");
    return values_;
  }

  std::int64_t number_or_star(std::size_t& at, bool& negative) {
    const std::string& text = format_.bytes();
    if (at < text.size() && text[at] == '*') {
      ++at;
      std::int64_t value = index_of(take());
      negative = value < 0;
      value = value < 0 ? -value : value;
      if (value > max_width) fault("a width or precision in a format is too large");
      return value;
    }
    return read_number(text, at);
  }

  void convert(Text& out, std::size_t& at) {
    const std::string& text = format_.bytes();
    Spec spec;
    std::optional<Value> named;
    if (at < text.size() && text[at] == '(') {
      const std::size_t close = text.find(')', at);
      if (close == std::string::npos) fault("incomplete format key");
      if (!values_.is(Kind::dict)) fault("format requires a mapping");
      const std::string key = text.substr(at + 1, close - at - 1);
      const Value* value = values_.as_dict().find(key);
      if (value == nullptr) fault("key '", key, "' is missing from the mapping");
      named = *value;
      by_name_ = true;
      at = close + 1;
    }
    bool left = false, zero = false;
    for (; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '-') {
        left = true;
      } else if (c == '0') {
        zero = true;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '+') {
        spec.sign = '+';
      } else if (c == ' ') {
        if (spec.sign != '+') spec.sign = ' ';
      } else {
        break;
      }
    }
    bool negative = false;
    spec.width = number_or_star(at, negative);
    left = left || negative;
    if (at < text.size() && text[at] == '.') {
      ++at;
      bool below = false;
      spec.precision = static_cast<int>(number_or_star(at, below));
      if (below) spec.precision = 0;
      if (spec.precision > max_precision) fault("a precision in a format is too large");
    }
    while (at < text.size() && (text[at] == 'h' || text[at] == 'l' || text[at] == 'L')) ++at;
    if (at >= text.size()) fault("incomplete format");
    const char type = text[at++];
    if (type == '%') return out.append("%", format_.origin_at(at - 1));
    const Value value = named ? *named : take();
    const bool numeric = std::string_view("diuoxXeEfFgG").find(type) != std::string_view::npos;
    spec.align = left ? '<' : zero && numeric ? '=' : '>';
    spec.fill.assign(1, zero && numeric && !left ? '0' : ' ');
    spec.zero = zero;
    out.append(converted(value, type, spec));
  }

  Text converted(const Value& value, char type, Spec spec) {
    switch (type) {
      case 's':
      case 'r': {
        Text body = type == 's' ? to_text(value) : to_repr(value);
        if (spec.precision >= 0) {
          body = body.slice(0, byte_offset(body.bytes(), static_cast<std::size_t>(spec.precision)));
        }
        return padded(body, spec, '>', 0);
      }
      case 'c':
        if (value.is(Kind::string) && value.as_string().length == 1) return padded(value.text(), spec, '>', 0);
        if (value.is_number() && !value.is(Kind::floating)) {
          spec.type = 'c';
          return format_numeric(value, spec);
        }
        fault("%c requires int or char");
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X': return integer(value, type, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.is_number()) fault("must be real number, not ", type_name(value));
        spec.type = type;
        return format_numeric(Value::floating(value.as_double(), value.origin()), spec);
      }
      default: fault("unsupported format character '", std::string(1, type), "'");
    }
  }

  Text integer(const Value& value, char type, Spec spec) {
    if (value.is(Kind::undefined)) fault(value.undefined_message());
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!value.is_number() || (!decimal && value.is(Kind::floating))) {
      fault("%", std::string(1, type), " format: an integer is required, not ", type_name(value));
    }
    std::int64_t whole = 0;
    if (value.is(Kind::floating)) {
      const double number = value.as_double();
      if (!std::isfinite(number) || std::fabs(number) >= 9.2e18) fault("a number out of range");
      whole = static_cast<std::int64_t>(number);
    } else if (value.is(Kind::big_integer)) {
      fault("an integer beyond 64 bits cannot be formatted");
    } else {
      whole = value.as_int();
    }
    spec.type = decimal ? 'd' : type;
    const int precision = spec.precision;
    spec.precision = -1;
    if (precision > 0) {
      std::string digits = integer_body(whole, spec);
      if (digits.size() < static_cast<std::size_t>(precision)) {
        digits.insert(0, static_cast<std::size_t>(precision) - digits.size(), '0');
        const std::size_t sign = add_sign(digits, whole < 0, spec);
        return padded(Text(std::move(digits), value.origin()), spec, '>', sign);
      }
    }
    return format_numeric(Value::integer(whole, value.origin()), spec);
  }

  const Text& format_;
  const Value& values_;
  std::size_t used_ = 0;
  bool by_name_ = false;
};

// --- braces --------------------------------------------------------------------------------------------------------

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const CallArguments& arguments)
      : interpreter_(interpreter), arguments_(arguments) {}

  Text run(const Text& format, int depth) {
    if (depth > 2) fault("max string recursion exceeded");
    const std::string& text = format.bytes();
    Text out;
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t mark = std::min(text.find_first_of("{}", at), text.size());
      out.append(format, at, mark);
      if (mark == text.size()) break;
      if (mark + 1 < text.size() && text[mark + 1] == text[mark]) {
        out.append(format, mark, mark + 1);
        at = mark + 2;
        continue;
      }
      if (text[mark] == '}') fault("single '}' encountered in format string");
      at = mark + 1;
      field(out, format, at, depth);
      interpreter_.charge_bytes(out.size() / 32);
    }
    return out;
  }

 private:
  void field(Text& out, const Text& format, std::size_t& at, int depth) {
    const std::string& text = format.bytes();
    std::size_t end = at;
    int open = 1;
    for (; end < text.size(); ++end) {
      if (text[end] == '{') ++open;
      if (text[end] == '}' && --open == 0) break;
    }
    if (open != 0) fault("expected '}' before end of string");
    std::size_t name_end = at;
    bool bracket = false;
    for (; name_end < end; ++name_end) {
      if (text[name_end] == '[') bracket = true;
      if (text[name_end] == ']') bracket = false;
      if (!bracket && (text[name_end] == '!' || text[name_end] == ':')) break;
    }
    const std::string name = text.substr(at, name_end - at);
    char conversion = '\0';
    std::size_t spec_begin = name_end;
    if (spec_begin < end && text[spec_begin] == '!') {
      if (spec_begin + 1 >= end) fault("unmatched '{' in format spec");
      conversion = text[spec_begin + 1];
      spec_begin += 2;
      if (spec_begin < end && text[spec_begin] != ':') fault("expected ':' after conversion specifier");
    }
    if (spec_begin < end && text[spec_begin] == ':') ++spec_begin;
    Value value = look_up(name);
    if (conversion == 's') value = Value::string(to_text(value));
    if (conversion == 'r') value = Value::string(to_repr(value));
    if (conversion != '\0' && conversion != 's' && conversion != 'r') {
      fault("unknown conversion specifier '", std::string(1, conversion), "'");
    }
    const Text spec = run(format.slice(spec_begin, end), depth + 1);
    out.append(format_value(value, spec.bytes()));
    at = end + 1;
  }

  Value look_up(const std::string& name) {
    const std::size_t first_end = std::min(name.find_first_of(".["), name.size());
    const std::string first = name.substr(0, first_end);
    Value value = first_value(first);
    std::size_t at = first_end;
    while (at < name.size()) {
      if (name[at] == '.') {
        const std::size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) fault("empty attribute in format string");
        value = interpreter_.attribute(value, name.substr(at + 1, end - at - 1));
        at = end;
      } else {
        const std::size_t end = name.find(']', at);
        if (end == std::string::npos) fault("missing ']' in format string");
        const std::string key = name.substr(at + 1, end - at - 1);
        if (key.empty()) fault("empty attribute in format string");
        const bool digits = std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isdigit(c); });
        value =
            interpreter_.item(value, digits && key.size() < 18 ? Value::integer(std::stoll(key)) : Value::string(key));
        at = end + 1;
        if (at < name.size() && name[at] != '.' && name[at] != '[') {
          fault("only '.' or '[' may follow ']' in format field specifier");
        }
      }
    }
    return value;
  }

  Value first_value(const std::string& name) {
    const bool digits = std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); });
    if (!digits) {
      for (const auto& [key, value] : arguments_.keywords) {
        if (key == name) return value;
      }
      fault("no keyword argument '", name, "' for the format string");
    }
    std::size_t index = 0;
    if (name.empty()) {
      if (numbering_ == 2) fault("cannot switch from manual field specification to automatic field numbering");
      numbering_ = 1;
      index = automatic_++;
    } else {
      if (numbering_ == 1) fault("cannot switch from automatic field numbering to manual field specification");
      numbering_ = 2;
      if (name.size() > 6) fault("too many decimal digits in format string");
      index = static_cast<std::size_t>(std::stoul(name));
    }
    if (index >= arguments_.positional.size()) fault("replacement index out of range for positional args");
    return arguments_.positional[index];
  }

  Interpreter& interpreter_;
  const CallArguments& arguments_;
  std::size_t automatic_ = 0;
  int numbering_ = 0;  // 1 automatic, 2 manual
};

}  // namespace

Text format_percent(const Text& format, const Value& values) { return PercentFormatter(format, values).run(); }

Text format_braces(Interpreter& interpreter, const Text& format, const CallArguments& arguments) {
  return BraceFormatter(interpreter, arguments).run(format, 0);
}

}  // namespace m3::chat
