// A /v1/completions request made ready for the engine.
#pragma once

#include <string>
#include <vector>

#include "m3/request.h"
#include "src/server/fields.h"
#include "src/server/sampling_fields.h"
#include "src/server/server.h"

namespace m3::server {

struct CompletionCall : StreamFields {
  std::string model;
  Request request;  // but for its prompt, which is each of these
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::string> texts;  // of the prompts, where echo asks for them
  bool echo = false;
  bool only_echo = false;        // max_tokens 0: the one token that the engine makes at least is left out
  int logprobs = -1;             // as in Request
  bool prompt_logprobs = false;  // asked for by that name, and not only for the echo
  bool return_token_ids = false, tokens_as_ids = false;
};

// Errors (ApiError, m3::Error): the first field that is wrong.
CompletionCall read_completion_call(const Server& server, const chat::Value& body);

}  // namespace m3::server
