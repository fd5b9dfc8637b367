// From what the keywords said of a value to the shapes that it may have, kind by kind.
#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/grammar/schema_draft.h"

namespace m3::grammar {
namespace {

constexpr std::size_t max_shapes = 256;          // alternatives of one value
constexpr std::int64_t max_optional = 500;       // properties of one object
constexpr std::int64_t max_multiple = 64;        // one rule for each remainder
constexpr std::int64_t max_listed_range = 1000;  // multiples within bounds are listed

bool inside(const Json& value, const std::optional<Bound>& low, const std::optional<Bound>& high) {
  const Decimal decimal = exact(value);
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

void without(Shape& shape, unsigned kinds) { shape.kinds &= ~kinds; }

}  // namespace

void Schema::check_one_of(const Json& alternatives, const std::string& path) const {
  compare_pairs(alternatives.size(), alternatives.size());
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
  compare_pairs(left.values ? left.values->size() : left.properties.size(),
                right.values ? right.values->size() : right.properties.size());
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
  // Each alternative has a copy of what is there.
  std::size_t copied = 1 + draft.required.size() + (draft.shape.values ? draft.shape.values->size() : 0);
  for (const auto& part : draft.objects) copied += part.properties.size();
  compare_pairs(group.alternatives->size(), copied);
  for (std::size_t i = 0; i < group.alternatives->size(); ++i) {
    Draft next = draft;
    add(next, {&(*group.alternatives)[i], fmt::format("{}[{}]", group.path, i)}, depth + 1);
    expand(std::move(next), out, depth + 1);
  }
}

void Schema::finish_strings(Draft& draft) const {
  Shape& shape = draft.shape;
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
  if (shape.max_length && shape.min_length > *shape.max_length) without(shape, kind_string);
}

// False where no number satisfies the draft, and it can be nothing else.
bool Schema::finish_numbers(Draft& draft) const {
  Shape& shape = draft.shape;
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
    if ((shape.kinds & kind_integer) != 0 && !integer_expression(shape.low, shape.high)) without(shape, kind_integer);
    if ((shape.kinds & kind_fraction) != 0 && !number_expression(shape.low, shape.high)) without(shape, kind_number);
  }
  return true;
}

void Schema::finish_array(Draft& draft) const {
  Shape& shape = draft.shape;
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
  const auto most = shape.items
                        ? shape.max_items
                        : std::min(shape.max_items.value_or(max_count), static_cast<std::int64_t>(shape.prefix.size()));
  shape.max_items = most;
  if (most && shape.min_items > *most) without(shape, kind_array);
}

void Schema::finish_object(Draft& draft) const {
  Shape& shape = draft.shape;
  std::vector<Property>& properties = shape.properties;
  std::size_t names = draft.required.size();
  for (const auto& part : draft.objects) names += part.properties.size();
  compare_pairs(names, names);
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
  const auto needed = std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; });
  const auto known = static_cast<std::int64_t>(properties.size());
  // Any of those that are left may come next, so that what a reply costs grows with their square.
  if (known - needed > max_optional)
    fail("{}.properties: more than {} optional ones are not supported", draft.path, max_optional);
  if (draft.max_properties && known > *draft.max_properties) {
    if (needed > *draft.max_properties) possible = false;
    if (possible) {
      unsupported(draft.properties_path, "not supported where more properties are declared");
    }
  }
  if (draft.max_properties && shape.additional) {
    if (known > 0) unsupported(draft.properties_path, "not supported beside declared properties that others may join");
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
  if (!possible) without(shape, kind_object);
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
  finish_strings(draft);
  if ((shape.kinds & kind_number) != 0 && !finish_numbers(draft)) return false;
  if ((shape.kinds & kind_array) != 0) finish_array(draft);
  if ((shape.kinds & kind_object) != 0) finish_object(draft);
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
