#include "src/server/routes.h"

#include "src/server/api_routes.h"

namespace m3::server {

void add_routes(Router& router, Server& server) {
  const auto bind = [&server](HandlerFunction* function) {
    return [&server, function](const std::shared_ptr<Exchange>& exchange) { function(server, exchange); };
  };
  constexpr auto openai = ErrorStyle::openai;
  router.add({"GET", "/health", bind(health), openai, true, true, false, true});
  router.add({"GET", "/ping", bind(ping), openai, true, true, false, true});
  router.add({"POST", "/ping", bind(ping), openai, true, true, false, true});
  router.add({"GET", "/version", bind(version_info), openai, false, true});
  router.add({"GET", "/v1/models", bind(models), openai});
  router.add({"GET", "/v1/models/{model}", bind(models), openai, false, false, true});
  router.add({"POST", "/v1/chat/completions", bind(chat_completions), openai});
  add_responses_routes(router, server);
  add_anthropic_routes(router, server);
  add_page_routes(router, server);
  router.add({"POST", "/v1/completions", bind(completions), openai});
  router.add({"POST", "/tokenize", bind(tokenize), openai});
  router.add({"POST", "/detokenize", bind(detokenize), openai});
  router.add({"GET", "/load", bind(load), openai});
  router.add({"GET", "/metrics", bind(metrics), openai, true, true});
  router.add({"POST", "/reset_prefix_cache", bind(reset_prefix_cache), openai});
  router.add({"POST", "/abort_requests", bind(abort_requests), openai});
  router.add({"POST", "/v1/chat/render", bind(chat_render), openai});
  router.add({"POST", "/v1/chat/parse", bind(chat_parse), openai});
  router.add({"POST", "/v1/embeddings", bind(embeddings), openai});
}

}  // namespace m3::server
