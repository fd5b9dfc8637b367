// A body of /v1/messages, checked and translated into a chat body (chat_call.h).
//
// | Anthropic                        | chat                                                            |
// |----------------------------------|-----------------------------------------------------------------|
// | system                           | a first system message; blocks joined by a blank line           |
// | content blocks text, image       | the message's text, or parts (video: as image, beyond the API)   |
// | thinking                         | reasoning_content                                               |
// | tool_use                         | tool_calls                                                      |
// | tool_result                      | tool messages before the rest of the user's message             |
// | an assistant message at the end  | is continued                                                    |
// | tools[].input_schema             | tools[].function.parameters                                     |
// | tool_choice auto, any, tool      | auto, required, the named function                              |
// | thinking                         | thinking.type, disabled where absent; budget_tokens             |
// | stop_sequences, output_config    | stop, response_format and reasoning_effort                      |
#pragma once

#include "src/chat/template/value.h"
#include "src/server/field_names.h"

namespace m3::server {

struct AnthropicRequest {
  chat::Value chat_body;
  FieldNames names;
  bool stream = false;
  bool show_thinking = true;
};

struct AnthropicReadOptions {
  bool needs_max_tokens = true;  // not for counting
  bool allow_unknown_fields = false;
};

// Errors (ApiError 400): the first field that is wrong, under its own name.
AnthropicRequest read_anthropic_request(const chat::Value& body, const AnthropicReadOptions& options);

}  // namespace m3::server
