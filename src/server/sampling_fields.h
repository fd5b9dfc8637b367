// The fields of a request that every generating API shares.
#pragma once

#include "m3/request.h"
#include "src/server/fields.h"
#include "src/server/model.h"
#include "src/server/options.h"

namespace m3::server {

// temperature, top_p, top_k, min_p, penalties, logit_bias, seed, stop, stop_token_ids, ignore_eos, min_tokens,
// include_stop_str_in_output, n, priority, cache_salt, prompt_logprobs, bad_words, allowed_token_ids,
// skip_special_tokens. Not max_tokens and logprobs, whose names and meanings differ.
void read_sampling(Fields& fields, const Model& model, const ServerOptions& options, Request& request);

// "stream" and "stream_options".
struct StreamFields {
  bool stream = false;
  bool include_usage = false;     // a usage chunk at a stream's end
  bool continuous_usage = false;  // usage in every chunk
};
StreamFields read_stream(Fields& fields);

// Fields that are fine as long as they ask for nothing, and vLLM's that are not implemented. Errors: the one that does.
void read_without_effect(Fields& fields);

// "truncate_prompt_tokens": of each prompt's ids so many are kept, the last ones; -1 keeps what the context holds
// beside a reply of the request's max_tokens.
class PromptLimit {
 public:
  PromptLimit(Fields& fields, const ModelInfo& info);
  void apply(std::vector<TokenId>& ids, const Request& request) const;

 private:
  std::optional<std::int64_t> most_;
  std::int64_t context_;
};

// "model": absent, or a name that is served. Errors (ApiError): 404 for another one.
class Server;
std::string read_model_name(Fields& fields, const Server& server);

}  // namespace m3::server
