// A server inside the test process, on a free port.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "src/server/server.h"
#include "tests/support/http_client.h"
#include "tests/support/scripted_engine.h"

namespace m3::test {

using Json = nlohmann::json;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool under_sanitizer = true;
#elif defined(__has_feature)
inline constexpr bool under_sanitizer = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool under_sanitizer = false;
#endif

// Seconds that a client waits for a byte.
inline constexpr int patience = under_sanitizer ? 500 : 60;

class TestServer {
 public:
  // With a scripted engine and the tokenizer and template of the checkpoint that ships.
  explicit TestServer(ScriptedEngine::Script script, server::ServerOptions options = {});
  // With the checkpoint that ships, or the one named in `engine`.
  explicit TestServer(server::ServerOptions options = {}, EngineOptions engine = {});

  server::Server& server() { return *server_; }
  ScriptedEngine& engine() { return *engine_; }  // of a scripted one
  std::uint16_t port() const { return server_->port(); }
  HttpClient connect(int seconds = patience, int receive_buffer = 0) const {
    return HttpClient(port(), tls_, seconds, receive_buffer);
  }

  HttpResponse get(const std::string& path) const { return connect().request("GET", path); }
  HttpResponse post(const std::string& path, const Json& body) const {
    return connect().request("POST", path, body.dump());
  }
  // 200 expected.
  Json json(const std::string& path, const Json& body) const;

 private:
  ScriptedEngine* engine_ = nullptr;
  bool tls_;
  std::unique_ptr<server::Server> server_;
};

// Options for tests: any port, few words on standard error.
server::ServerOptions test_options();

// Whether it becomes true within ten seconds.
bool eventually(const std::function<bool()>& condition);

}  // namespace m3::test
