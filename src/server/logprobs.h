// Log-probabilities in the forms of the OpenAI APIs.
#pragma once

#include "m3/request.h"
#include "src/server/json.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::server {

// How a token is written: its text, or "token_id:5". Text of a token that is not whole characters has U+FFFD in it;
// "bytes" beside it has them all.
std::string token_name(const Tokenizer& tokenizer, TokenId id, bool as_id);

// A chat reply's "content" entries of an event: {token, logprob, bytes, top_logprobs}.
void append_chat_logprobs(const Tokenizer& tokenizer, const Event& event, bool as_ids, Json& entries);

// vLLM's prompt_logprobs: for each prompt token an object {id: {logprob, rank, decoded_token}}, null for the first.
Json prompt_logprobs_json(const Tokenizer& tokenizer, const Event& event);

}  // namespace m3::server
