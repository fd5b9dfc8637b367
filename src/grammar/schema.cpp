#include "src/grammar/schema.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/error.h"

namespace m3::grammar {
namespace {

constexpr int max_depth = 64;  // of references and combinations on one value
constexpr std::size_t max_work = 200'000;
constexpr std::size_t max_shapes = 256;     // alternatives of one value
constexpr std::size_t max_values = 20'000;  // of an enum
constexpr std::int64_t max_count = 1'000'000'000;
constexpr std::int64_t max_multiple = 64;        // one rule for each remainder
constexpr std::int64_t max_listed_range = 1000;  // multiples within bounds are listed
constexpr double max_bound = 1e18;               // bounds beyond are taken as this

struct KindName {
  std::string_view name;
  unsigned kind;
};
constexpr std::array<KindName, 7> kind_names = {{{"null", kind_null},
                                                 {"boolean", kind_boolean},
                                                 {"integer", kind_integer},
                                                 {"number", kind_number},
                                                 {"string", kind_string},
                                                 {"array", kind_array},
                                                 {"object", kind_object}}};

unsigned kind_named(const Json& name, const std::string& path) {
  if (name.is_string()) {
    for (const auto& known : kind_names) {
      if (known.name == name.get_ref<const std::string&>()) return known.kind;
    }
  }
  fail("{}: expected null, boolean, integer, number, string, array or object, or a list of these", path);
}

const Json* member(const Json& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

// Keywords of JSON Schema that constrain values and are not enforced.
constexpr std::array<std::string_view, 19> not_enforced = {"not",
                                                           "if",
                                                           "then",
                                                           "else",
                                                           "dependentRequired",
                                                           "dependentSchemas",
                                                           "dependencies",
                                                           "contains",
                                                           "minContains",
                                                           "maxContains",
                                                           "patternProperties",
                                                           "propertyNames",
                                                           "unevaluatedItems",
                                                           "unevaluatedProperties",
                                                           "$dynamicRef",
                                                           "$recursiveRef",
                                                           "extends",
                                                           "disallow",
                                                           "divisibleBy"};

std::int64_t count_of(const Json& value, const std::string& path) {
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() != std::floor(value.get<double>())) {
    fail("{}: expected a whole number from 0", path);
  }
  return static_cast<std::int64_t>(std::min(value.get<double>(), static_cast<double>(max_count)));
}

Decimal decimal_of(const Json& value, const std::string& path) {
  if (!value.is_number()) fail("{}: expected a number", path);
  if (value.is_number_integer() && !value.is_number_unsigned()) {
    const auto number = value.get<std::int64_t>();
    if (std::fabs(static_cast<double>(number)) < max_bound) {
      return {number < 0, std::to_string(number < 0 ? -number : number), ""};
    }
  }
  const double number = value.get<double>();
  if (!std::isfinite(number)) fail("{}: expected a finite number", path);
  return Decimal::from(std::clamp(number, -max_bound, max_bound));
}

bool inside(const Json& value, const std::optional<Bound>& low, const std::optional<Bound>& high) {
  const double number = value.get<double>();
  const Decimal decimal = Decimal::from(number);
  if (low) {
    const int order = compare(decimal, low->value);
    if (order < 0 || (order == 0 && low->exclusive)) return false;
  }
  if (high) {
    const int order = compare(decimal, high->value);
    if (order > 0 || (order == 0 && high->exclusive)) return false;
  }
  return true;
}

std::int64_t code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

unsigned kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kind_null;
    case Json::value_t::boolean: return kind_boolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kind_integer;
    case Json::value_t::number_float:
      return value.get<double>() == std::floor(value.get<double>()) ? kind_integer : kind_fraction;
    case Json::value_t::string: return kind_string;
    case Json::value_t::array: return kind_array;
    default: return kind_object;
  }
}

std::string_view format_pattern(std::string_view format) {
  struct Format {
    std::string_view name;
    std::string_view pattern;
  };
  // Written without anchors; none matches what its format does not allow.
  static constexpr std::array<Format, 12> formats = {{
      {"date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
      {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
      {"date-time",
       "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?"
       "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
      {"duration", "P([0-9]{1,9}W|[0-9]{1,9}D(T[0-9]{1,9}[HMS])?|[0-9]{1,9}[YM]|T[0-9]{1,9}[HMS])"},
      {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+"},
      {"hostname", "[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,2}(\\.[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,2}){0,3}"},
      {"ipv4", "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}"},
      {"ipv6", "[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}"},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"uri", "[a-zA-Z][a-zA-Z0-9+.-]*:(//)?[A-Za-z0-9_~!$&'()*+,;=:@/?.-]+"},
      {"uri-reference", "[A-Za-z0-9_~!$&'()*+,;=@/?.-]+"},
      {"json-pointer", "(/[A-Za-z0-9_.-]*)*"},
  }};
  for (const auto& known : formats) {
    if (known.name == format) return known.pattern;
  }
  return {};
}

// A shape on its way: what its schemas said, and the combinations not expanded yet.
struct Schema::Draft {
  struct ObjectPart {
    std::vector<Property> properties;
    std::optional<Part> additional;
  };
  struct ArrayPart {
    std::vector<Part> prefix;
    std::optional<Part> items;
  };
  struct Group {
    const Json* alternatives;
    std::string path;
  };
  Shape shape;
  std::vector<ObjectPart> objects;
  std::vector<ArrayPart> arrays;
  std::vector<std::string> required;
  std::vector<std::pair<std::string, std::string>> needs;  // a format or pattern, and its path
  std::int64_t min_properties = 0;
  std::optional<std::int64_t> max_properties;
  std::string properties_path;
  std::vector<Group> groups;
  std::set<const Json*> references;  // followed on the way here
  std::string path;                  // of the first schema
};

Schema::Schema(const Json& root, std::string path, Strictness strictness)
    : root_(&root), path_(std::move(path)), strictness_(strictness) {}

std::string Schema::key(const Parts& parts) {
  std::vector<const Json*> schemas;
  for (const Part& part : parts) schemas.push_back(part.schema);
  std::sort(schemas.begin(), schemas.end());
  schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
  std::string out;
  for (const Json* schema : schemas) out += fmt::format("{} ", static_cast<const void*>(schema));
  return out;
}

void Schema::unsupported(const std::string& path, const char* why) const {
  if (strictness_ == Strictness::strict) fail("{}: {}", path, why);
}

void Schema::add_reference(Draft& draft, const Part& part, const Json& value, int depth) const {
  const std::string path = part.path + ".$ref";
  if (!value.is_string()) fail("{}: expected a string", path);
  const auto& reference = value.get_ref<const std::string&>();
  if (reference.empty() || reference[0] != '#') fail("{}: only references within the schema ('#/…') are known", path);
  std::string pointer;
  for (std::size_t i = 1; i < reference.size(); ++i) {
    const bool encoded = reference[i] == '%' && i + 2 < reference.size() &&
                         std::isxdigit(static_cast<unsigned char>(reference[i + 1])) != 0 &&
                         std::isxdigit(static_cast<unsigned char>(reference[i + 2])) != 0;
    pointer += encoded ? static_cast<char>(std::stoi(reference.substr(i + 1, 2), nullptr, 16)) : reference[i];
    if (encoded) i += 2;
  }
  const Json* target = nullptr;
  try {
    const Json::json_pointer where(pointer);
    if (root_->contains(where)) target = &root_->at(where);
  } catch (const nlohmann::json::exception&) {
    target = nullptr;
  }
  if (target == nullptr) fail("{}: there is no '{}' in the schema", path, reference);
  if (!draft.references.insert(target).second)
    fail("{}: '{}' refers to itself without an object or array between", path, reference);
  std::ranges::replace(pointer, '/', '.');
  add(draft, {target, path_ + pointer}, depth + 1);
}

bool Schema::add_number_keyword(Draft& draft, const Part& part, const std::string& keyword, const Json& value) const {
  const std::string path = part.path + "." + keyword;
  Shape& shape = draft.shape;
  if (keyword == "multipleOf") {
    if (!value.is_number() || value.get<double>() <= 0) fail("{}: expected a number above 0", path);
    const double number = value.get<double>();
    if (number == std::floor(number) && number <= 1e9) {
      const auto multiple = static_cast<std::int64_t>(number);
      if (shape.multiple_of && *shape.multiple_of != multiple) {
        unsupported(path, "two multipleOf on one value are not supported");
      }
      shape.multiple_of = multiple;
      shape.kinds &= ~static_cast<unsigned>(kind_fraction);
      return true;
    }
    const int digits = static_cast<int>(std::lround(-std::log10(number)));
    if (digits >= 1 && digits <= 15 &&
        Decimal::from(number).fraction == std::string(static_cast<std::size_t>(digits) - 1, '0') + "1") {
      shape.fraction_digits = std::min(digits, shape.fraction_digits.value_or(digits));
      return true;
    }
    unsupported(path, "only whole numbers and 0.1, 0.01, … are supported");
    return true;
  }
  const bool low = keyword == "minimum" || keyword == "exclusiveMinimum";
  if (!low && keyword != "maximum" && keyword != "exclusiveMaximum") return false;
  bool exclusive = keyword[0] == 'e';
  if (exclusive && value.is_boolean()) return true;  // the older spelling: read beside minimum and maximum
  if (!exclusive) {
    const Json* older = member(*part.schema, low ? "exclusiveMinimum" : "exclusiveMaximum");
    exclusive = older != nullptr && older->is_boolean() && older->get<bool>();
  }
  const Bound bound{decimal_of(value, path), exclusive};
  std::optional<Bound>& old = low ? shape.low : shape.high;
  const int order = old ? compare(bound.value, old->value) : 0;
  if (!old || (low ? order > 0 : order < 0) || (order == 0 && exclusive)) old = bound;
  return true;
}

bool Schema::add_count_keyword(Draft& draft, const Part& part, const std::string& keyword, const Json& value) const {
  Shape& shape = draft.shape;
  std::int64_t* least = keyword == "minLength"       ? &shape.min_length
                        : keyword == "minItems"      ? &shape.min_items
                        : keyword == "minProperties" ? &draft.min_properties
                                                     : nullptr;
  std::optional<std::int64_t>* most = keyword == "maxLength"       ? &shape.max_length
                                      : keyword == "maxItems"      ? &shape.max_items
                                      : keyword == "maxProperties" ? &draft.max_properties
                                                                   : nullptr;
  if (least == nullptr && most == nullptr) return false;
  const std::string path = part.path + "." + keyword;
  const std::int64_t count = count_of(value, path);
  if (keyword.ends_with("Properties")) draft.properties_path = path;
  if (least != nullptr) {
    if (count > 100'000) fail("{}: more than 100,000 is not supported", path);
    *least = std::max(*least, count);
  } else if (count < max_count) {
    *most = std::min(count, most->value_or(count));
  }
  return true;
}

void Schema::add_keyword(Draft& draft, const Part& part, const std::string& keyword, const Json& value,
                         int depth) const {
  Shape& shape = draft.shape;
  const std::string path = part.path + "." + keyword;
  if (add_number_keyword(draft, part, keyword, value) || add_count_keyword(draft, part, keyword, value)) return;
  if (keyword == "$ref") return add_reference(draft, part, value, depth);
  if (keyword == "type") {
    unsigned kinds = 0;
    if (value.is_array()) {
      for (const Json& name : value) kinds |= kind_named(name, path);
    } else {
      kinds = kind_named(value, path);
    }
    const Json* nullable = member(*part.schema, "nullable");  // OpenAPI 3.0
    if (nullable != nullptr && nullable->is_boolean() && nullable->get<bool>()) kinds |= kind_null;
    shape.kinds &= kinds;
  } else if (keyword == "enum" || keyword == "const") {
    if (keyword == "enum" && !value.is_array()) fail("{}: expected a list", path);
    if (keyword == "enum" && value.size() > max_values) fail("{}: more than {} values", path, max_values);
    std::vector<Json> values;
    if (keyword == "enum") {
      values.assign(value.begin(), value.end());
    } else {
      values.push_back(value);
    }
    if (shape.values) {
      std::erase_if(values, [&](const Json& one) {
        return std::find(shape.values->begin(), shape.values->end(), one) == shape.values->end();
      });
    }
    shape.values = std::move(values);
  } else if (keyword == "anyOf" || keyword == "oneOf") {
    if (!value.is_array() || value.empty()) fail("{}: expected a list of schemas", path);
    if (keyword == "oneOf" && strictness_ == Strictness::strict) check_one_of(value, path);
    draft.groups.push_back({&value, path});
  } else if (keyword == "allOf") {
    if (!value.is_array() || value.empty()) fail("{}: expected a list of schemas", path);
    for (std::size_t i = 0; i < value.size(); ++i) add(draft, {&value[i], fmt::format("{}[{}]", path, i)}, depth + 1);
  } else if (keyword == "pattern" || keyword == "format") {
    if (!value.is_string()) fail("{}: expected a string", path);
    const auto& text = value.get_ref<const std::string&>();
    if (keyword == "format" && format_pattern(text).empty()) {
      // Widths of numbers and the like are notes; a kind of string that is not known would be a promise.
      constexpr std::array<std::string_view, 4> notes = {"int32", "int64", "float", "double"};
      if (std::find(notes.begin(), notes.end(), text) == notes.end()) unsupported(path, "this format is not supported");
      return;
    }
    draft.needs.emplace_back(keyword, path);
    std::string& slot = keyword == "pattern" ? shape.pattern : shape.format;
    if (!slot.empty() && slot != text) unsupported(path, "two of them on one value are not supported");
    if (slot.empty()) slot = text;
  } else if (keyword == "required") {
    if (!value.is_array()) fail("{}: expected a list of names", path);
    for (const Json& name : value) {
      if (!name.is_string()) fail("{}: expected a list of names", path);
      draft.required.push_back(name.get<std::string>());
    }
  } else if (keyword == "uniqueItems") {
    if (!value.is_boolean()) fail("{}: expected true or false", path);
    if (value.get<bool>()) unsupported(path, "unique elements cannot be enforced");
  } else if (keyword == "unevaluatedProperties" && value.is_boolean()) {
    return;  // nothing undeclared is generated
  } else if (std::find(not_enforced.begin(), not_enforced.end(), keyword) != not_enforced.end()) {
    unsupported(path, "this keyword is not supported");
  }
}

void Schema::add(Draft& draft, const Part& part, int depth) const {
  if (depth > max_depth) fail("{}: nested too deep", part.path);
  if (++work_ > max_work) fail("{}: the schema is too complex", path_);
  const Json& schema = *part.schema;
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) draft.shape.kinds = 0;
    return;
  }
  if (!schema.is_object()) fail("{}: expected a JSON Schema, an object", part.path);
  Draft::ObjectPart object;
  bool has_object = false;
  if (const Json* properties = member(schema, "properties")) {
    if (!properties->is_object()) fail("{}.properties: expected an object of schemas", part.path);
    has_object = true;
    for (const auto& [name, property] : properties->items()) {
      object.properties.push_back({name, {{&property, part.path + ".properties." + name}}, false});
    }
  }
  if (const Json* additional = member(schema, "additionalProperties")) {
    has_object = true;
    object.additional = Part{additional, part.path + ".additionalProperties"};
  }
  if (has_object) draft.objects.push_back(std::move(object));
  Draft::ArrayPart array;
  const Json* items = member(schema, "items");
  const Json* prefix = member(schema, "prefixItems");
  if (items != nullptr && items->is_array()) {  // the older spelling
    prefix = items;
    items = member(schema, "additionalItems");
  }
  if (prefix != nullptr) {
    if (!prefix->is_array()) fail("{}.prefixItems: expected a list of schemas", part.path);
    for (std::size_t i = 0; i < prefix->size(); ++i) {
      array.prefix.push_back({&(*prefix)[i], fmt::format("{}.prefixItems[{}]", part.path, i)});
    }
  }
  if (items != nullptr) array.items = Part{items, part.path + ".items"};
  if (items != nullptr || prefix != nullptr) draft.arrays.push_back(std::move(array));
  for (const auto& [keyword, value] : schema.items()) add_keyword(draft, part, keyword, value, depth);
}

void Schema::check_one_of(const Json& alternatives, const std::string& path) const {
  std::vector<std::vector<Shape>> shapes;
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    shapes.push_back(expanded({{&alternatives[i], fmt::format("{}[{}]", path, i)}}));
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (std::size_t j = i + 1; j < shapes.size(); ++j) {
      for (const Shape& left : shapes[i]) {
        for (const Shape& right : shapes[j]) {
          if (!disjoint(left, right, 0)) {
            fail("{}: alternatives {} and {} may both hold, which cannot be excluded; use anyOf", path, i, j);
          }
        }
      }
    }
  }
}

bool Schema::disjoint(const Shape& left, const Shape& right, int depth) const {
  const unsigned both = left.kinds & right.kinds;
  if (both == 0) return true;
  if (left.values && right.values) {
    return std::none_of(left.values->begin(), left.values->end(), [&](const Json& value) {
      return std::find(right.values->begin(), right.values->end(), value) != right.values->end();
    });
  }
  if (both != kind_object || depth > 4) return false;
  for (const Property& mine : left.properties) {
    for (const Property& other : right.properties) {
      if (mine.name != other.name || !mine.required || !other.required) continue;
      const auto mine_shapes = expanded(mine.schemas), other_shapes = expanded(other.schemas);
      const bool apart = std::all_of(mine_shapes.begin(), mine_shapes.end(), [&](const Shape& a) {
        return std::all_of(other_shapes.begin(), other_shapes.end(),
                           [&](const Shape& b) { return disjoint(a, b, depth + 1); });
      });
      if (apart) return true;
    }
  }
  return false;
}

void Schema::expand(Draft draft, std::vector<Shape>& out, int depth) const {
  if (depth > max_depth) fail("{}: nested too deep", draft.path);
  if (draft.shape.kinds == 0) return;
  if (draft.groups.empty()) {
    Shape shape;
    if (finish(draft, shape)) out.push_back(std::move(shape));
    if (out.size() > max_shapes) fail("{}: more than {} alternatives", draft.path, max_shapes);
    return;
  }
  const Draft::Group group = draft.groups.back();
  draft.groups.pop_back();
  for (std::size_t i = 0; i < group.alternatives->size(); ++i) {
    Draft next = draft;
    add(next, {&(*group.alternatives)[i], fmt::format("{}[{}]", group.path, i)}, depth + 1);
    expand(std::move(next), out, depth + 1);
  }
}

// Brings a draft into its shape; false where nothing satisfies it.
bool Schema::finish(Draft& draft, Shape& out) const {
  Shape& shape = draft.shape;
  if (shape.values) {
    for (const auto& [keyword, path] : draft.needs) unsupported(path, "not supported beside enum or const");
    std::erase_if(*shape.values, [&](const Json& value) {
      if ((kind_of(value) & shape.kinds) == 0) return true;
      if (value.is_number()) return !inside(value, shape.low, shape.high);
      if (!value.is_string()) return false;
      const std::int64_t length = code_points(value.get_ref<const std::string&>());
      return length < shape.min_length || (shape.max_length && length > *shape.max_length);
    });
    if (shape.values->empty()) return false;
    out = std::move(shape);
    return true;
  }
  if ((shape.kinds & kind_string) != 0 && !draft.needs.empty()) {
    if (!shape.pattern.empty() && !shape.format.empty()) {
      unsupported(draft.needs.back().second, "pattern and format on one value are not supported");
      shape.format.clear();
    }
    if (shape.min_length > 0 || shape.max_length) {
      unsupported(draft.needs.back().second, "not supported together with minLength or maxLength");
      shape.min_length = 0;
      shape.max_length.reset();
    }
  }
  const auto without = [&](unsigned kinds) { shape.kinds &= ~kinds; };
  if (shape.max_length && shape.min_length > *shape.max_length) without(kind_string);

  if ((shape.kinds & kind_number) != 0 && shape.multiple_of) {
    if (shape.low || shape.high) {
      const bool listed =
          shape.low && shape.high && shape.low->value.whole.size() < 10 && shape.high->value.whole.size() < 10;
      std::int64_t low = 0, high = -1;
      if (listed) {
        const auto signed_whole = [](const Decimal& value) {
          return std::stoll(value.whole) * (value.negative ? -1 : 1);
        };
        low = signed_whole(shape.low->value) - 1;
        high = signed_whole(shape.high->value) + 1;
      }
      if (!listed || (high - low) / *shape.multiple_of > max_listed_range) {
        unsupported(draft.path + ".multipleOf", "not supported together with wide or open bounds");
        shape.multiple_of.reset();
      } else if ((shape.kinds & ~static_cast<unsigned>(kind_number)) != 0) {
        unsupported(draft.path + ".multipleOf", "with bounds it is supported on integers alone");
        shape.multiple_of.reset();
      } else {
        std::vector<Json> values;
        for (std::int64_t value = low; value <= high; ++value) {
          if (value % *shape.multiple_of == 0 && inside(Json(value), shape.low, shape.high)) values.emplace_back(value);
        }
        if (values.empty()) return false;
        shape.values = std::move(values);
      }
    } else if (*shape.multiple_of > max_multiple) {
      unsupported(draft.path + ".multipleOf", "more than 64 is not supported");
      shape.multiple_of.reset();
    }
  }
  if ((shape.kinds & kind_fraction) != 0 && shape.fraction_digits && (shape.low || shape.high)) {
    unsupported(draft.path + ".multipleOf", "a fraction is not supported together with bounds");
    shape.fraction_digits.reset();
  }
  if ((shape.kinds & kind_number) != 0) {
    if ((shape.kinds & kind_integer) != 0 && !integer_expression(shape.low, shape.high)) without(kind_integer);
    if ((shape.kinds & kind_fraction) != 0 && !number_expression(shape.low, shape.high)) without(kind_number);
  }

  if ((shape.kinds & kind_array) != 0) {
    std::size_t prefix = 0;
    for (const auto& part : draft.arrays) prefix = std::max(prefix, part.prefix.size());
    const auto element = [&](std::size_t index) {
      Parts parts;
      for (const auto& part : draft.arrays) {
        if (index < part.prefix.size()) {
          parts.push_back(part.prefix[index]);
        } else if (part.items) {
          parts.push_back(*part.items);
        }
      }
      return parts;
    };
    const auto never = [](const Parts& parts) {
      return std::any_of(parts.begin(), parts.end(),
                         [](const Part& part) { return part.schema->is_boolean() && !part.schema->get<bool>(); });
    };
    for (std::size_t i = 0; i < prefix; ++i) shape.prefix.push_back(element(i));
    const auto rest = element(prefix);
    if (!never(rest)) shape.items = rest;
    for (std::size_t i = 0; i < shape.prefix.size(); ++i) {
      if (!never(shape.prefix[i])) continue;
      shape.prefix.resize(i);
      shape.items.reset();
    }
    const auto most =
        shape.items ? shape.max_items
                    : std::min(shape.max_items.value_or(max_count), static_cast<std::int64_t>(shape.prefix.size()));
    shape.max_items = most;
    if (most && shape.min_items > *most) without(kind_array);
  }

  if ((shape.kinds & kind_object) != 0) {
    std::vector<Property>& properties = shape.properties;
    for (const auto& part : draft.objects) {
      for (const Property& property : part.properties) {
        const auto same = std::find_if(properties.begin(), properties.end(),
                                       [&](const Property& known) { return known.name == property.name; });
        if (same == properties.end()) {
          properties.push_back(property);
        } else {
          same->schemas.insert(same->schemas.end(), property.schemas.begin(), property.schemas.end());
        }
      }
    }
    for (const std::string& name : draft.required) {
      const auto same =
          std::find_if(properties.begin(), properties.end(), [&](const Property& known) { return known.name == name; });
      if (same == properties.end()) {
        properties.push_back({name, {}, true});
      } else {
        same->required = true;
      }
    }
    // A schema's additionalProperties speak of what its own properties do not name.
    bool closed = false, open = false;
    Parts additional;
    for (const auto& part : draft.objects) {
      if (!part.additional) continue;
      const Json& schema = *part.additional->schema;
      if (schema.is_boolean() && !schema.get<bool>()) closed = true;
      if (!schema.is_boolean() || schema.get<bool>()) open = true;
      if (!schema.is_boolean()) additional.push_back(*part.additional);
      for (Property& property : properties) {
        const bool own = std::any_of(part.properties.begin(), part.properties.end(),
                                     [&](const Property& known) { return known.name == property.name; });
        if (!own) property.schemas.push_back(*part.additional);
      }
    }
    bool possible = true;
    std::erase_if(properties, [&](const Property& property) {
      const bool never = std::any_of(property.schemas.begin(), property.schemas.end(), [](const Part& part) {
        return part.schema->is_boolean() && !part.schema->get<bool>();
      });
      if (never && property.required) possible = false;
      return never;
    });
    const bool declared = std::any_of(draft.objects.begin(), draft.objects.end(),
                                      [](const auto& part) { return !part.properties.empty(); });
    if (!closed && (open || (!declared && draft.required.empty()))) shape.additional = additional;
    const auto needed =
        std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; });
    const auto known = static_cast<std::int64_t>(properties.size());
    if (draft.max_properties && known > *draft.max_properties) {
      if (needed > *draft.max_properties) possible = false;
      if (possible) {
        unsupported(draft.properties_path, "not supported where more properties are declared");
      }
    }
    if (draft.max_properties && shape.additional) {
      if (known > 0)
        unsupported(draft.properties_path, "not supported beside declared properties that others may join");
      shape.max_properties = draft.max_properties;
    }
    if (draft.min_properties > needed) {
      if (known > 0 && draft.min_properties > known && !shape.additional) possible = false;
      if (possible && (known > 0 || !shape.additional)) {
        unsupported(draft.properties_path, "not supported beside optional properties");
      } else if (draft.min_properties > 1) {
        unsupported(draft.properties_path, "more than 1 is not supported, since names may repeat");
      } else {
        shape.min_properties = draft.min_properties;
      }
    }
    if (!possible) without(kind_object);
  }
  if (shape.kinds == 0) return false;
  out = std::move(shape);
  return true;
}

std::vector<Shape> Schema::expanded(const Parts& parts) const {
  Draft draft;
  draft.path = parts.empty() ? path_ : parts.front().path;
  std::set<const Json*> seen;
  for (const Part& part : parts) {
    if (seen.insert(part.schema).second) add(draft, part, 0);
  }
  std::vector<Shape> out;
  expand(std::move(draft), out, 0);
  return out;
}

std::vector<Shape> Schema::shapes(const Parts& parts) const {
  std::vector<Shape> out = expanded(parts);
  if (out.empty()) fail("{}: no value can satisfy this schema", parts.empty() ? path_ : parts.front().path);
  return out;
}

}  // namespace m3::grammar
