// A JSON Schema taken apart: what one place of a document may hold, as a list of alternatives ("shapes") in which $ref,
// allOf, anyOf, oneOf, type lists and enums are resolved.
//
// Every keyword that constrains values either acts or is refused by its path; annotations are ignored. What is
// generated is always valid, but not all that is valid is generated: undeclared properties only where
// `additionalProperties` allows them by name, or where no property is declared.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/grammar/numbers.h"

namespace m3::grammar {

using Json = nlohmann::ordered_json;

enum Kind : unsigned {
  kind_null = 1,
  kind_boolean = 2,
  kind_integer = 4,
  kind_fraction = 8,  // numbers that are not whole
  kind_number = kind_integer | kind_fraction,
  kind_string = 16,
  kind_array = 32,
  kind_object = 64,
  kind_any = 127,
};
unsigned kind_of(const Json& value);
// The bit that stands for the name of a type in a schema: of "number" kind_fraction. 0: no such type.
unsigned bit_of_type(std::string_view name);

enum class Strictness : std::uint8_t {
  strict,   // what cannot be enforced is an error
  lenient,  // is left out: for tools that do not ask for `strict`
};

// Schemas that must all hold, each with its path. Empty: anything.
struct Part {
  const Json* schema = nullptr;
  std::string path;
};
using Parts = std::vector<Part>;

struct Property {
  std::string name;
  Parts schemas;
  bool required = false;
};

// One alternative. Only what belongs to a kind in `kinds` counts.
struct Shape {
  unsigned kinds = kind_any;
  std::optional<std::vector<Json>> values;  // enum, const: nothing else then counts but `kinds`

  std::optional<Bound> low, high;
  std::optional<std::int64_t> multiple_of;  // integers
  std::optional<int> fraction_digits;       // numbers: a multipleOf such as 0.01

  std::int64_t min_length = 0;
  std::optional<std::int64_t> max_length;
  std::string pattern;  // whole match; empty: none
  std::string format;   // a name that format_pattern() knows; empty: none

  std::vector<Parts> prefix;   // array elements in order
  std::optional<Parts> items;  // the elements behind them; absent: none may follow
  std::int64_t min_items = 0;
  std::optional<std::int64_t> max_items;

  std::vector<Property> properties;
  std::optional<Parts> additional;  // properties by other names; absent: none
  std::int64_t min_properties = 0;  // these two only where no property is declared
  std::optional<std::int64_t> max_properties;
};

// A regular expression for strings of a format; empty for an unknown one.
std::string_view format_pattern(std::string_view format);

class Schema {
 public:
  // `root` must outlive this; `path` begins every error. Errors (input): a schema that is no schema, a keyword that is
  // not supported, references to elsewhere, too large or too deep a schema; one line that begins with the path.
  Schema(const Json& root, std::string path, Strictness strictness);

  Parts root() const { return {{root_, path_}}; }
  // At least one. Errors: nothing can satisfy the schemas.
  std::vector<Shape> shapes(const Parts& parts) const;
  // The same for equal parts, and for no others.
  static std::string key(const Parts& parts);

 private:
  struct Draft;
  void add(Draft& draft, const Part& part, int depth) const;
  void add_keyword(Draft& draft, const Part& part, const std::string& keyword, const Json& value, int depth) const;
  bool add_number_keyword(Draft& draft, const Part& part, const std::string& keyword, const Json& value) const;
  bool add_count_keyword(Draft& draft, const Part& part, const std::string& keyword, const Json& value) const;
  void add_reference(Draft& draft, const Part& part, const Json& value, int depth) const;
  void check_one_of(const Json& alternatives, const std::string& path) const;
  bool disjoint(const Shape& left, const Shape& right, int depth) const;
  void expand(Draft draft, std::vector<Shape>& out, int depth) const;
  bool finish(Draft& draft, Shape& out) const;
  void finish_strings(Draft& draft) const;
  bool finish_numbers(Draft& draft) const;
  void finish_array(Draft& draft) const;
  void finish_object(Draft& draft) const;
  void unsupported(const std::string& path, const char* why) const;
  // Counts pairs of values or names that are compared. Errors: more than any schema of this size needs.
  void compare_pairs(std::size_t left, std::size_t right) const;
  std::vector<Shape> expanded(const Parts& parts) const;

  const Json* root_;
  std::string path_;
  Strictness strictness_;
  // Schemas looked at, and pairs compared: a small schema cannot ask for a lot of it.
  mutable std::size_t work_ = 0, pairs_ = 0;
};

}  // namespace m3::grammar
