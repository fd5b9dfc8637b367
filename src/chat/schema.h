// What a tool's JSON Schema says about one value: enough to type the text a model wrote for it.
//
// A view flattens $ref, anyOf, oneOf and allOf: the kinds that are allowed, and where to look for properties and
// items. It is read as a description, never as a validator: a model's value is delivered even if the schema would
// refuse it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/chat/template/value.h"

namespace m3::chat {

// The bits of grammar::bit_of_type().
enum SchemaKind : unsigned {
  kind_null = 1,
  kind_boolean = 2,
  kind_integer = 4,
  kind_number = 8,  // integers too
  kind_string = 16,
  kind_array = 32,
  kind_object = 64,
};

class SchemaView {
 public:
  // No schema: anything, read as text.
  SchemaView() = default;
  // The schema of a tool's parameters, whose $refs resolve within itself. It must outlive every view made from it.
  explicit SchemaView(const Value& root);

  // False where nothing is said about the type.
  bool typed() const { return kinds_ != 0; }
  bool allows(unsigned kinds) const { return (kinds_ & kinds) != 0; }
  // Typed, and nothing beyond `kinds` is allowed.
  bool only(unsigned kinds) const { return kinds_ != 0 && (kinds_ & ~kinds) == 0; }
  bool declares(std::string_view property) const;
  SchemaView property(std::string_view name) const;
  SchemaView item(std::size_t index) const;
  // The values of enum and const, in the root; hints, since an alternative may allow others.
  const std::vector<const Value*>& enumerated() const { return enumerated_; }

 private:
  void add(const Value& schema, int depth);
  void unite(const SchemaView& other);
  SchemaView alternatives(const std::vector<const Value*>& schemas) const;

  const Value* root_ = nullptr;
  unsigned kinds_ = 0;
  std::vector<const Dict*> sources_;  // schemas with properties or items
  std::vector<const Value*> enumerated_;
};

// Fails with one line that begins with the path of what is malformed, such as
// "tools[0].function.parameters.properties.city.type: ...".
void check_schema(const Value& schema, const std::string& path);

}  // namespace m3::chat
