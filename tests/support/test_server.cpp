#include "tests/support/test_server.h"

#include <gtest/gtest.h>

namespace m3::test {
namespace {

const std::string shipped = std::string(M3_MODELS) + "/m3-tiny-chat";

server::ServerOptions quiet(server::ServerOptions options) {
  options.host = "127.0.0.1";
  options.port = 0;
  if (options.log_level == "info") options.log_level = "critical";
  return options;
}

}  // namespace

server::ServerOptions test_options() { return quiet({}); }

TestServer::TestServer(ScriptedEngine::Script script, server::ServerOptions options)
    : tls_(!options.ssl_certificate.empty()) {
  server_ = std::make_unique<server::Server>(quiet(std::move(options)), [&](const LoadProgress&) {
    const Tokenizer tokenizer = Tokenizer::load(shipped);
    auto engine = std::make_unique<ScriptedEngine>(tokenizer, script);
    engine_ = engine.get();
    return std::make_unique<server::Model>(
        server::Model{std::move(engine), tokenizer, chat::load_chat_template(shipped), "", "scripted"});
  });
  server_->wait_until_loaded();
}

TestServer::TestServer(server::ServerOptions options, EngineOptions engine) : tls_(!options.ssl_certificate.empty()) {
  if (engine.checkpoint.empty()) engine.checkpoint = shipped;
  if (engine.max_model_len == 0) engine.max_model_len = 2048;
  server_ = std::make_unique<server::Server>(quiet(std::move(options)), [engine](const LoadProgress& progress) {
    return server::load_model(engine, "", progress);
  });
  server_->wait_until_loaded();
}

Json TestServer::json(const std::string& path, const Json& body) const {
  const HttpResponse response = post(path, body);
  EXPECT_EQ(response.status, 200) << path << " " << body.dump() << "\n" << response.body;
  return response.status == 200 ? Json::parse(response.body) : Json();
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

}  // namespace m3::test
