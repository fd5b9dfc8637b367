// The fields of a request that every generating API shares.
#pragma once

#include "m3/request.h"
#include "src/server/fields.h"
#include "src/server/model.h"
#include "src/server/options.h"

namespace m3::server {

// temperature, top_p, top_k, min_p, penalties, logit_bias, seed, stop, stop_token_ids, ignore_eos, min_tokens,
// include_stop_str_in_output, n, priority, cache_salt, prompt_logprobs. Not max_tokens and logprobs, whose names and
// meanings differ.
void read_sampling(Fields& fields, const Model& model, const ServerOptions& options, Request& request);

// "model": absent, or a name that is served. Errors (ApiError): 404 for another one.
class Server;
std::string read_model_name(Fields& fields, const Server& server);

}  // namespace m3::server
