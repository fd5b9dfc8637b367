// The text a model wrote for a value, as JSON of the type its schema asks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/chat/schema.h"

namespace m3::chat {

// Escaped for the inside of a JSON string; text is whole characters.
void append_json_escaped(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

// JSON for a leaf. Null, numbers and booleans only where the schema allows them and the text is one; JSON text where
// an object or array is allowed; otherwise the text itself as a string, whatever the schema says.
std::string coerce_leaf(std::string_view text, const SchemaView& schema);

// Whether text, as the beginning of a leaf, is sure to become a string under a schema that allows one.
bool is_surely_string(std::string_view text, const SchemaView& schema);

// The elements, each as JSON, that a leaf in an array's place stands for: those of a JSON array, none for no text,
// else the text as one element.
std::vector<std::string> coerce_elements(std::string_view text, const SchemaView& schema);

std::string_view trim_spaces(std::string_view text);

}  // namespace m3::chat
