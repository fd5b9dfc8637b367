#include "src/chat/template/value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/chat/template/unicode.h"

namespace m3::chat {
namespace {

constexpr std::size_t linear_search_limit = 8;

template <typename Items>
int depth_of(const Items& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  if (depth >= max_value_depth) fault("values nested more than ", std::to_string(max_value_depth), " deep");
  return depth + 1;
}

std::shared_ptr<List> make_list(std::vector<Value> items) {
  auto list = std::make_shared<List>();
  list->depth = depth_of(items);
  list->items = std::move(items);
  return list;
}

}  // namespace

Value Value::undefined(std::string message) {
  Value value(Kind::undefined);
  value.shared_ = std::make_shared<UndefinedInfo>(UndefinedInfo{std::move(message)});
  return value;
}

Value Value::boolean(bool flag, Origin origin) {
  Value value(Kind::boolean, origin);
  value.scalar_.integer = flag ? 1 : 0;
  return value;
}

Value Value::integer(std::int64_t number, Origin origin) {
  Value value(Kind::integer, origin);
  value.scalar_.integer = number;
  return value;
}

Value Value::big_integer(std::string digits, Origin origin) {
  Value value(Kind::big_integer, origin);
  value.shared_ = std::make_shared<std::string>(std::move(digits));
  return value;
}

Value Value::floating(double number, Origin origin) {
  Value value(Kind::floating, origin);
  value.scalar_.floating = number;
  return value;
}

Value Value::string(Text text, bool markup) {
  Value value(Kind::string);
  auto shared = std::make_shared<String>();
  shared->ascii = is_ascii(text.bytes());
  shared->length = shared->ascii ? text.size() : count_code_points(text.bytes());
  shared->text = std::move(text);
  shared->markup = markup;
  value.shared_ = std::move(shared);
  return value;
}

Value Value::string(std::string text, Origin origin) { return string(Text(std::move(text), origin)); }

Value Value::list(std::vector<Value> items, Origin origin) {
  Value value(Kind::list, origin);
  value.shared_ = make_list(std::move(items));
  return value;
}

Value Value::tuple(std::vector<Value> items, Origin origin) {
  Value value(Kind::tuple, origin);
  value.shared_ = make_list(std::move(items));
  return value;
}

Value Value::group(Value key, Value members) {
  Value value(Kind::tuple);
  auto list = make_list({std::move(key), std::move(members)});
  list->group = true;
  value.shared_ = std::move(list);
  return value;
}

Value Value::dict(std::shared_ptr<const Dict> dict, Origin origin) {
  Value value(Kind::dict, origin);
  value.shared_ = std::move(dict);
  return value;
}

Value Value::object(Kind kind, Object* object) {
  Value value(kind);
  value.scalar_.object = object;
  return value;
}

double Value::as_double() const {
  if (kind_ == Kind::floating) return scalar_.floating;
  if (kind_ == Kind::big_integer) return std::strtod(digits().c_str(), nullptr);
  return static_cast<double>(scalar_.integer);
}

const Dict& Value::as_dict() const { return *static_cast<const Dict*>(shared_.get()); }

std::string Value::undefined_message() const {
  return shared_ ? static_cast<const UndefinedInfo*>(shared_.get())->message : "a value is undefined";
}

int Value::depth() const {
  if (kind_ == Kind::list || kind_ == Kind::tuple) return static_cast<const List*>(shared_.get())->depth;
  if (kind_ == Kind::dict) return as_dict().depth;
  return 0;
}

std::string hash_key(const Value& value) {
  std::string key;
  switch (value.kind()) {
    case Kind::string:
      key.reserve(value.bytes().size() + 1);
      key += 's';
      key += value.bytes();
      return key;
    case Kind::boolean:
    case Kind::integer:
      key += 'i';
      key += std::to_string(value.as_int());
      return key;
    case Kind::big_integer:
      key += 'i';
      key += value.digits();
      return key;
    case Kind::floating: {
      const double number = value.as_double();
      const bool whole = number == std::floor(number) && std::fabs(number) < 9.2e18;
      key += whole ? 'i' : 'f';
      key += whole ? std::to_string(static_cast<std::int64_t>(number)) : float_repr(number);
      return key;
    }
    case Kind::none: return key += 'n';
    case Kind::undefined: return key += 'u';
    case Kind::tuple:
      key += 't';
      for (const Value& item : value.items()) {
        const std::string part = hash_key(item);
        key += std::to_string(part.size());
        key += ':';
        key += part;
      }
      return key;
    case Kind::list:
    case Kind::dict:
    case Kind::view: fault("unhashable type: '", type_name(value), "'");
    default:
      key += 'o';
      key += std::to_string(reinterpret_cast<std::uintptr_t>(value.identity()));
      return key;
  }
}

std::optional<std::size_t> Dict::position_of(const std::string& key) const {
  if (index_.empty()) {
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i] == key) return i;
    }
    return std::nullopt;
  }
  const auto found = index_.find(key);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

const Value* Dict::find_key(const std::string& key) const {
  const auto position = position_of(key);
  return position ? &items[*position].second : nullptr;
}

const Value* Dict::find(const Value& key) const { return find_key(hash_key(key)); }

const Value* Dict::find(std::string_view key) const {
  std::string hashed;
  hashed.reserve(key.size() + 1);
  hashed += 's';
  hashed += key;
  return find_key(hashed);
}

void Dict::set(Value key, Value value) {
  std::string hashed = hash_key(key);
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (depth > max_value_depth) fault("values nested more than ", std::to_string(max_value_depth), " deep");
  if (const auto present = position_of(hashed)) {
    items[*present].second = std::move(value);
    return;
  }
  keys_.push_back(std::move(hashed));
  if (keys_.size() > linear_search_limit) {
    for (std::size_t i = index_.size(); i < keys_.size(); ++i) index_.emplace(keys_[i], i);
  }
  items.emplace_back(std::move(key), std::move(value));
}

std::int64_t Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return value.as_int() != 0;
    case Kind::floating: return value.as_double() != 0;
    case Kind::string: return !value.bytes().empty();
    case Kind::list:
    case Kind::tuple: return !value.items().empty();
    case Kind::dict: return !value.as_dict().items.empty();
    case Kind::range: return value.as<Range>().size() != 0;
    case Kind::view: return !value.as<View>().dict->items.empty();
    default: return true;
  }
}

namespace {

bool equal_items(const std::vector<Value>& left, const std::vector<Value>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), equal);
}

bool equal_dicts(const Dict& left, const Dict& right) {
  if (left.items.size() != right.items.size()) return false;
  return std::all_of(left.items.begin(), left.items.end(), [&](const auto& item) {
    const Value* other = right.find(item.first);
    return other != nullptr && equal(item.second, *other);
  });
}

bool equal_numbers(const Value& left, const Value& right) {
  if (left.is(Kind::big_integer) || right.is(Kind::big_integer)) {
    if (left.is(Kind::big_integer) && right.is(Kind::big_integer)) return left.digits() == right.digits();
    if (left.is(Kind::floating) || right.is(Kind::floating)) return left.as_double() == right.as_double();
    return false;
  }
  if (left.is(Kind::floating) || right.is(Kind::floating)) return left.as_double() == right.as_double();
  return left.as_int() == right.as_int();
}

bool less_big(const Value& left, const Value& right) {
  const auto text = [](const Value& value) {
    return value.is(Kind::big_integer) ? value.digits() : std::to_string(value.as_int());
  };
  const std::string a = text(left), b = text(right);
  const bool a_negative = a[0] == '-', b_negative = b[0] == '-';
  if (a_negative != b_negative) return a_negative;
  const bool smaller = a.size() != b.size() ? a.size() < b.size() : a < b;
  return a_negative ? !smaller && a != b : smaller;
}

}  // namespace

bool same_object(const Value& left, const Value& right) {
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::none: return true;
    case Kind::boolean: return left.as_bool() == right.as_bool();
    case Kind::integer:  // CPython shares the small ones
      return left.as_int() == right.as_int() && left.as_int() >= -5 && left.as_int() <= 256;
    default: return left.identity() != nullptr && left.identity() == right.identity();
  }
}

bool equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return equal_numbers(left, right);
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::none:
    case Kind::undefined: return true;
    case Kind::string: return left.bytes() == right.bytes();
    case Kind::list:
    case Kind::tuple: return equal_items(left.items(), right.items());
    case Kind::dict: return equal_dicts(left.as_dict(), right.as_dict());
    case Kind::range: return equal_items(to_items(left), to_items(right));
    case Kind::view: {
      const View &a = left.as<View>(), &b = right.as<View>();
      if (&a == &b) return true;
      if (a.kind == ViewKind::values || a.kind != b.kind) return false;
      if (a.kind == ViewKind::items) return equal_dicts(*a.dict, *b.dict);
      return a.dict->items.size() == b.dict->items.size() &&
             std::all_of(a.dict->items.begin(), a.dict->items.end(),
                         [&](const auto& item) { return b.dict->find(item.first) != nullptr; });
    }
    default: return left.identity() == right.identity();
  }
}

bool less(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.is(Kind::floating) || right.is(Kind::floating)) return left.as_double() < right.as_double();
    if (left.is(Kind::big_integer) || right.is(Kind::big_integer)) return less_big(left, right);
    return left.as_int() < right.as_int();
  }
  if (left.is(Kind::string) && right.is(Kind::string)) return left.bytes() < right.bytes();
  if (left.kind() == right.kind() && (left.is(Kind::list) || left.is(Kind::tuple))) {
    const auto &a = left.items(), &b = right.items();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!equal(a[i], b[i])) return less(a[i], b[i]);
    }
    return a.size() < b.size();
  }
  if (left.is(Kind::undefined)) fault(left.undefined_message());
  if (right.is(Kind::undefined)) fault(right.undefined_message());
  fault("'<' is not supported between '", type_name(left), "' and '", type_name(right), "'");
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::string:
      if (!item.is(Kind::string)) {
        fault("'in <string>' requires a string as left operand, not ", type_name(item));
      }
      return container.bytes().find(item.bytes()) != std::string::npos;
    case Kind::dict: return container.as_dict().find(item) != nullptr;
    case Kind::view: {
      const View& view = container.as<View>();
      if (view.kind == ViewKind::keys) return view.dict->find(item) != nullptr;
      break;
    }
    default: break;
  }
  auto next = iterate(container);
  while (auto candidate = next()) {
    if (same_object(*candidate, item) || equal(*candidate, item)) return true;
  }
  return false;
}

std::int64_t length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return 0;
    case Kind::string: return static_cast<std::int64_t>(value.as_string().length);
    case Kind::list:
    case Kind::tuple: return static_cast<std::int64_t>(value.items().size());
    case Kind::dict: return static_cast<std::int64_t>(value.as_dict().items.size());
    case Kind::range: return value.as<Range>().size();
    case Kind::view: return static_cast<std::int64_t>(value.as<View>().dict->items.size());
    default: fault("object of type '", type_name(value), "' has no len()");
  }
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer:
    case Kind::big_integer: return "int";
    case Kind::floating: return "float";
    case Kind::string: return value.as_string().markup ? "Markup" : "str";
    case Kind::list: return "list";
    case Kind::tuple: return "tuple";
    case Kind::dict: return "dict";
    case Kind::range: return "range";
    case Kind::view: return "dict view";
    case Kind::generator: return value.as<Generator>().name;
    case Kind::name_space: return "Namespace";
    case Kind::macro: return "Macro";
    case Kind::function: return "function";
    case Kind::loop: return "LoopContext";
    case Kind::helper: return "object";
  }
  return "object";
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
    case Kind::view:
    case Kind::generator: return true;
    default: return false;
  }
}

std::function<std::optional<Value>()> iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return [] { return std::optional<Value>(); };
    case Kind::string:
      return [value, at = std::size_t{0}]() mutable -> std::optional<Value> {
        const Text& text = value.text();
        if (at >= text.size()) return std::nullopt;
        const std::size_t begin = at;
        next_code_point(text.bytes(), at);
        return Value::string(text.slice(begin, at));
      };
    case Kind::list:
    case Kind::tuple:
      return [value, at = std::size_t{0}]() mutable -> std::optional<Value> {
        if (at >= value.items().size()) return std::nullopt;
        return value.items()[at++];
      };
    case Kind::dict:
      return [value, at = std::size_t{0}]() mutable -> std::optional<Value> {
        if (at >= value.as_dict().items.size()) return std::nullopt;
        return value.as_dict().items[at++].first;
      };
    case Kind::range:
      return [&range = value.as<Range>(), at = std::int64_t{0}]() mutable -> std::optional<Value> {
        if (at >= range.size()) return std::nullopt;
        return Value::integer(range.start + range.step * at++);
      };
    case Kind::view:
      return [&view = value.as<View>(), at = std::size_t{0}]() mutable -> std::optional<Value> {
        if (at >= view.dict->items.size()) return std::nullopt;
        const auto& [key, item] = view.dict->items[at++];
        if (view.kind == ViewKind::keys) return key;
        if (view.kind == ViewKind::values) return item;
        return Value::tuple({key, item}, view.origin);
      };
    case Kind::generator: return [&generator = value.as<Generator>()] { return generator.next(); };
    default: fault("'", type_name(value), "' object is not iterable");
  }
}

std::vector<Value> to_items(const Value& value) {
  if (value.is(Kind::list) || value.is(Kind::tuple)) return value.items();
  std::vector<Value> items;
  auto next = iterate(value);
  while (auto item = next()) items.push_back(std::move(*item));
  return items;
}

}  // namespace m3::chat
