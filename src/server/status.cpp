// /health, /ping, /version, /v1/models.
#include "src/server/json.h"
#include "src/server/routes.h"
#include "src/server/server.h"

namespace m3::server {
namespace {

const char* state_name(Server::State state) {
  switch (state) {
    case Server::State::loading: return "loading";
    case Server::State::ready: return "ready";
    case Server::State::draining: return "draining";
    case Server::State::failed: return "failed";
  }
  return "";
}

}  // namespace

// 200 only where requests are answered.
void health(Server& server, const std::shared_ptr<Exchange>& exchange) {
  HttpReply reply;
  Server::State state = server.state();
  if (state == Server::State::ready && !server.model().engine->healthy()) state = Server::State::failed;
  if (state != Server::State::ready) {
    reply.status = 503;
    reply.headers.emplace_back("Retry-After", "1");
  }
  reply.body = to_text({{"status", state_name(state)}});
  exchange->send(std::move(reply));
}

void ping(Server& server, const std::shared_ptr<Exchange>& exchange) { health(server, exchange); }

void version_info(Server&, const std::shared_ptr<Exchange>& exchange) {
  exchange->send({.body = to_text({{"version", std::string(version())}})});
}

void models(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Model& model = server.model();
  const auto describe = [&](const std::string& name) {
    return Json{{"id", name},
                {"object", "model"},
                {"created", model.created},
                {"owned_by", "m3"},
                {"root", model.name},
                {"parent", nullptr},
                {"max_model_len", model.engine->info().max_model_len}};
  };
  const auto& values = exchange->request().path_values;
  if (const auto asked = values.find("model"); asked != values.end()) {
    if (!server.serves(asked->second)) {
      throw ApiError(404, "the model '" + shortened(asked->second) + "' is not served here", "model",
                     "model_not_found");
    }
    return exchange->send({.body = to_text(describe(asked->second))});
  }
  Json list = Json::array();
  if (server.options().served_names.empty()) list.push_back(describe(model.name));
  for (const std::string& name : server.options().served_names) list.push_back(describe(name));
  exchange->send({.body = to_text({{"object", "list"}, {"data", std::move(list)}})});
}

}  // namespace m3::server
