// Attributes and methods of values other than strings, and the global functions.
#include <algorithm>
#include <array>
#include <cmath>

#include "src/chat/template/builtins.h"
#include "src/chat/template/interpreter.h"

namespace m3::chat {
namespace {

template <std::size_t N>
bool one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 5> dict_methods = {"get", "items", "keys", "values", "copy"};
constexpr std::array<std::string_view, 5> dict_mutators = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 3> list_methods = {"count", "index", "copy"};
constexpr std::array<std::string_view, 8> list_mutators = {"append", "clear", "pop",    "reverse",
                                                           "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 7> integer_attributes = {"real",      "imag",       "numerator", "denominator",
                                                                "conjugate", "bit_length", "bit_count"};
constexpr std::array<std::string_view, 4> float_attributes = {"real", "imag", "conjugate", "is_integer"};
constexpr std::array<std::string_view, 7> global_names = {"range",        "dict",   "namespace", "raise_exception",
                                                          "strftime_now", "joiner", "cycler"};

Value bound_method(Interpreter& interpreter, const Value& self, const std::string& name) {
  Function* function = interpreter.make<Function>();
  function->name = name;
  function->self = self;
  return Value::object(Kind::function, function);
}

Value unsafe(const Value& value, const std::string& name) {
  return Value::undefined("access to attribute '" + name + "' of '" + type_name(value) + "' object is unsafe");
}

std::optional<Value> loop_attribute(Interpreter& interpreter, const Value& value, const std::string& name) {
  Loop& loop = value.as<Loop>();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(loop.is_last());
  if (name == "length") return Value::integer(loop.total());
  if (name == "revindex") return Value::integer(loop.total() - loop.index0);
  if (name == "revindex0") return Value::integer(loop.total() - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") return loop.before ? *loop.before : Value::undefined("there is no previous item");
  if (name == "nextitem") {
    return loop.is_last() ? Value::undefined("there is no next item") : *loop.after;
  }
  if (name == "cycle" || name == "changed") return bound_method(interpreter, value, name);
  return std::nullopt;
}

std::optional<Value> macro_attribute(const Value& value, const std::string& name) {
  const Macro& macro = value.as<Macro>();
  const Signature& signature = macro.statement->signature;
  if (name == "name") return Value::string(macro.statement->text);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const std::string& parameter : signature.parameters) names.push_back(Value::string(parameter));
    return Value::tuple(std::move(names));
  }
  if (name == "catch_kwargs") return Value::boolean(signature.kwargs_slot >= 0);
  if (name == "catch_varargs") return Value::boolean(signature.varargs_slot >= 0);
  if (name == "caller") return Value::boolean(signature.caller_slot >= 0);
  return std::nullopt;
}

std::optional<Value> number_attribute(Interpreter& interpreter, const Value& value, const std::string& name) {
  const bool whole = !value.is(Kind::floating);
  if (whole ? !one_of(name, integer_attributes) : !one_of(name, float_attributes)) return std::nullopt;
  if (name == "real" || name == "numerator") return whole ? Value::integer(value.as_int()) : value;
  if (name == "imag") return whole ? Value::integer(0) : Value::floating(0);
  if (name == "denominator") return Value::integer(1);
  return bound_method(interpreter, value, name);
}

Value call_number_method(const Value& self, const std::string& name, const CallArguments& arguments) {
  bind(name.c_str(), arguments, {});
  if (name == "conjugate") return self.is(Kind::floating) ? self : Value::integer(self.as_int());
  if (name == "is_integer") {
    const double value = self.as_double();
    return Value::boolean(std::isfinite(value) && std::floor(value) == value);
  }
  const std::uint64_t magnitude =
      self.as_int() < 0 ? 0 - static_cast<std::uint64_t>(self.as_int()) : static_cast<std::uint64_t>(self.as_int());
  if (name == "bit_count") return Value::integer(__builtin_popcountll(magnitude));
  return Value::integer(magnitude == 0 ? 0 : 64 - __builtin_clzll(magnitude));
}

Value call_dict_method(Interpreter& interpreter, const Value& self, const std::string& name,
                       const CallArguments& arguments) {
  const Dict& dict = self.as_dict();
  if (name == "get") {
    if (!arguments.keywords.empty()) fault("get() takes no keyword arguments");
    const auto bound = bind("get", arguments, {"key", "default"}, 1);
    if (const Value* value = dict.find(*bound[0])) return *value;
    return bound[1] ? *bound[1] : Value::none();
  }
  bind(name.c_str(), arguments, {});
  if (name == "copy") return self;
  View* view = interpreter.make<View>();
  view->dict = std::shared_ptr<const Dict>(std::make_shared<Value>(self), &dict);
  view->origin = self.origin();
  view->kind = name == "keys" ? ViewKind::keys : name == "values" ? ViewKind::values : ViewKind::items;
  return Value::object(Kind::view, view);
}

Value call_list_method(const Value& self, const std::string& name, const CallArguments& arguments) {
  if (name == "copy") {
    bind("copy", arguments, {});
    return self;
  }
  const auto bound = bind(name.c_str(), arguments, {"value", "start", "stop"}, 1);
  const std::vector<Value>& items = self.items();
  if (name == "count") {
    if (bound[1]) fault("count() takes exactly one argument");
    return Value::integer(
        std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, *bound[0]); }));
  }
  const auto length = static_cast<std::int64_t>(items.size());
  const auto limit = [&](const std::optional<Value>& value, std::int64_t otherwise) {
    if (!value) return otherwise;
    const std::int64_t at = index_of(*value);
    return std::clamp<std::int64_t>(at < 0 ? std::max<std::int64_t>(at, -length) + length : at, 0, length);
  };
  for (std::int64_t i = limit(bound[1], 0); i < limit(bound[2], length); ++i) {
    if (equal(items[static_cast<std::size_t>(i)], *bound[0])) return Value::integer(i);
  }
  fault("the value is not in the ", self.is(Kind::list) ? "list" : "tuple");
}

Value call_loop_method(const Value& self, const std::string& name, const CallArguments& arguments) {
  Loop& loop = self.as<Loop>();
  if (!arguments.keywords.empty()) fault(name, "() takes no keyword arguments");
  const std::vector<Value>& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) fault("no items for cycling given");
    return values[static_cast<std::size_t>(loop.index0) % values.size()];
  }
  const bool same = loop.changed && loop.changed->size() == values.size() &&
                    std::equal(values.begin(), values.end(), loop.changed->begin(), equal);
  if (!same) loop.changed = values;
  return Value::boolean(!same);
}

Value call_cycler_method(const Value& self, const std::string& name, const CallArguments& arguments) {
  Helper& cycler = self.as<Helper>();
  bind(name.c_str(), arguments, {});
  if (name == "reset") {
    cycler.at = 0;
    return Value::none();
  }
  Value value = cycler.items[cycler.at];
  cycler.at = (cycler.at + 1) % cycler.items.size();
  return value;
}

Value make_dict(const CallArguments& arguments) {
  auto dict = std::make_shared<Dict>();
  if (arguments.positional.size() > 1) fault("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::dict)) {
      *dict = source.as_dict();
    } else {
      for (const Value& item : to_items(source)) {
        const std::vector<Value> pair = to_items(item);
        if (pair.size() != 2) fault("dictionary update sequence element has length ", std::to_string(pair.size()));
        dict->set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.keywords) dict->set(Value::string(key), value);
  return Value::dict(std::move(dict));
}

Value make_range(Interpreter& interpreter, const CallArguments& arguments) {
  constexpr std::int64_t max_range = 100000;  // the sandbox's bound
  if (!arguments.keywords.empty()) fault("range() takes no keyword arguments");
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3) fault("range expected 1 to 3 arguments, got ", std::to_string(given.size()));
  Range* range = interpreter.make<Range>();
  if (given.size() == 1) {
    range->stop = index_of(given[0]);
  } else {
    range->start = index_of(given[0]);
    range->stop = index_of(given[1]);
    if (given.size() == 3) range->step = index_of(given[2]);
  }
  if (range->step == 0) fault("range() arg 3 must not be zero");
  constexpr std::int64_t far = INT64_C(1) << 61;
  for (const std::int64_t bound : {range->start, range->stop, range->step}) {
    if (bound > far || bound < -far) fault("range() arguments out of bounds");
  }
  if (range->size() > max_range) fault("range too big: the sandbox blocks ranges larger than 100000");
  return Value::object(Kind::range, range);
}

Value make_namespace(Interpreter& interpreter, const CallArguments& arguments) {
  NameSpace* space = interpreter.make<NameSpace>();
  const Value attributes = make_dict(arguments);
  for (const auto& [key, value] : attributes.as_dict().items) {
    if (key.is(Kind::string) && !key.bytes().empty() && key.bytes()[0] == '_') {
      fault("namespace attributes may not begin with an underscore");
    }
    space->attributes.set(key, value);
  }
  return Value::object(Kind::name_space, space);
}

}  // namespace

std::vector<std::optional<Value>> bind(const char* function, const CallArguments& arguments,
                                       std::initializer_list<const char*> parameters, std::size_t required) {
  std::vector<std::optional<Value>> bound(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    fault(function, "() takes at most ", std::to_string(parameters.size()), " arguments (",
          std::to_string(arguments.positional.size()), " given)");
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto* found =
        std::find_if(parameters.begin(), parameters.end(), [&](const char* parameter) { return name == parameter; });
    if (found == parameters.end()) fault(function, "() got an unexpected keyword argument '", name, "'");
    auto& place = bound[static_cast<std::size_t>(found - parameters.begin())];
    if (place) fault(function, "() got multiple values for argument '", name, "'");
    place = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!bound[i]) fault(function, "() missing argument '", *(parameters.begin() + i), "'");
  }
  return bound;
}

std::optional<Value> builtin_attribute(Interpreter& interpreter, const Value& value, const std::string& name) {
  if (name.size() > 4 && name.compare(0, 2, "__") == 0 && name.compare(name.size() - 2, 2, "__") == 0) {
    return unsafe(value, name);
  }
  switch (value.kind()) {
    case Kind::string:
      if (has_string_method(name)) return bound_method(interpreter, value, name);
      return std::nullopt;
    case Kind::dict:
      if (one_of(name, dict_mutators)) return unsafe(value, name);
      if (one_of(name, dict_methods)) return bound_method(interpreter, value, name);
      return std::nullopt;
    case Kind::list:
      if (one_of(name, list_mutators)) return unsafe(value, name);
      if (one_of(name, list_methods)) return bound_method(interpreter, value, name);
      return std::nullopt;
    case Kind::tuple:
      if (value.is_group() && name == "grouper") return value.items()[0];
      if (value.is_group() && name == "list") return value.items()[1];
      if (name == "count" || name == "index") return bound_method(interpreter, value, name);
      return std::nullopt;
    case Kind::boolean:
    case Kind::integer:
    case Kind::floating: return number_attribute(interpreter, value, name);
    case Kind::range: {
      const Range& range = value.as<Range>();
      if (name == "start") return Value::integer(range.start);
      if (name == "stop") return Value::integer(range.stop);
      if (name == "step") return Value::integer(range.step);
      return std::nullopt;
    }
    case Kind::name_space:
      if (const Value* found = value.as<NameSpace>().attributes.find(name)) return *found;
      return std::nullopt;
    case Kind::macro: return macro_attribute(value, name);
    case Kind::loop: return loop_attribute(interpreter, value, name);
    case Kind::helper: {
      const Helper& helper = value.as<Helper>();
      if (helper.joiner) return std::nullopt;
      if (name == "current") return helper.items[helper.at];
      if (name == "next" || name == "reset") return bound_method(interpreter, value, name);
      return std::nullopt;
    }
    default: return std::nullopt;
  }
}

Value call_method(Interpreter& interpreter, const Value& self, const std::string& name,
                  const CallArguments& arguments) {
  switch (self.kind()) {
    case Kind::string: return call_string_method(interpreter, self, name, arguments);
    case Kind::dict: return call_dict_method(interpreter, self, name, arguments);
    case Kind::list:
    case Kind::tuple: return call_list_method(self, name, arguments);
    case Kind::loop: return call_loop_method(self, name, arguments);
    case Kind::helper: return call_cycler_method(self, name, arguments);
    default: return call_number_method(self, name, arguments);
  }
}

Value global_value(Interpreter& interpreter, const std::string& name) {
  if (name == "lipsum") fault("the global function 'lipsum' is not supported");
  if (!one_of(name, global_names)) return {};
  Function* function = interpreter.make<Function>();
  function->name = name;
  return Value::object(Kind::function, function);
}

Value call_global(Interpreter& interpreter, std::string_view name, const CallArguments& arguments) {
  if (name == "range") return make_range(interpreter, arguments);
  if (name == "dict") return make_dict(arguments);
  if (name == "namespace") return make_namespace(interpreter, arguments);
  if (name == "raise_exception") {
    const auto bound = bind("raise_exception", arguments, {"message"}, 1);
    fault(to_text(*bound[0]).bytes());
  }
  if (name == "strftime_now") {
    const auto bound = bind("strftime_now", arguments, {"format"}, 1);
    if (!bound[0]->is(Kind::string)) fault("strftime_now() needs a string");
    return Value::string(interpreter.format_time(bound[0]->bytes()));
  }
  Helper* helper = interpreter.make<Helper>();
  if (name == "joiner") {
    const auto bound = bind("joiner", arguments, {"sep"});
    helper->joiner = true;
    helper->separator = bound[0] ? *bound[0] : Value::string(", ");
  } else {
    if (arguments.positional.empty()) fault("at least one item has to be provided");
    if (!arguments.keywords.empty()) fault("cycler() takes no keyword arguments");
    helper->items = arguments.positional;
  }
  return Value::object(Kind::helper, helper);
}

}  // namespace m3::chat
