// What a request asks of the form of its reply: the fields beside the messages, brought into the engine's terms.
#pragma once

#include "m3/request.h"
#include "src/chat/messages.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::chat {

// Fills `request.constraint` and `request.reasoning` from a /v1/chat/completions body that parse_chat_request() has
// read into `chat`. Nothing else of `request` is touched. The fields:
//
// - response_format: text, json_object, json_schema (json_schema.schema; always enforced)
// - structured_outputs {json, json_object, regex, choice, grammar}, and the older guided_json, guided_regex,
//   guided_choice, guided_grammar: vLLM's
// - tools with tool_choice (auto, none, required, a named function) and parallel_tool_calls; function.strict
// - thinking_budget, thinking_token_budget, thinking.budget_tokens: one thing, a limit of reasoning tokens
//
// A reply in a constrained form and tools under "auto": the form or calls. Errors: one line that begins with the field's
// path; two fields that contradict each other; a schema keyword that cannot be enforced; a tokenizer without M3's think
// tags where they are needed.
void apply_reply_rules(const Value& body, const ChatRequest& chat, const Tokenizer& tokenizer, Request& request);

}  // namespace m3::chat
