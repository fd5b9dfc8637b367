// Filters over sequences and mappings.
#include <algorithm>
#include <unordered_set>

#include "src/chat/template/filters.h"
#include "src/chat/template/interpreter.h"
#include "src/chat/template/string_case.h"

namespace m3::chat {
namespace {

// Follows "a.b.0" through items and attributes.
class AttributeGetter {
 public:
  AttributeGetter(Interpreter& interpreter, const Value& path, std::optional<Value> otherwise = {})
      : interpreter_(interpreter), otherwise_(std::move(otherwise)) {
    if (path.is(Kind::none)) return;
    if (!path.is(Kind::string)) {
      parts_.push_back(path);
      return;
    }
    const std::string& text = path.bytes();
    for (std::size_t begin = 0;;) {
      const std::size_t end = std::min(text.find('.', begin), text.size());
      const std::string part = text.substr(begin, end - begin);
      const bool digits = !part.empty() && part.size() < 18 &&
                          std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
      parts_.push_back(digits ? Value::integer(std::stoll(part)) : Value::string(part));
      if (end == text.size()) break;
      begin = end + 1;
    }
  }

  Value operator()(Value value) const {
    for (const Value& part : parts_) {
      value = interpreter_.item(value, part);
      if (otherwise_ && value.is(Kind::undefined)) value = *otherwise_;
    }
    return value;
  }

 private:
  Interpreter& interpreter_;
  std::vector<Value> parts_;
  std::optional<Value> otherwise_;
};

Value ignore_case(const Value& value) { return value.is(Kind::string) ? Value::string(to_lower(value.text())) : value; }

std::optional<Value> optional_default(const std::optional<Value>& value) {
  return given(value) ? value : std::optional<Value>();
}

Value first(Interpreter&, const Value& input, const CallArguments& arguments) {
  bind("first", arguments, {});
  auto next = iterate(input);
  if (auto item = next()) return std::move(*item);
  return Value::undefined("no first item, the sequence was empty");
}

Value last(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("last", arguments, {});
  if (input.is(Kind::generator)) fault("'generator' object is not reversible");
  const std::vector<Value> items = to_items(input);
  interpreter.charge(items.size());
  if (items.empty()) return Value::undefined("no last item, the sequence was empty");
  return items.back();
}

Value list(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("list", arguments, {});
  std::vector<Value> items = to_items(input);
  interpreter.charge(items.size());
  return Value::list(std::move(items), input.origin());
}

Value join(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("join", arguments, {"d", "attribute"});
  const AttributeGetter get(interpreter, given(bound[1]) ? *bound[1] : Value::none());
  const Text separator = bound[0] ? to_text(*bound[0]) : Text();
  Text out;
  bool is_first = true;
  auto next = iterate(input);
  while (auto item = next()) {
    if (!is_first) out.append(separator);
    is_first = false;
    const Text part = to_text(get(std::move(*item)));
    interpreter.charge_bytes(part.size() + separator.size());
    out.append(part);
  }
  interpreter.charge_bytes(out.size());
  return Value::string(std::move(out));
}

Value reverse(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("reverse", arguments, {});
  if (input.is(Kind::string)) {
    const Characters characters(input.text());
    interpreter.charge_bytes(input.text().size());
    Text out;
    for (std::size_t i = characters.size(); i-- > 0;) {
      out.append(input.text(), characters.starts[i], characters.starts[i + 1]);
    }
    return Value::string(std::move(out), input.as_string().markup);
  }
  std::vector<Value> items = to_items(input);
  interpreter.charge(items.size());
  std::reverse(items.begin(), items.end());
  if (input.is(Kind::generator)) return Value::list(std::move(items));
  return interpreter.make_generator([items = std::move(items), at = std::size_t{0}]() mutable -> std::optional<Value> {
    if (at >= items.size()) return std::nullopt;
    return items[at++];
  });
}

Value items(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("items", arguments, {});
  if (!input.is(Kind::dict) && !input.is(Kind::undefined)) fault("can only get item pairs from a mapping");
  return interpreter.make_generator([input, at = std::size_t{0}]() mutable -> std::optional<Value> {
    if (input.is(Kind::undefined) || at >= input.as_dict().items.size()) return std::nullopt;
    const auto& [key, value] = input.as_dict().items[at++];
    return Value::tuple({key, value}, input.origin());
  });
}

Value dict_sort(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] && bound[1]->is(Kind::string) ? bound[1]->bytes() : bound[1] ? "" : "key";
  if (by != "key" && by != "value") fault("you can only sort by either 'key' or 'value'");
  if (input.is(Kind::undefined)) fault(input.undefined_message());
  if (!input.is(Kind::dict)) fault("dictsort needs a mapping, not ", type_name(input));
  const bool case_sensitive = bound[0] && truthy(*bound[0]);
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.as_dict().items) {
    const Value& chosen = by == "key" ? key : value;
    keyed.emplace_back(case_sensitive ? chosen : ignore_case(chosen), Value::tuple({key, value}, input.origin()));
  }
  interpreter.charge(keyed.size() * 8);
  sort_values(keyed, bound[2] && truthy(*bound[2]));
  std::vector<Value> sorted;
  for (auto& [key, pair] : keyed) sorted.push_back(std::move(pair));
  return Value::list(std::move(sorted), input.origin());
}

Value sort(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound[1] && truthy(*bound[1]);
  std::vector<AttributeGetter> getters;
  if (bound[2] && bound[2]->is(Kind::string)) {
    const std::string& paths = bound[2]->bytes();
    for (std::size_t begin = 0;;) {
      const std::size_t end = std::min(paths.find(',', begin), paths.size());
      getters.emplace_back(interpreter, Value::string(paths.substr(begin, end - begin)));
      if (end == paths.size()) break;
      begin = end + 1;
    }
  } else {
    getters.emplace_back(interpreter, bound[2] ? *bound[2] : Value::none());
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : to_items(input)) {
    std::vector<Value> key;
    for (const auto& get : getters) key.push_back(case_sensitive ? get(item) : ignore_case(get(item)));
    keyed.emplace_back(Value::list(std::move(key)), std::move(item));
  }
  interpreter.charge(keyed.size() * 8);
  sort_values(keyed, bound[0] && truthy(*bound[0]));
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::list(std::move(sorted), input.origin());
}

Value unique(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("unique", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound[0] && truthy(*bound[0]);
  AttributeGetter get(interpreter, given(bound[1]) ? *bound[1] : Value::none());
  return interpreter.make_generator([next = iterate(input), get, case_sensitive, &interpreter,
                                     seen = std::unordered_set<std::string>()]() mutable -> std::optional<Value> {
    while (auto item = next()) {
      interpreter.charge(1);
      const Value key = get(*item);
      if (seen.insert(hash_key(case_sensitive ? key : ignore_case(key))).second) return item;
    }
    return std::nullopt;
  });
}

template <bool largest>
Value extreme(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound[0] && truthy(*bound[0]);
  const AttributeGetter get(interpreter, given(bound[1]) ? *bound[1] : Value::none());
  std::optional<Value> best, best_key;
  auto next = iterate(input);
  while (auto item = next()) {
    interpreter.charge(1);
    Value key = get(*item);
    if (!case_sensitive) key = ignore_case(key);
    if (best && !(largest ? less(*best_key, key) : less(key, *best_key))) continue;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best ? *best : Value::undefined("no aggregated item, the sequence was empty");
}

Value sum(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("sum", arguments, {"attribute", "start"});
  const AttributeGetter get(interpreter, given(bound[0]) ? *bound[0] : Value::none());
  Value total = bound[1] ? *bound[1] : Value::integer(0);
  if (total.is(Kind::string)) fault("sum() can't sum strings");
  auto next = iterate(input);
  while (auto item = next()) total = apply_binary(interpreter, "+", total, get(std::move(*item)));
  return total;
}

Value batch(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("batch", arguments, {"linecount", "fill_with"}, 1);
  const std::int64_t size = index_of(*bound[0]);
  const std::optional<Value> fill = optional_default(bound[1]);
  if (size > 1000000) fault("batch: a line of more than 1000000");
  return interpreter.make_generator([next = iterate(input), size, fill, held = std::optional<Value>(),
                                     &interpreter]() mutable -> std::optional<Value> {
    std::vector<Value> line;
    if (held) line.push_back(std::move(*held));
    held.reset();
    while (auto item = next()) {
      interpreter.charge(1);
      if (static_cast<std::int64_t>(line.size()) == size) {
        held = std::move(item);
        return Value::list(std::move(line));
      }
      line.push_back(std::move(*item));
    }
    if (line.empty()) return std::nullopt;
    if (fill && static_cast<std::int64_t>(line.size()) < size) {
      interpreter.charge(static_cast<std::size_t>(size));
      line.resize(static_cast<std::size_t>(size), *fill);
    }
    return Value::list(std::move(line));
  });
}

Value slice(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("slice", arguments, {"slices", "fill_with"}, 1);
  const std::int64_t slices = index_of(*bound[0]);
  const std::optional<Value> fill = optional_default(bound[1]);
  if (slices == 0) fault("integer division or modulo by zero");
  std::vector<Value> all = to_items(input);
  return interpreter.make_generator([all = std::move(all), slices, fill, number = std::int64_t{0}, at = std::size_t{0},
                                     &interpreter]() mutable -> std::optional<Value> {
    if (number >= slices) return std::nullopt;
    const auto length = static_cast<std::int64_t>(all.size());
    const bool extra = number < length % slices;
    const auto count = static_cast<std::size_t>(length / slices + (extra ? 1 : 0));
    interpreter.charge(count + 1);
    std::vector<Value> part(all.begin() + static_cast<std::ptrdiff_t>(at),
                            all.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
    if (fill && !extra) part.push_back(*fill);
    ++number;
    return Value::list(std::move(part));
  });
}

Value group_by(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const bool case_sensitive = bound[2] && truthy(*bound[2]);
  const AttributeGetter get(interpreter, *bound[0], optional_default(bound[1]));
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : to_items(input)) {
    const Value key = get(item);
    keyed.emplace_back(case_sensitive ? key : ignore_case(key), std::move(item));
  }
  interpreter.charge(keyed.size() * 8);
  sort_values(keyed, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < keyed.size();) {
    std::size_t end = begin;
    std::vector<Value> members;
    while (end < keyed.size() && equal(keyed[begin].first, keyed[end].first)) {
      members.push_back(keyed[end++].second);
    }
    if (end == begin) members.push_back(keyed[end++].second);  // NaN equals nothing
    Value key = case_sensitive ? keyed[begin].first : get(members.front());
    groups.push_back(Value::group(std::move(key), Value::list(std::move(members))));
    begin = end;
  }
  return Value::list(std::move(groups));
}

Value map(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  std::function<Value(const Value&)> convert;
  if (arguments.positional.empty()) {
    const auto bound = bind("map", arguments, {"attribute", "default"});
    if (!bound[0]) fault("map requires a filter argument");
    convert = [get = AttributeGetter(interpreter, *bound[0], optional_default(bound[1]))](const Value& item) {
      return get(item);
    };
  } else {
    const Value& name = arguments.positional[0];
    const FilterEntry* filter = name.is(Kind::string) ? find_filter(name.bytes()) : nullptr;
    if (filter == nullptr) fault(unknown_filter(name.is(Kind::string) ? name.bytes() : type_name(name)));
    CallArguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.keywords};
    convert = [&interpreter, filter, rest = std::move(rest)](const Value& item) {
      return filter->run(interpreter, item, rest);
    };
  }
  if (!truthy(input)) return interpreter.make_generator([]() -> std::optional<Value> { return std::nullopt; });
  return interpreter.make_generator(
      [next = iterate(input), convert = std::move(convert), &interpreter]() -> std::optional<Value> {
        interpreter.charge(1);
        auto item = next();
        if (!item) return std::nullopt;
        return convert(*item);
      });
}

// select, reject, selectattr, rejectattr
template <bool keep, bool by_attribute>
Value choose(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto& positional = arguments.positional;
  if (!truthy(input)) return interpreter.make_generator([]() -> std::optional<Value> { return std::nullopt; });
  const std::size_t offset = by_attribute ? 1 : 0;
  if (positional.size() < offset) fault("missing parameter for attribute name");
  AttributeGetter get(interpreter, by_attribute ? positional[0] : Value::none());
  const TestEntry* test = nullptr;
  CallArguments rest;
  if (positional.size() > offset) {
    const Value& name = positional[offset];
    test = name.is(Kind::string) ? find_test(name.bytes()) : nullptr;
    if (test == nullptr) fault(unknown_test(name.is(Kind::string) ? name.bytes() : type_name(name)));
    rest.positional.assign(positional.begin() + static_cast<std::ptrdiff_t>(offset) + 1, positional.end());
    rest.keywords = arguments.keywords;
  }
  return interpreter.make_generator([next = iterate(input), get = std::move(get), test, rest = std::move(rest),
                                     &interpreter]() -> std::optional<Value> {
    while (auto item = next()) {
      interpreter.charge(1);
      const Value value = get(*item);
      const bool holds = test != nullptr ? test->run(interpreter, value, rest) : truthy(value);
      if (holds == keep) return item;
    }
    return std::nullopt;
  });
}

constexpr FilterEntry entries[] = {
    {"first", first},
    {"last", last},
    {"list", list},
    {"join", join},
    {"reverse", reverse},
    {"items", items},
    {"dictsort", dict_sort},
    {"sort", sort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"batch", batch},
    {"slice", slice},
    {"groupby", group_by},
    {"map", map},
    {"select", choose<true, false>},
    {"reject", choose<false, false>},
    {"selectattr", choose<true, true>},
    {"rejectattr", choose<false, true>},
};

}  // namespace

std::span<const FilterEntry> sequence_filters() { return entries; }

}  // namespace m3::chat
