// Filters, tests, globals and methods by name.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/chat/template/value.h"

namespace m3::chat {

class Interpreter;

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Arguments laid out by parameter name; what was not given is empty. Faults on surplus, unknown, repeated and (the
// first `required`) absent ones, naming `function`.
std::vector<std::optional<Value>> bind(const char* function, const CallArguments& arguments,
                                       std::initializer_list<const char*> parameters, std::size_t required = 0);

struct FilterEntry {
  std::string_view name;
  Value (*run)(Interpreter&, const Value& input, const CallArguments&);
};
struct TestEntry {
  std::string_view name;
  bool (*run)(Interpreter&, const Value& input, const CallArguments&);
};

const FilterEntry* find_filter(std::string_view name);
const TestEntry* find_test(std::string_view name);
std::string unknown_filter(std::string_view name);  // says whether Jinja2 has it
std::string unknown_test(std::string_view name);

// range, dict, namespace, raise_exception, strftime_now, joiner, cycler; undefined for other names.
Value global_value(Interpreter& interpreter, const std::string& name);
Value call_global(Interpreter& interpreter, std::string_view name, const CallArguments& arguments);

// value.name as Python has it: methods are bound functions; empty if there is no such attribute.
std::optional<Value> builtin_attribute(Interpreter& interpreter, const Value& value, const std::string& name);
Value call_method(Interpreter& interpreter, const Value& self, const std::string& name, const CallArguments& arguments);
Value call_string_method(Interpreter& interpreter, const Value& self, const std::string& name,
                         const CallArguments& arguments);
bool has_string_method(std::string_view name);
// str.replace(); at most `limit` times unless it is negative.
Text replace_text(Interpreter& interpreter, const Text& text, const Text& old, const Text& replacement,
                  std::int64_t limit);

// < <= > >= by sign.
bool order(const std::string& op, const Value& left, const Value& right);
// Arithmetic by operator sign.
Value apply_binary(Interpreter& interpreter, const std::string& op, const Value& left, const Value& right);
Value negate(const Value& value, bool minus);

// str % values and str.format.
Text format_percent(const Text& format, const Value& values);
Text format_braces(Interpreter& interpreter, const Text& format, const CallArguments& arguments);

// Python's conversions; fault as Python raises.
std::int64_t index_of(const Value& value);  // of an integer or boolean
std::optional<std::int64_t> parse_integer(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

// Stable, by `<` alone.
void sort_values(std::vector<std::pair<Value, Value>>& keyed, bool reverse);

}  // namespace m3::chat
