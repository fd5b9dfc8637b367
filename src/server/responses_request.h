// A body of /v1/responses, checked and translated into a chat body (chat_call.h).
//
// Neighbouring reasoning, message and function_call items of the assistant become one chat message; function_call_output
// becomes a tool message; instructions a system message that is not carried on to later responses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/chat/template/value.h"
#include "src/server/field_names.h"
#include "src/server/json.h"
#include "src/server/responses_store.h"

namespace m3::server {

struct ResponsesRequest {
  chat::Value chat_body;
  FieldNames names;
  std::vector<chat::Value> messages;  // of the conversation, without the instructions
  AddedList added;                    // by the requests before this one
  std::size_t added_messages = 0;     // of these, by this one
  std::size_t body_bytes = 0;         // of the request, which the caller fills in
  bool stream = false;
  bool store = true;
  bool encrypted_reasoning = false;  // reasoning items carry their text for clients that keep no content
  Json echo;                         // the fields that a response repeats
};

// Errors (ApiError): the first field that is wrong, under its own name; an unknown previous_response_id.
ResponsesRequest read_responses_request(const chat::Value& body, const ResponseStore& store, bool allow_unknown_fields);

// What reasoning.encrypted_content holds: the text in base64, no secret. Decoding gives nothing for anything else.
std::string pack_reasoning(const std::string& text);
std::optional<std::string> unpack_reasoning(const std::string& packed);

}  // namespace m3::server
