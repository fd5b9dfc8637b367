// Sockets: accepts connections and runs HTTP/1.1 on them, plain or under TLS (session.h), on its own threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "src/server/http.h"
#include "src/server/options.h"

namespace m3::server {

// Called on an io thread for each whole request. Must not block; the exchange may be answered at any time.
using Dispatch = std::function<void(const std::shared_ptr<Exchange>&)>;
// Called with the head of a request before its body is read: an early reply refuses it.
using CheckHead = std::function<std::optional<HttpReply>(HttpRequest&)>;
// Called when a reply is over: how many bytes of it were sent, and whether that was all of it.
using Finished = std::function<void(const Exchange&, Seconds elapsed, std::size_t bytes, bool whole)>;

struct ListenerHooks {
  Dispatch dispatch;
  CheckHead check_head;
  Finished finished;
};

class Listener {
 public:
  // Binds and listens. Errors: the address cannot be had; a certificate or key cannot be read.
  Listener(const ServerOptions& options, ListenerHooks hooks);
  ~Listener();  // stop()

  void start();
  std::uint16_t port() const;
  // No further connections; those that are open are closed after the next reply.
  void close();
  // Cuts what is still open.
  void stop();
  // Connections within a request or its reply.
  std::size_t busy() const;
  // Whether only this machine can reach the address.
  bool is_local() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace m3::server
