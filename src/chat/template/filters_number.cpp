// Filters on single values: numbers, defaults, attributes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unordered_map>

#include "src/chat/template/filters.h"
#include "src/chat/template/interpreter.h"

namespace m3::chat {
namespace {

Value absolute(Interpreter&, const Value& input, const CallArguments& arguments) {
  bind("abs", arguments, {});
  if (input.is(Kind::undefined)) fault(input.undefined_message());
  if (!input.is_number()) fault("bad operand type for abs(): '", type_name(input), "'");
  if (input.is(Kind::floating)) return Value::floating(std::fabs(input.as_double()), input.origin());
  if (input.is(Kind::big_integer)) return input.digits()[0] == '-' ? negate(input, true) : input;
  return negate(input, input.as_int() < 0);
}

Value integer_of(double value, Origin origin) {
  if (std::fabs(value) >= 9.2e18) fault("an integer beyond 64 bits");
  return Value::integer(static_cast<std::int64_t>(value), origin);
}

Value to_integer(Interpreter&, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("int", arguments, {"default", "base"});
  const Value otherwise = bound[0] ? *bound[0] : Value::integer(0);
  const std::int64_t base = bound[1] ? index_of(*bound[1]) : 10;
  if (base != 0 && (base < 2 || base > 36)) return otherwise;
  switch (input.kind()) {
    case Kind::undefined: fault(input.undefined_message());
    case Kind::boolean:
    case Kind::integer: return Value::integer(input.as_int(), input.origin());
    case Kind::big_integer: return input;
    case Kind::floating:
      if (std::isinf(input.as_double())) fault("cannot convert float infinity to integer");
      return std::isnan(input.as_double()) ? otherwise : integer_of(input.as_double(), input.origin());
    case Kind::string: {
      const Origin origin = input.bytes().empty() ? Origin::template_text : input.text().origin_at(0);
      if (const auto value = parse_integer(input.bytes(), static_cast<int>(base))) {
        return Value::integer(*value, origin);
      }
      const auto value = parse_float(input.bytes());
      return value && std::isfinite(*value) ? integer_of(*value, origin) : otherwise;
    }
    default: return otherwise;
  }
}

Value to_float(Interpreter&, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("float", arguments, {"default"});
  const Value otherwise = bound[0] ? *bound[0] : Value::floating(0);
  if (input.is(Kind::undefined)) fault(input.undefined_message());
  if (input.is_number()) return Value::floating(input.as_double(), input.origin());
  if (!input.is(Kind::string)) return otherwise;
  const auto value = parse_float(input.bytes());
  if (!value) return otherwise;
  return Value::floating(*value, input.bytes().empty() ? Origin::template_text : input.text().origin_at(0));
}

// Python's round(): half to even on the exact binary value.
Value round_common(const Value& input, std::int64_t precision) {
  if (precision > 400 || precision < -400) fault("round: a precision out of range");
  if (!input.is(Kind::floating)) {
    const std::int64_t value = input.as_int();
    if (precision >= 0) return Value::integer(value, input.origin());
    if (precision < -18) return Value::integer(0, input.origin());
    std::int64_t unit = 1;
    for (std::int64_t i = 0; i > precision; --i) unit *= 10;
    std::int64_t rest = value % unit;
    if (rest < 0) rest += unit;
    const std::int64_t low = value - rest;
    const bool up = rest * 2 > unit || (rest * 2 == unit && low / unit % 2 != 0);
    return Value::integer(up ? low + unit : low, input.origin());
  }
  const double value = input.as_double();
  if (!std::isfinite(value)) return input;
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::floating(std::nearbyint(value / unit) * unit, input.origin());
  }
  char buffer[1024];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
  return Value::floating(std::strtod(buffer, nullptr), input.origin());
}

Value round(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("round", arguments, {"precision", "method"});
  const std::int64_t precision = bound[0] ? index_of(*bound[0]) : 0;
  const std::string method = bound[1] && bound[1]->is(Kind::string) ? bound[1]->bytes() : bound[1] ? "" : "common";
  if (method != "common" && method != "ceil" && method != "floor") fault("method must be common, ceil or floor");
  if (input.is(Kind::undefined)) fault(input.undefined_message());
  if (!input.is_number() || input.is(Kind::big_integer)) fault("round needs a number, not ", type_name(input));
  if (method == "common") return round_common(input, precision);
  const Value factor = apply_binary(interpreter, "**", Value::integer(10), Value::integer(precision));
  const double scaled = apply_binary(interpreter, "*", input, factor).as_double();
  if (!std::isfinite(scaled)) fault("cannot convert this float to an integer");
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value::floating(whole / factor.as_double(), input.origin());
}

Value default_value(Interpreter&, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("default", arguments, {"default_value", "boolean"});
  const bool boolean = bound[1] && truthy(*bound[1]);
  if (!input.is(Kind::undefined) && !(boolean && !truthy(input))) return input;
  return bound[0] ? *bound[0] : Value::string("");
}

Value attribute(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("attr", arguments, {"name"}, 1);
  if (!bound[0]->is(Kind::string)) fault("attribute name must be a string");
  if (auto value = builtin_attribute(interpreter, input, bound[0]->bytes())) return std::move(*value);
  return Value::undefined(std::string("'") + type_name(input) + " object' has no attribute '" + bound[0]->bytes() +
                          "'");
}

Value length(Interpreter&, const Value& input, const CallArguments& arguments) {
  bind("length", arguments, {});
  return Value::integer(length_of(input));
}

constexpr FilterEntry entries[] = {
    {"abs", absolute},    {"int", to_integer}, {"float", to_float}, {"round", round},  {"default", default_value},
    {"d", default_value}, {"attr", attribute}, {"length", length},  {"count", length},
};

constexpr std::string_view unsupported_filters[] = {"pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"};

}  // namespace

std::span<const FilterEntry> number_filters() { return entries; }

const FilterEntry* find_filter(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, const FilterEntry*> map;
    for (const auto part : {text_filters(), number_filters(), sequence_filters()}) {
      for (const FilterEntry& entry : part) map.emplace(entry.name, &entry);
    }
    return map;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

std::string unknown_filter(std::string_view name) {
  const bool known =
      std::find(std::begin(unsupported_filters), std::end(unsupported_filters), name) != std::end(unsupported_filters);
  if (known) return "the filter '" + std::string(name) + "' is not supported in chat templates";
  return "no filter named '" + std::string(name) + "'";
}

}  // namespace m3::chat
