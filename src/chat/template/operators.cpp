#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "src/chat/template/builtins.h"
#include "src/chat/template/interpreter.h"
#include "src/chat/template/unicode.h"

namespace m3::chat {
namespace {

// Copied items cost memory too: 32 bytes each.
constexpr std::size_t work_of_item = 4;
constexpr std::size_t max_repeated_items = 1'000'000;

[[noreturn]] void unsupported(const std::string& op, const Value& left, const Value& right) {
  if (left.is(Kind::undefined)) fault(left.undefined_message());
  if (right.is(Kind::undefined)) fault(right.undefined_message());
  fault("unsupported operand types for ", op, ": '", type_name(left), "' and '", type_name(right), "'");
}

[[noreturn]] void overflow() { fault("an integer beyond 64 bits"); }

Origin origin_of(const Value& left, const Value& right) {
  return left.origin() == Origin::message || right.origin() == Origin::message ? Origin::message
                                                                               : Origin::template_text;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) fault("division by zero");
  if (a == INT64_MIN && b == -1) overflow();
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

double float_modulo(double a, double b) {
  if (b == 0) fault("division by zero");
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double float_floor_divide(double a, double b) {
  const double rest = float_modulo(a, b);
  const double quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value power(const Value& left, const Value& right, Origin origin) {
  const bool whole = !left.is(Kind::floating) && !right.is(Kind::floating);
  if (whole && right.as_int() >= 0) {
    std::int64_t result = 1, base = left.as_int(), exponent = right.as_int();
    if (base == 0 || base == 1 || base == -1) {
      return Value::integer(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base, origin);
    }
    for (; exponent > 0; --exponent) {
      if (__builtin_mul_overflow(result, base, &result)) overflow();
    }
    return Value::integer(result, origin);
  }
  const double base = left.as_double(), exponent = right.as_double();
  if (base == 0 && exponent < 0) fault("0.0 cannot be raised to a negative power");
  if (base < 0 && exponent != std::floor(exponent)) fault("complex numbers are not supported");
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && !std::isinf(base) && !std::isinf(exponent)) fault("a number out of range");
  return Value::floating(result, origin);
}

Value arithmetic(const std::string& op, const Value& left, const Value& right) {
  if (left.is(Kind::big_integer) || right.is(Kind::big_integer)) overflow();
  const Origin origin = origin_of(left, right);
  if (op == "**") return power(left, right, origin);
  if (op == "/") {
    if (right.as_double() == 0) fault("division by zero");
    return Value::floating(left.as_double() / right.as_double(), origin);
  }
  if (left.is(Kind::floating) || right.is(Kind::floating)) {
    const double a = left.as_double(), b = right.as_double();
    if (op == "+") return Value::floating(a + b, origin);
    if (op == "-") return Value::floating(a - b, origin);
    if (op == "*") return Value::floating(a * b, origin);
    if (op == "%") return Value::floating(float_modulo(a, b), origin);
    return Value::floating(float_floor_divide(a, b), origin);
  }
  const std::int64_t a = left.as_int(), b = right.as_int();
  std::int64_t result = 0;
  bool overflowed = false;
  if (op == "+") {
    overflowed = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflowed = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflowed = __builtin_mul_overflow(a, b, &result);
  } else if (op == "//") {
    result = floor_divide(a, b);
  } else {
    if (b == 0) fault("integer modulo by zero");
    result = b == -1 ? 0 : a % b;
    if (result != 0 && (result < 0) != (b < 0)) result += b;
  }
  if (overflowed) overflow();
  return Value::integer(result, origin);
}

Text escape_html(const Text& text) {
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const char* escaped = c == '&'    ? "&amp;"
                          : c == '<'  ? "&lt;"
                          : c == '>'  ? "&gt;"
                          : c == '\'' ? "&#39;"
                          : c == '"'  ? "&#34;"
                                      : nullptr;
    if (escaped != nullptr) {
      out.append(escaped, text.origin_at(i));
    } else {
      out.append(text, i, i + 1);
    }
  }
  return out;
}

Value add_strings(Interpreter& interpreter, const Value& left, const Value& right) {
  interpreter.charge_bytes(left.text().size() + right.text().size());
  const bool markup = left.as_string().markup || right.as_string().markup;
  const auto part = [&](const Value& value) {
    return markup && !value.as_string().markup ? escape_html(value.text()) : value.text();
  };
  Text out = part(left);
  out.append(part(right));
  return Value::string(std::move(out), markup);
}

Value join_lists(Interpreter& interpreter, const Value& left, const Value& right) {
  interpreter.charge(work_of_item * (left.items().size() + right.items().size()));
  std::vector<Value> items = left.items();
  items.insert(items.end(), right.items().begin(), right.items().end());
  const Origin origin = origin_of(left, right);
  return left.is(Kind::list) ? Value::list(std::move(items), origin) : Value::tuple(std::move(items), origin);
}

Value repeat(Interpreter& interpreter, const Value& sequence, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const auto length = static_cast<std::size_t>(
      sequence.is(Kind::string) ? static_cast<std::int64_t>(sequence.text().size()) : length_of(sequence));
  std::size_t total = 0;
  if (__builtin_mul_overflow(times, length, &total)) fault("a repeated sequence is too long");
  if (sequence.is(Kind::string)) {
    interpreter.charge_bytes(total);
    Text out;
    for (std::size_t i = 0; i < times && length > 0; ++i) out.append(sequence.text());
    return Value::string(std::move(out), sequence.as_string().markup);
  }
  if (total > max_repeated_items) fault("a repeated sequence is too long");
  interpreter.charge(work_of_item * total);
  std::vector<Value> items;
  for (std::size_t i = 0; i < times && length > 0; ++i) {
    items.insert(items.end(), sequence.items().begin(), sequence.items().end());
  }
  return sequence.is(Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

bool is_sequence(const Value& value) { return value.is(Kind::string) || value.is(Kind::list) || value.is(Kind::tuple); }
bool is_index(const Value& value) { return value.is(Kind::integer) || value.is(Kind::boolean); }

}  // namespace

bool order(const std::string& op, const Value& left, const Value& right) {
  const Value& a = op[0] == '<' ? left : right;
  const Value& b = op[0] == '<' ? right : left;
  return less(a, b) || (op.size() == 2 && equal(a, b));
}

Value apply_binary(Interpreter& interpreter, const std::string& op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == "+") {
    if (left.is(Kind::string) && right.is(Kind::string)) return add_strings(interpreter, left, right);
    if (left.kind() == right.kind() && (left.is(Kind::list) || left.is(Kind::tuple))) {
      return join_lists(interpreter, left, right);
    }
  }
  if (op == "*") {
    if (is_sequence(left) && is_index(right)) return repeat(interpreter, left, right.as_int());
    if (is_index(left) && is_sequence(right)) return repeat(interpreter, right, left.as_int());
  }
  if (op == "%" && left.is(Kind::string)) {
    Text out = format_percent(left.text(), right);
    interpreter.charge_bytes(out.size());
    return Value::string(std::move(out));
  }
  unsupported(op, left, right);
}

Value negate(const Value& value, bool minus) {
  if (value.is(Kind::undefined)) fault(value.undefined_message());
  if (value.is(Kind::floating)) {
    return Value::floating(minus ? -value.as_double() : value.as_double(), value.origin());
  }
  if (value.is(Kind::big_integer)) {
    if (!minus) return value;
    const std::string& digits = value.digits();
    return Value::big_integer(digits[0] == '-' ? digits.substr(1) : "-" + digits, value.origin());
  }
  if (!is_index(value)) fault("bad operand type for unary ", minus ? "-" : "+", ": '", type_name(value), "'");
  if (minus && value.as_int() == INT64_MIN) overflow();
  return Value::integer(minus ? -value.as_int() : value.as_int(), value.origin());
}

std::int64_t index_of(const Value& value) {
  if (is_index(value)) return value.as_int();
  if (value.is(Kind::undefined)) fault(value.undefined_message());
  fault("'", type_name(value), "' object cannot be interpreted as an integer");
}

namespace {

std::string strip_spaces(std::string_view text) {
  std::size_t begin = 0, end = 0;
  bool started = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    if (is_space(next_code_point(text, at))) continue;
    if (!started) begin = here;
    started = true;
    end = at;
  }
  return std::string(text.substr(begin, end - begin));
}

// Underscores only between digits; other scripts' digits become ASCII.
std::optional<std::string> plain_digits(const std::string& text) {
  std::string out;
  char before = '\0';
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == '_') {
      const bool between = std::isalnum(static_cast<unsigned char>(before)) && at < text.size() &&
                           std::isalnum(static_cast<unsigned char>(text[at]));
      if (!between) return std::nullopt;
      before = '_';
      continue;
    }
    const int digit = c < 0x80 ? -1 : decimal_value(c);
    if (c >= 0x80 && digit < 0) return std::nullopt;
    before = c < 0x80 ? static_cast<char>(c) : static_cast<char>('0' + digit);
    out += before;
  }
  return out;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  auto digits = plain_digits(strip_spaces(text));
  if (!digits || digits->empty()) return std::nullopt;
  std::string rest = *digits;
  const bool negative = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.erase(0, 1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char mark = static_cast<char>(rest[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      rest.erase(0, 2);
    }
  }
  if (base == 0) base = 10;
  const bool valid = !rest.empty() && std::all_of(rest.begin(), rest.end(), [base](unsigned char c) {
    const int digit = std::isdigit(c) ? c - '0' : std::isalpha(c) ? std::tolower(c) - 'a' + 10 : 99;
    return digit < base;
  });
  if (!valid) return std::nullopt;
  errno = 0;
  const long long value = std::strtoll((negative ? "-" + rest : rest).c_str(), nullptr, base);
  if (errno != 0) overflow();
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  auto plain = plain_digits(strip_spaces(text));
  if (!plain || plain->empty()) return std::nullopt;
  std::string lower;
  for (const char c : *plain) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.find_first_of("xp(") != std::string::npos) return std::nullopt;  // strtod reads more than Python
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

void sort_values(std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  // A merge sort of our own: std::stable_sort may misbehave on an order that NaN makes inconsistent. Reversed sorting
  // keeps equal elements in their order, as Python's does.
  const auto before = [reverse](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  };
  std::vector<std::pair<Value, Value>> other(keyed.size());
  for (std::size_t width = 1; width < keyed.size(); width *= 2) {
    for (std::size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, keyed.size());
      const std::size_t end = std::min(begin + 2 * width, keyed.size());
      std::size_t left = begin, right = middle;
      for (std::size_t out = begin; out < end; ++out) {
        const bool take_right = left >= middle || (right < end && before(keyed[right], keyed[left]));
        other[out] = keyed[take_right ? right++ : left++];
      }
    }
    std::swap(keyed, other);
  }
}

}  // namespace m3::chat
