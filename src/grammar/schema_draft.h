// What schema.cpp (keywords) and schema_finish.cpp (what they come to) share.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/grammar/schema.h"

namespace m3::grammar {

inline constexpr int max_depth = 64;                      // of references and combinations on one value
inline constexpr std::int64_t max_count = 1'000'000'000;  // counts beyond are taken as this

// A number's value, not through a double where it is whole.
Decimal exact(const Json& value);

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

}  // namespace m3::grammar
