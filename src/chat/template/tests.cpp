// What may stand behind `is`.
#include <algorithm>
#include <unordered_map>

#include "src/chat/template/builtins.h"
#include "src/chat/template/interpreter.h"

namespace m3::chat {
namespace {

bool no_arguments(const CallArguments& arguments) {
  bind("test", arguments, {});
  return true;
}

const Value& only_argument(const CallArguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.keywords.empty()) fault("this test takes one argument");
  return arguments.positional[0];
}

bool remainder_is(Interpreter& interpreter, const Value& value, std::int64_t divisor, std::int64_t rest) {
  return equal(apply_binary(interpreter, "%", value, Value::integer(divisor)), Value::integer(rest));
}

bool has_string_case(Interpreter& interpreter, const Value& value, const char* method) {
  return call_string_method(interpreter, Value::string(to_text(value)), method, {}).as_bool();
}

bool is_integer_kind(const Value& value) { return value.is(Kind::integer) || value.is(Kind::big_integer); }

template <bool (*holds)(const Value&)>
bool simple(Interpreter&, const Value& value, const CallArguments& arguments) {
  return no_arguments(arguments) && holds(value);
}

bool is_sequence(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range: return true;
    default: return false;
  }
}

// Undefined counts: Jinja2's Undefined class has a __call__, which then raises.
bool is_callable(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::macro:
    case Kind::function:
    case Kind::loop: return true;
    case Kind::helper: return value.as<Helper>().joiner;
    default: return false;
  }
}

bool equals(Interpreter&, const Value& value, const CallArguments& arguments) {
  return equal(value, only_argument(arguments));
}
bool differs(Interpreter&, const Value& value, const CallArguments& arguments) {
  return !equal(value, only_argument(arguments));
}
template <char sign, bool or_equal>
bool ordered(Interpreter&, const Value& value, const CallArguments& arguments) {
  const std::string op = std::string(1, sign) + (or_equal ? "=" : "");
  return order(op, value, only_argument(arguments));
}

constexpr TestEntry entries[] = {
    {"defined", simple<[](const Value& v) { return !v.is(Kind::undefined); }>},
    {"undefined", simple<[](const Value& v) { return v.is(Kind::undefined); }>},
    {"none", simple<[](const Value& v) { return v.is(Kind::none); }>},
    {"boolean", simple<[](const Value& v) { return v.is(Kind::boolean); }>},
    {"true", simple<[](const Value& v) { return v.is(Kind::boolean) && v.as_bool(); }>},
    {"false", simple<[](const Value& v) { return v.is(Kind::boolean) && !v.as_bool(); }>},
    {"integer", simple<is_integer_kind>},
    {"float", simple<[](const Value& v) { return v.is(Kind::floating); }>},
    {"number", simple<[](const Value& v) { return v.is_number(); }>},
    {"string", simple<[](const Value& v) { return v.is(Kind::string); }>},
    {"mapping", simple<[](const Value& v) { return v.is(Kind::dict); }>},
    {"sequence", simple<is_sequence>},
    {"iterable", simple<[](const Value& v) { return is_iterable(v) || v.is(Kind::loop); }>},
    {"callable", simple<is_callable>},
    {"escaped", simple<[](const Value& v) { return v.is(Kind::string) && v.as_string().markup; }>},
    {"odd", [](Interpreter& i, const Value& v,
               const CallArguments& a) { return no_arguments(a) && remainder_is(i, v, 2, 1); }},
    {"even", [](Interpreter& i, const Value& v,
                const CallArguments& a) { return no_arguments(a) && remainder_is(i, v, 2, 0); }},
    {"divisibleby",
     [](Interpreter& i, const Value& v, const CallArguments& a) {
       const auto bound = bind("divisibleby", a, {"num"}, 1);
       return equal(apply_binary(i, "%", v, *bound[0]), Value::integer(0));
     }},
    {"lower", [](Interpreter& i, const Value& v,
                 const CallArguments& a) { return no_arguments(a) && has_string_case(i, v, "islower"); }},
    {"upper", [](Interpreter& i, const Value& v,
                 const CallArguments& a) { return no_arguments(a) && has_string_case(i, v, "isupper"); }},
    {"sameas", [](Interpreter&, const Value& v,
                  const CallArguments& a) { return same_object(v, *bind("sameas", a, {"other"}, 1)[0]); }},
    {"in",
     [](Interpreter&, const Value& v, const CallArguments& a) { return contains(*bind("in", a, {"seq"}, 1)[0], v); }},
    {"filter",
     [](Interpreter&, const Value& v, const CallArguments& a) {
       return no_arguments(a) && v.is(Kind::string) && find_filter(v.bytes()) != nullptr;
     }},
    {"test",
     [](Interpreter&, const Value& v, const CallArguments& a) {
       return no_arguments(a) && v.is(Kind::string) && find_test(v.bytes()) != nullptr;
     }},
    {"==", equals},
    {"eq", equals},
    {"equalto", equals},
    {"!=", differs},
    {"ne", differs},
    {">", ordered<'>', false>},
    {"gt", ordered<'>', false>},
    {"greaterthan", ordered<'>', false>},
    {">=", ordered<'>', true>},
    {"ge", ordered<'>', true>},
    {"<", ordered<'<', false>},
    {"lt", ordered<'<', false>},
    {"lessthan", ordered<'<', false>},
    {"<=", ordered<'<', true>},
    {"le", ordered<'<', true>},
};

}  // namespace

const TestEntry* find_test(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, const TestEntry*> map;
    for (const TestEntry& entry : entries) map.emplace(entry.name, &entry);
    return map;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

std::string unknown_test(std::string_view name) { return "no test named '" + std::string(name) + "'"; }

}  // namespace m3::chat
