// The fields of a chat request beside its messages: tools, thinking, template arguments.
#pragma once

#include <string_view>

#include "src/chat/coerce.h"
#include "src/chat/messages.h"

namespace m3::chat {

// A member that is there and not null.
const Value* present(const Dict& dict, std::string_view name);

// "a string", "an object", "null": how an error names what was found.
const char* json_type(const Value& value);

// Fills everything but the messages. Errors name the field.
void read_request_fields(const Dict& body, ChatRequest& request);

}  // namespace m3::chat
