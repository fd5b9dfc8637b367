// JSON in and out of template values, as Python's json module does it.
#pragma once

#include <string>
#include <string_view>

#include "src/chat/template/value.h"

namespace m3::chat {

// Parses strict JSON (RFC 8259; no NaN). Every value is message data. Integers of any size keep their digits, key
// order is kept, a repeated key keeps its first place and its last value. Fails with one line that begins with
// `what` and says where; nesting past max_value_depth is refused.
Value parse_json(std::string_view text, std::string_view what);
// The same, nothing on failure; `error` says why.
std::optional<Value> try_parse_json(std::string_view text, std::string& error);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<Text> indent;  // one level's worth; absent: one line
  Text item_separator{", ", Origin::template_text};
  Text key_separator{": ", Origin::template_text};
};

// json.dumps(). Brackets, commas and escapes take the origin of the value they belong to. Faults on what JSON cannot
// hold (undefined, macros, NaN is written as Python writes it).
Text to_json(const Value& value, const JsonStyle& style);

}  // namespace m3::chat
