#include "src/chat/schema.h"

#include <algorithm>
#include <cctype>

#include "src/base/error.h"
#include "src/grammar/schema.h"

namespace m3::chat {
namespace {

constexpr int max_schema_depth = 32;            // of $ref and combinations on one value
constexpr std::size_t max_schema_sources = 64;  // alternatives looked at for one value

unsigned kind_of_value(const Value& value) {
  switch (value.kind()) {
    case Kind::none: return kind_null;
    case Kind::boolean: return kind_boolean;
    case Kind::integer:
    case Kind::big_integer: return kind_integer;
    case Kind::floating: return kind_number;
    case Kind::string: return kind_string;
    case Kind::list: return kind_array;
    default: return kind_object;
  }
}

// The schema that "#/a/b" names within root, or null.
const Value* resolve(const Value& root, std::string_view reference) {
  if (reference.empty() || reference[0] != '#') return nullptr;
  const Value* at = &root;
  std::size_t begin = 1;
  while (begin < reference.size()) {
    if (reference[begin] != '/') return nullptr;
    const std::size_t end = std::min(reference.find('/', begin + 1), reference.size());
    std::string part;
    for (std::size_t i = begin + 1; i < end; ++i) {
      if (reference[i] == '~' && i + 1 < end && (reference[i + 1] == '0' || reference[i + 1] == '1')) {
        part += reference[++i] == '0' ? '~' : '/';
      } else {
        part += reference[i];
      }
    }
    if (at->is(Kind::dict)) {
      at = at->as_dict().find(part);
    } else if (at->is(Kind::list) && !part.empty() && part.size() < 8 &&
               std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); })) {
      const auto index = static_cast<std::size_t>(std::stoul(part));
      at = index < at->items().size() ? &at->items()[index] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) return nullptr;
    begin = end;
  }
  return at;
}

const Value* member(const Dict& schema, std::string_view name) { return schema.find(name); }

}  // namespace

SchemaView::SchemaView(const Value& root) : root_(&root) { add(root, 0); }

void SchemaView::unite(const SchemaView& other) {
  for (const Dict* source : other.sources_) {
    if (sources_.size() < max_schema_sources) sources_.push_back(source);
  }
  enumerated_.insert(enumerated_.end(), other.enumerated_.begin(), other.enumerated_.end());
}

// Adds what `schema` says, all of which must hold together with what is there.
void SchemaView::add(const Value& schema, int depth) {
  if (!schema.is(Kind::dict) || depth > max_schema_depth || sources_.size() >= max_schema_sources) return;
  const Dict& dict = schema.as_dict();
  const auto restrict_to = [this](unsigned kinds) {
    if (kinds == 0) return;
    // An integer satisfies number.
    if ((kinds_ & kind_number) != 0 && (kinds & kind_integer) != 0) kinds_ |= kind_integer;
    if ((kinds & kind_number) != 0 && (kinds_ & kind_integer) != 0) kinds |= kind_integer;
    kinds_ = kinds_ == 0 || (kinds_ & kinds) == 0 ? kinds : kinds_ & kinds;
  };
  unsigned kinds = 0;
  if (const Value* type = member(dict, "type")) {
    if (type->is(Kind::string)) kinds = grammar::bit_of_type(type->bytes());
    if (type->is(Kind::list)) {
      for (const Value& name : type->items()) {
        if (name.is(Kind::string)) kinds |= grammar::bit_of_type(name.bytes());
      }
    }
  }
  std::vector<const Value*> values;
  if (const Value* list = member(dict, "enum"); list != nullptr && list->is(Kind::list)) {
    for (const Value& value : list->items()) values.push_back(&value);
  }
  if (const Value* single = member(dict, "const")) values.push_back(single);
  const bool has_properties = member(dict, "properties") != nullptr || member(dict, "additionalProperties") != nullptr;
  const bool has_items = member(dict, "items") != nullptr || member(dict, "prefixItems") != nullptr;
  if (kinds == 0) {
    for (const Value* value : values) kinds |= kind_of_value(*value);
  }
  if (kinds == 0 && has_properties) kinds = kind_object;
  if (kinds == 0 && has_items) kinds = kind_array;
  const Value* nullable = member(dict, "nullable");
  if (kinds != 0 && nullable != nullptr && nullable->is(Kind::boolean) && nullable->as_bool()) kinds |= kind_null;
  restrict_to(kinds);
  if (has_properties || has_items) sources_.push_back(&dict);
  enumerated_.insert(enumerated_.end(), values.begin(), values.end());

  if (const Value* reference = member(dict, "$ref"); reference != nullptr && reference->is(Kind::string)) {
    if (const Value* target = resolve(*root_, reference->bytes())) add(*target, depth + 1);
  }
  if (const Value* all = member(dict, "allOf"); all != nullptr && all->is(Kind::list)) {
    for (const Value& part : all->items()) add(part, depth + 1);
  }
  for (const std::string_view name : {"anyOf", "oneOf"}) {
    const Value* alternatives = member(dict, name);
    if (alternatives == nullptr || !alternatives->is(Kind::list)) continue;
    unsigned united = 0;
    bool all_typed = true;
    for (const Value& alternative : alternatives->items()) {
      SchemaView view;
      view.root_ = root_;
      view.add(alternative, depth + 1);
      united |= view.kinds_;
      all_typed = all_typed && view.typed();
      unite(view);
    }
    if (all_typed) restrict_to(united);
  }
}

bool SchemaView::declares(std::string_view property) const {
  return std::any_of(sources_.begin(), sources_.end(), [&](const Dict* source) {
    const Value* properties = member(*source, "properties");
    return properties != nullptr && properties->is(Kind::dict) && properties->as_dict().find(property) != nullptr;
  });
}

SchemaView SchemaView::property(std::string_view name) const {
  std::vector<const Value*> found;
  for (const Dict* source : sources_) {
    const Value* properties = member(*source, "properties");
    if (properties != nullptr && properties->is(Kind::dict)) {
      if (const Value* schema = properties->as_dict().find(name)) found.push_back(schema);
    }
  }
  if (found.empty()) {
    for (const Dict* source : sources_) {
      const Value* schema = member(*source, "additionalProperties");
      if (schema != nullptr && schema->is(Kind::dict)) found.push_back(schema);
    }
  }
  return alternatives(found);
}

SchemaView SchemaView::item(std::size_t index) const {
  std::vector<const Value*> found;
  for (const Dict* source : sources_) {
    const Value* prefix = member(*source, "prefixItems");
    const Value* items = member(*source, "items");
    if (prefix != nullptr && prefix->is(Kind::list) && index < prefix->items().size()) {
      found.push_back(&prefix->items()[index]);
    } else if (items != nullptr && items->is(Kind::list)) {  // the older spelling of prefixItems
      if (index < items->items().size()) found.push_back(&items->items()[index]);
    } else if (items != nullptr && items->is(Kind::dict)) {
      found.push_back(items);
    }
  }
  return alternatives(found);
}

SchemaView SchemaView::alternatives(const std::vector<const Value*>& schemas) const {
  SchemaView united;
  united.root_ = root_;
  bool all_typed = true;
  for (const Value* schema : schemas) {
    SchemaView view;
    view.root_ = root_;
    view.add(*schema, 1);
    all_typed = all_typed && view.typed();
    united.kinds_ |= view.kinds_;
    united.unite(view);
  }
  if (!all_typed) united.kinds_ = 0;
  return united;
}

namespace {

void check_list(const Value* list, const std::string& path) {
  if (list == nullptr) return;
  if (!list->is(Kind::list)) fail("{}: expected a list of schemas", path);
  for (std::size_t i = 0; i < list->items().size(); ++i) {
    check_schema(list->items()[i], fmt::format("{}[{}]", path, i));
  }
}

void check_members(const Value* members, const std::string& path) {
  if (members == nullptr) return;
  if (!members->is(Kind::dict)) fail("{}: expected an object of schemas", path);
  for (const auto& [name, schema] : members->as_dict().items) {
    check_schema(schema, path + "." + name.bytes());
  }
}

void check_type(const Value* type, const std::string& path) {
  if (type == nullptr) return;
  const auto check_name = [&](const Value& name) {
    if (!name.is(Kind::string) || grammar::bit_of_type(name.bytes()) == 0) {
      fail("{}: expected null, boolean, integer, number, string, array or object, or a list of these", path);
    }
  };
  if (!type->is(Kind::list)) return check_name(*type);
  for (const Value& name : type->items()) check_name(name);
}

}  // namespace

void check_schema(const Value& schema, const std::string& path) {
  if (schema.is(Kind::boolean)) return;
  if (!schema.is(Kind::dict)) fail("{}: expected a JSON Schema object, found a {}", path, type_name(schema));
  const Dict& dict = schema.as_dict();
  check_type(member(dict, "type"), path + ".type");
  for (const char* name : {"properties", "patternProperties", "$defs", "definitions"}) {
    check_members(member(dict, name), path + "." + name);
  }
  for (const char* name : {"anyOf", "oneOf", "allOf", "prefixItems"}) check_list(member(dict, name), path + "." + name);
  for (const char* name : {"additionalProperties", "not"}) {
    if (const Value* inner = member(dict, name)) check_schema(*inner, path + "." + name);
  }
  if (const Value* items = member(dict, "items")) {
    if (items->is(Kind::list)) {
      check_list(items, path + ".items");
    } else {
      check_schema(*items, path + ".items");
    }
  }
  if (const Value* values = member(dict, "enum"); values != nullptr && !values->is(Kind::list)) {
    fail("{}.enum: expected a list", path);
  }
  if (const Value* required = member(dict, "required")) {
    const bool names = required->is(Kind::list) && std::all_of(required->items().begin(), required->items().end(),
                                                               [](const Value& name) { return name.is(Kind::string); });
    if (!names) fail("{}.required: expected a list of names", path);
  }
  if (const Value* reference = member(dict, "$ref"); reference != nullptr && !reference->is(Kind::string)) {
    fail("{}.$ref: expected a string", path);
  }
}

}  // namespace m3::chat
