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

// A completion's "logprobs": tokens, their log-probabilities, the most probable ones, and where each begins in the text,
// in characters.
class CompletionLogprobs {
 public:
  void add(const Tokenizer& tokenizer, const Event& event, bool as_ids);
  // The prompt's, `top` of each; `first` is the request's first event.
  void add_prompt(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt, const Event& first, bool as_ids,
                  int top);
  // What came since the last call.
  Json take();

 private:
  void add_token(const Tokenizer& tokenizer, const TokenLogprob& token, const std::vector<TokenLogprob>& tops,
                 std::size_t top, bool as_ids);
  Json tokens_ = Json::array(), logprobs_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
  std::size_t offset_ = 0;
};

// vLLM's prompt_logprobs: for each prompt token an object {id: {logprob, rank, decoded_token}}, null for the first.
Json prompt_logprobs_json(const Tokenizer& tokenizer, const Event& event);

}  // namespace m3::server
