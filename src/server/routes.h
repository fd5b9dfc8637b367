// Every path that is served, and the functions behind them.
#pragma once

#include "src/server/router.h"

namespace m3::server {

class Server;

// New paths go here: a handler is a function below (or in a header of its own), and one line in routes.cpp.
void add_routes(Router& router, Server& server);

using HandlerFunction = void(Server& server, const std::shared_ptr<Exchange>& exchange);

HandlerFunction health, ping, models, version_info;  // status.cpp
HandlerFunction chat_completions;                    // openai_chat.cpp
HandlerFunction tokenize, detokenize, load, metrics, reset_prefix_cache, abort_requests, chat_render,
    chat_parse;                           // vllm_routes.cpp
HandlerFunction completions, embeddings;  // openai_completions.cpp

}  // namespace m3::server
