#include "src/server/routes.h"

namespace m3::server {

void add_routes(Router& router, Server& server) {
  const auto bind = [&server](HandlerFunction* function) {
    return [&server, function](const std::shared_ptr<Exchange>& exchange) { function(server, exchange); };
  };
  constexpr auto openai = ErrorStyle::openai;
  router.add({"GET", "/health", bind(health), openai, true, true});
  router.add({"GET", "/ping", bind(ping), openai, true, true});
  router.add({"POST", "/ping", bind(ping), openai, true, true});
  router.add({"GET", "/version", bind(version_info), openai, false, true});
  router.add({"GET", "/v1/models", bind(models), openai});
  router.add({"GET", "/v1/models/{model}", bind(models), openai});
  router.add({"POST", "/v1/chat/completions", bind(chat_completions), openai});
}

}  // namespace m3::server
