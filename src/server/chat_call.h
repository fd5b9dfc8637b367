// A chat request made ready for the engine. Every chat API comes this way: /v1/chat/completions with its body as it is,
// others with a body that they translated.
#pragma once

#include <string>

#include "m3/request.h"
#include "src/chat/messages.h"
#include "src/media/references.h"
#include "src/server/fields.h"
#include "src/server/sampling_fields.h"
#include "src/server/server.h"

namespace m3::server {

struct ChatCall : StreamFields {
  std::string model;  // the name the client used
  chat::ChatRequest chat;
  Request request;  // with prompt ids, sampling, constraint and reasoning
  // Pictures that add_pictures() (media_call.h) will put in place of the prompt's placeholders.
  std::vector<media::Reference> pictures;

  bool include_reasoning = true;  // false: left out of the reply
  bool reasoning_split = true;    // false: within content, between <think> tags
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // "token_id:5" in place of the text in log-probabilities
  std::string echo;            // what content begins with
};

// Checks everything that can be checked without the engine and without looking at pictures, renders and encodes the prompt. Errors (ApiError,
// m3::Error): the first field that is wrong.
ChatCall read_chat_call(const Server& server, const chat::Value& body);

// The members of thinking, response_format and tools in a body whose kinds are checked. Errors (ApiError 400): one of a
// name that nothing here reads.
void check_nested_names(const chat::Value& body);

// For what looks at a chat without a reply to it: the body of a chat request, every field of it checked as there, and
// names that only the caller reads. Errors: as read_chat_call(), but not for a long prompt.
chat::ChatRequest check_chat(const Server& server, const chat::Value& body,
                             std::initializer_list<std::string_view> also = {});

// The messages and what shapes the prompt, with the server's --default-chat-template-kwargs filled in. Errors: m3::Error,
// one line that begins with the field's path.
chat::ChatRequest read_chat(const Server& server, const chat::Value& body);

// The prompt alone: checked messages rendered by the template, in ids. Errors as above.
std::vector<TokenId> encode_chat(const Model& model, const chat::ChatRequest& request);
// Errors: 400 where the model has no chat template.
const chat::ChatTemplate& require_template(const Model& model);
// Errors: 400 with code context_length_exceeded.
void check_prompt_length(const Model& model, std::size_t tokens, const std::string& param);

}  // namespace m3::server
