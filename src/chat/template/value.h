// The values a template computes with: Python's, as far as templates see them.
//
// Values are immutable, as the immutable sandbox makes them, except namespaces. What can form a cycle (namespaces,
// macros, loops) is owned by the Heap of one rendering and ends with it; the rest is counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/chat/template/text.h"

namespace m3::chat {

// A fault while a template runs: the interpreter adds where. `what` is one clause without a position.
struct Fault {
  std::string what;
};

template <typename... Parts>
[[noreturn]] void fault(Parts&&... parts) {
  std::string what;
  (what.append(parts), ...);
  throw Fault{std::move(what)};
}

enum class Kind : std::uint8_t {
  missing,  // a name not set yet; never seen by a template
  undefined,
  none,
  boolean,
  integer,
  big_integer,  // beyond 64 bits, from JSON only: kept as its digits, printed and compared, not computed with
  floating,
  string,
  list,
  tuple,
  dict,
  range,
  view,       // dict.keys(), .values(), .items()
  generator,  // what lazy filters return: gives each item once
  name_space,
  macro,
  function,  // a global or a bound method
  loop,
  helper,  // joiner(), cycler()
};

class Value;
struct Dict;

// Owned by the rendering's Heap.
struct Object {
  virtual ~Object() = default;
};

struct String {
  Text text;
  bool markup = false;  // made by escape or safe
  bool ascii = true;
  std::size_t length = 0;  // in code points
};

struct List {
  std::vector<Value> items;
  int depth = 1;
  bool group = false;  // a tuple of groupby: also .grouper and .list
};

struct UndefinedInfo {
  std::string message;  // why it is undefined, for the error when it is used
};

class Value {
 public:
  Value() = default;  // undefined without a reason
  static Value missing() { return Value(Kind::missing); }
  static Value undefined(std::string message);
  static Value none(Origin origin = Origin::template_text) { return Value(Kind::none, origin); }
  static Value boolean(bool value, Origin origin = Origin::template_text);
  static Value integer(std::int64_t value, Origin origin = Origin::template_text);
  static Value big_integer(std::string digits, Origin origin);
  static Value floating(double value, Origin origin = Origin::template_text);
  static Value string(Text text, bool markup = false);
  static Value string(std::string text, Origin origin = Origin::template_text);
  static Value list(std::vector<Value> items, Origin origin = Origin::template_text);
  static Value tuple(std::vector<Value> items, Origin origin = Origin::template_text);
  static Value group(Value key, Value members);
  static Value dict(std::shared_ptr<const Dict> dict, Origin origin = Origin::template_text);
  static Value object(Kind kind, Object* object);

  Kind kind() const { return kind_; }
  Origin origin() const { return origin_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ >= Kind::boolean && kind_ <= Kind::floating; }

  bool as_bool() const { return scalar_.integer != 0; }
  std::int64_t as_int() const { return scalar_.integer; }  // of a boolean or an integer
  double as_double() const;                                // of any number
  const String& as_string() const { return *static_cast<const String*>(shared_.get()); }
  const Text& text() const { return as_string().text; }
  const std::string& bytes() const { return as_string().text.bytes(); }
  const std::string& digits() const { return *static_cast<const std::string*>(shared_.get()); }
  const std::vector<Value>& items() const { return static_cast<const List*>(shared_.get())->items; }
  bool is_group() const { return kind_ == Kind::tuple && static_cast<const List*>(shared_.get())->group; }
  const Dict& as_dict() const;
  std::string undefined_message() const;
  template <typename T>
  T& as() const {
    return *static_cast<T*>(scalar_.object);
  }
  // The address that `is sameas` compares.
  const void* identity() const { return shared_ ? shared_.get() : scalar_.object; }
  int depth() const;

 private:
  explicit Value(Kind kind, Origin origin = Origin::template_text) : kind_(kind), origin_(origin) {}

  Kind kind_ = Kind::undefined;
  Origin origin_ = Origin::template_text;  // of scalars and of a container's own brackets
  union {
    std::int64_t integer = 0;
    double floating;
    Object* object;
  } scalar_;
  std::shared_ptr<const void> shared_;
};

// Keeps insertion order; a later equal key replaces the value and keeps the place, as in Python.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  const Value* find(const Value& key) const;  // faults on an unhashable key
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);

 private:
  std::optional<std::size_t> position_of(const std::string& key) const;
  const Value* find_key(const std::string& key) const;
  std::unordered_map<std::string, std::size_t> index_;  // only past a few items
  std::vector<std::string> keys_;
};

struct Range : Object {
  std::int64_t start = 0, stop = 0, step = 1;
  std::int64_t size() const;
};

enum class ViewKind : std::uint8_t { keys, values, items };
struct View : Object {
  std::shared_ptr<const Dict> dict;
  Origin origin = Origin::template_text;
  ViewKind kind = ViewKind::keys;
};

struct Generator : Object {
  std::function<std::optional<Value>()> next;
  const char* name = "generator";
};

struct NameSpace : Object {
  Dict attributes;
};

// Containers nested deeper than this are refused, so that nothing recursive can overflow the stack.
constexpr int max_value_depth = 400;

bool truthy(const Value& value);
bool equal(const Value& left, const Value& right);
bool less(const Value& left, const Value& right);  // `<`; faults where Python raises TypeError
bool same_object(const Value& left, const Value& right);
bool contains(const Value& container, const Value& item);
// Python's len(); faults where there is none.
std::int64_t length_of(const Value& value);
// A key with which equal hashable values coincide; faults on an unhashable one.
std::string hash_key(const Value& value);
const char* type_name(const Value& value);  // as Python names it

Text to_text(const Value& value);  // str()
Text to_repr(const Value& value);  // repr()
std::string float_repr(double value);

// The items of anything iterable; for a generator, what is left of it. Faults otherwise.
std::vector<Value> to_items(const Value& value);
// Lazy form of the same.
std::function<std::optional<Value>()> iterate(const Value& value);
bool is_iterable(const Value& value);

}  // namespace m3::chat
