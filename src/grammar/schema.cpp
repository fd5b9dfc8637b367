#include "src/grammar/schema.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/error.h"
#include "src/grammar/schema_draft.h"
#include "src/grammar/syntax.h"

namespace m3::grammar {
namespace {

constexpr std::size_t max_work = 200'000;
constexpr std::size_t max_pairs = 100'000'000;  // about a second
constexpr std::size_t max_values = 20'000;      // of an enum

unsigned kinds_named(const Json& name, const std::string& path) {
  const unsigned bit = name.is_string() ? bit_of_type(name.get_ref<const std::string&>()) : 0;
  if (bit == 0) fail("{}: expected null, boolean, integer, number, string, array or object, or a list of these", path);
  return bit == kind_fraction ? kind_number : bit;
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
  if (value.is_number_float() && !std::isfinite(value.get<double>())) fail("{}: expected a finite number", path);
  return exact(value);
}

// An integer that was written with more than 64 bits is read as a number near it.
bool has_inexact(const Json& value) {
  if (value.is_number_float()) return std::fabs(value.get<double>()) >= 0x1p63;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_inexact);
}

}  // namespace

Decimal exact(const Json& value) {
  if (value.is_number_float()) return Decimal::from(value.get<double>());
  std::string digits = value.dump();
  const bool negative = digits.front() == '-';
  if (negative) digits.erase(0, 1);
  return {negative, digits, ""};
}

unsigned bit_of_type(std::string_view name) {
  constexpr std::array<std::string_view, 7> names = {"null",   "boolean", "integer", "number",
                                                     "string", "array",   "object"};  // in the order of Kind
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? 0 : 1u << (found - names.begin());
}

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

void Schema::compare_pairs(std::size_t left, std::size_t right) const {
  pairs_ += left * right;
  if (pairs_ > max_pairs) fail("{}: the schema is too complex", path_);
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
  Bound bound{decimal_of(value, path), exclusive};
  // No number that is written has more digits than this.
  const Decimal far{!low, "1000000000000000000", ""}, near{low, far.whole, ""};
  if (low ? compare(bound.value, far) > 0 : compare(bound.value, far) < 0) {
    unsupported(path, low ? "more than 10^18 is not supported" : "less than -10^18 is not supported");
    return true;
  }
  if (low ? compare(bound.value, near) < 0 : compare(bound.value, near) > 0) bound = {near, false};
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
      for (const Json& name : value) kinds |= kinds_named(name, path);
    } else {
      kinds = kinds_named(value, path);
    }
    const Json* nullable = member(*part.schema, "nullable");  // OpenAPI 3.0
    if (nullable != nullptr && nullable->is_boolean() && nullable->get<bool>()) kinds |= kind_null;
    shape.kinds &= kinds;
  } else if (keyword == "enum" || keyword == "const") {
    if (keyword == "enum" && !value.is_array()) fail("{}: expected a list", path);
    if (keyword == "enum" && value.size() > max_values) fail("{}: more than {} values", path, max_values);
    if (has_inexact(value)) return unsupported(path, "an integer of more than 64 bits is not supported");
    std::vector<Json> values;
    if (keyword == "enum") {
      values.assign(value.begin(), value.end());
    } else {
      values.push_back(value);
    }
    if (shape.values) {
      compare_pairs(shape.values->size(), values.size());
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
    if (keyword == "pattern") {
      const std::string problem = regex_problem(text);
      if (!problem.empty())
        return unsupported(path, ("no regular expression that can be enforced: " + problem).c_str());
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

}  // namespace m3::grammar
