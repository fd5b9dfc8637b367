#include "src/grammar/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/grammar/ebnf.h"

namespace m3::grammar {
namespace {

std::string strip_zeros(std::string digits) {
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  return digits.empty() ? "0" : digits;
}

int compare_whole(const std::string& left, const std::string& right) {
  if (left.size() != right.size()) return left.size() < right.size() ? -1 : 1;
  const int order = left.compare(right);
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

int compare_magnitude(const Decimal& left, const Decimal& right) {
  const int order = compare_whole(left.whole, right.whole);
  if (order != 0) return order;
  const int fractions = left.fraction.compare(right.fraction);  // no trailing zeros: text order is number order
  return fractions < 0 ? -1 : fractions > 0 ? 1 : 0;
}

bool is_zero(const Decimal& value) { return value.whole == "0" && value.fraction.empty(); }

std::string increment(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  digits.insert(digits.begin(), '1');
  return digits;
}

std::string decrement(std::string digits) {  // of more than zero
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  return strip_zeros(digits);
}

std::string digit(char c) { return fmt::format("\"{}\"", c); }

std::string digit_class(char first, char last) {
  return first == last ? digit(first) : fmt::format("[{}-{}]", first, last);
}

std::string any_digits(std::size_t count) {
  if (count == 0) return "";
  return count == 1 ? "[0-9]" : fmt::format("[0-9]{{{}}}", count);
}

bool all_of(std::string_view digits, char c) {
  return std::all_of(digits.begin(), digits.end(), [c](char d) { return d == c; });
}

// Digit strings as long as `digits`, not less (or not more) than it.
std::string not_less(std::string_view digits) {
  if (digits.empty() || all_of(digits, '0')) return any_digits(digits.size());
  std::vector<std::string> alternatives{join({digit(digits[0]), not_less(digits.substr(1))})};
  if (digits[0] < '9') {
    alternatives.push_back(join({digit_class(static_cast<char>(digits[0] + 1), '9'), any_digits(digits.size() - 1)}));
  }
  return choose(alternatives);
}

std::string not_more(std::string_view digits) {
  if (digits.empty() || all_of(digits, '9')) return any_digits(digits.size());
  std::vector<std::string> alternatives;
  if (digits[0] > '0') {
    alternatives.push_back(join({digit_class('0', static_cast<char>(digits[0] - 1)), any_digits(digits.size() - 1)}));
  }
  alternatives.push_back(join({digit(digits[0]), not_more(digits.substr(1))}));
  return choose(alternatives);
}

std::string between(std::string_view low, std::string_view high) {  // of one length
  if (low.empty()) return "";
  if (low[0] == high[0]) return join({digit(low[0]), between(low.substr(1), high.substr(1))});
  std::vector<std::string> alternatives{join({digit(low[0]), not_less(low.substr(1))})};
  if (low[0] + 1 < high[0]) {
    alternatives.push_back(
        join({digit_class(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), any_digits(low.size() - 1)}));
  }
  alternatives.push_back(join({digit(high[0]), not_more(high.substr(1))}));
  return choose(alternatives);
}

// Whole numbers from low to high (or without end), without leading zeros.
std::optional<std::string> whole_range(const std::string& low, const std::optional<std::string>& high) {
  std::vector<std::string> alternatives;
  if (!high) {
    if (low == "0") return "(\"0\" | [1-9] [0-9]{0,17})";
    alternatives.push_back(not_less(low));
    if (low.size() < 18) alternatives.push_back(fmt::format("[1-9] [0-9]{{{},17}}", low.size()));
    return choose(alternatives);
  }
  if (compare_whole(low, *high) > 0) return std::nullopt;
  for (std::size_t length = low.size(); length <= high->size(); ++length) {
    const std::string first = length == low.size() ? low : std::string(1, '1').append(length - 1, '0');
    const std::string last = length == high->size() ? *high : std::string(length, '9');
    alternatives.push_back(between(first, last));
  }
  return choose(alternatives);
}

constexpr const char* any_fraction = "(\".\" [0-9]{1,20})?";

// What may stand behind the whole part. `digits` without trailing zeros.
std::string fraction_above(std::string_view digits, bool exclusive) {
  if (digits.empty()) return exclusive ? "\".\" [0-9]* [1-9] [0-9]*" : any_fraction;
  std::string out = exclusive ? "[0-9]* [1-9] [0-9]*" : "[0-9]*";
  for (std::size_t i = digits.size(); i-- > 0;) {
    std::vector<std::string> alternatives{join({digit(digits[i]), out})};
    if (digits[i] < '9') {
      alternatives.push_back(join({digit_class(static_cast<char>(digits[i] + 1), '9'), "[0-9]*"}));
    }
    out = choose(alternatives);
  }
  return join({"\".\"", out});
}

std::optional<std::string> fraction_below(std::string_view digits, bool exclusive) {
  if (digits.empty()) {
    if (exclusive) return std::nullopt;
    return "(\".\" \"0\"+)?";
  }
  std::string out;
  for (std::size_t i = digits.size(); i-- > 0;) {
    std::vector<std::string> alternatives;
    const bool last = i + 1 == digits.size();
    if (digits[i] > '0') {
      alternatives.push_back(join({digit_class('0', static_cast<char>(digits[i] - 1)), "[0-9]*"}));
    }
    if (!last) alternatives.push_back(join({digit(digits[i]), out}));
    if (last && !exclusive) alternatives.push_back(join({digit(digits[i]), "\"0\"*"}));
    if (i > 0) alternatives.emplace_back("\"\"");
    out = choose(alternatives);
  }
  return fmt::format("(\".\" {})?", out);
}

// Both bounds have the same whole part.
std::optional<std::string> fraction_between(std::string low, std::string high, bool low_exclusive,
                                            bool high_exclusive) {
  const std::size_t length = std::max(low.size(), high.size());
  low.resize(length, '0');
  high.resize(length, '0');
  std::size_t same = 0;
  while (same < length && low[same] == high[same]) ++same;
  if (same == length) {
    if (low_exclusive || high_exclusive) return std::nullopt;
    if (length == 0) return "(\".\" \"0\"+)?";
    return fmt::format("\".{}\" \"0\"*", low);
  }
  const auto stripped = [&](const std::string& digits) {
    std::string rest = digits.substr(same + 1);
    rest.erase(rest.find_last_not_of('0') + 1);
    return rest;
  };
  // Behind the digits that agree: the low digit and more, a digit between, or the high digit and less.
  const auto tail = [](std::string expression) {  // of the functions above, without their point
    const std::size_t point = expression.find("\".\"");
    return expression.erase(point, 3);
  };
  std::vector<std::string> alternatives{
      join({digit(low[same]),
            stripped(low).empty() && !low_exclusive ? "[0-9]*" : tail(fraction_above(stripped(low), low_exclusive))})};
  if (low[same] + 1 < high[same]) {
    alternatives.push_back(
        join({digit_class(static_cast<char>(low[same] + 1), static_cast<char>(high[same] - 1)), "[0-9]*"}));
  }
  if (stripped(high).empty()) {
    if (!high_exclusive) alternatives.push_back(join({digit(high[same]), "\"0\"*"}));
  } else if (const auto below = fraction_below(stripped(high), high_exclusive)) {
    alternatives.push_back(join({digit(high[same]), tail(*below)}));
  }
  const std::string agreed = low.substr(0, same);
  return join({fmt::format("\".{}\"", agreed), choose(alternatives)});
}

// Numbers of this sign from low to high in magnitude.
std::optional<std::string> magnitudes(const Bound& low, const std::optional<Bound>& high, bool whole_only) {
  if (high) {
    const int order = compare_magnitude(low.value, high->value);
    if (order > 0 || (order == 0 && (low.exclusive || high->exclusive))) return std::nullopt;
  }
  if (whole_only) {
    const bool next = !low.value.fraction.empty() || low.exclusive;
    const std::string first = next ? increment(low.value.whole) : low.value.whole;
    std::optional<std::string> last;
    if (high) {
      const bool before = high->value.fraction.empty() && high->exclusive;
      if (before && high->value.whole == "0") return std::nullopt;
      last = before ? decrement(high->value.whole) : high->value.whole;
    }
    return whole_range(first, last);
  }
  const std::string& first = low.value.whole;
  std::vector<std::string> alternatives;
  const auto literal = [](const std::string& digits) { return fmt::format("\"{}\"", digits); };
  if (high && compare_whole(first, high->value.whole) == 0) {
    const auto fraction = fraction_between(low.value.fraction, high->value.fraction, low.exclusive, high->exclusive);
    if (!fraction) return std::nullopt;
    return join({literal(first), *fraction});
  }
  alternatives.push_back(join({literal(first), fraction_above(low.value.fraction, low.exclusive)}));
  std::optional<std::string> last;
  if (high) last = decrement(high->value.whole);
  if (const auto inner = whole_range(increment(first), last)) alternatives.push_back(join({*inner, any_fraction}));
  if (high) {
    if (const auto fraction = fraction_below(high->value.fraction, high->exclusive)) {
      alternatives.push_back(join({literal(high->value.whole), *fraction}));
    }
  }
  return choose(alternatives);
}

std::optional<std::string> range(const std::optional<Bound>& low, const std::optional<Bound>& high, bool whole_only) {
  const Bound zero{{false, "0", ""}, false};
  const Bound below_zero{{false, "0", ""}, true};
  std::vector<std::string> alternatives;
  if (!low || low->value.negative) {  // numbers below zero
    std::optional<Bound> largest;
    if (low) largest = Bound{{false, low->value.whole, low->value.fraction}, low->exclusive};
    Bound smallest = below_zero;
    if (high && high->value.negative) smallest = {{false, high->value.whole, high->value.fraction}, high->exclusive};
    if (const auto found = magnitudes(smallest, largest, whole_only)) alternatives.push_back(join({"\"-\"", *found}));
  }
  if (!high || !high->value.negative) {
    const Bound smallest = low && !low->value.negative ? *low : zero;
    if (const auto found = magnitudes(smallest, high, whole_only)) alternatives.push_back(*found);
  }
  if (alternatives.empty()) return std::nullopt;
  return choose(alternatives);
}

}  // namespace

Decimal Decimal::from(double value) {
  Decimal out;
  std::string text = fmt::format("{}", value < 0 ? -value : value);
  long exponent = 0;
  if (const std::size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::stol(text.substr(e + 1));
    text.resize(e);
  }
  std::size_t point = text.find('.');
  if (point == std::string::npos) point = text.size();
  std::string digits = text.substr(0, point);
  if (point < text.size()) digits += text.substr(point + 1);
  long whole = static_cast<long>(point) + exponent;
  if (whole < 0) {
    digits.insert(0, static_cast<std::size_t>(-whole), '0');
    whole = 0;
  }
  if (static_cast<std::size_t>(whole) > digits.size()) digits.resize(static_cast<std::size_t>(whole), '0');
  out.whole = strip_zeros(digits.substr(0, static_cast<std::size_t>(whole)));
  out.fraction = digits.substr(static_cast<std::size_t>(whole));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  out.negative = value < 0 && !is_zero(out);
  return out;
}

int compare(const Decimal& left, const Decimal& right) {
  if (left.negative != right.negative) return left.negative ? -1 : 1;
  return left.negative ? compare_magnitude(right, left) : compare_magnitude(left, right);
}

std::optional<std::string> integer_expression(const std::optional<Bound>& low, const std::optional<Bound>& high) {
  if (!low && !high) return "\"-\"? (\"0\" | [1-9] [0-9]{0,17})";
  return range(low, high, true);
}

std::optional<std::string> number_expression(const std::optional<Bound>& low, const std::optional<Bound>& high) {
  if (!low && !high) return "\"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,20})? ([eE] [+-]? [0-9]{1,2})?";
  return range(low, high, false);
}

std::string fixed_point_expression(int digits) {
  return fmt::format("\"-\"? (\"0\" | [1-9] [0-9]{{0,17}}) (\".\" [0-9]{{1,{}}})?", digits);
}

}  // namespace m3::grammar
