// Any bytes on a connection to a server, in pieces, by a client that may leave at any moment. Whatever comes, the
// server answers with HTTP and no fault of its own, goes on serving, and forgets a client that has gone.
//
// The first byte says how: its low bits the length of the pieces, the next ones after how many bytes of the replies the
// client leaves, a further one whether it closes its sending side before it reads. The rest goes over the wire.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "src/server/server.h"
#include "tests/support/scripted_engine.h"

namespace {

using namespace m3;

server::Server& shared_server() {
  static server::Server server = [] {
    server::ServerOptions options;
    options.host = "127.0.0.1";
    options.port = 0;
    options.log_level = "critical";
    options.body_limit = 1 << 16;
    options.header_limit = 4096;
    options.header_count_limit = 32;
    options.queue_limit = 1 << 16;
    options.header_timeout = options.idle_timeout = options.keep_alive_timeout = server::Seconds(0.02);
    return server::Server(options, [](const LoadProgress&) {
      const std::string shipped = std::string(M3_MODELS) + "/m3-tiny-chat";
      const Tokenizer tokenizer = Tokenizer::load(shipped);
      auto engine = std::make_unique<test::ScriptedEngine>(tokenizer, [](const Request& request, int) {
        std::string text = "<mm:think>Well.</mm:think>";
        for (std::size_t i = 0; i < 50 + request.prompt_ids.size() % 7; ++i) text += " word 😀";
        return test::ScriptedEngine::Reply{text};
      });
      return std::make_unique<server::Model>(
          server::Model{std::move(engine), tokenizer, chat::load_chat_template(shipped), "", "scripted"});
    });
  }();
  server.wait_until_loaded();
  return server;
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

class Connection {
 public:
  explicit Connection(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool open = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    require(open, "the server takes connections");
    const timeval limit{30, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return;  // it has closed already
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  void end_of_requests() { ::shutdown(socket_, SHUT_WR); }
  // At most `most` bytes, fewer where the server closes.
  std::string receive(std::size_t most) {
    std::string out;
    std::array<char, 4096> buffer{};
    while (out.size() < most) {
      const ssize_t count = ::recv(socket_, buffer.data(), std::min(buffer.size(), most - out.size()), 0);
      if (count < 0 && errno == EINTR) continue;  // libFuzzer's clock: its signal ends a call that has a time limit
      require(count >= 0 || errno == ECONNRESET, "the server closes what it does not understand");
      if (count <= 0) break;
      out.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return out;
  }

 private:
  int socket_;
};

void check_reply(const std::string& reply) {
  const std::string_view begin = "HTTP/1.1 ";
  require(begin.substr(0, reply.size()) == reply.substr(0, begin.size()), "a reply begins with a status line");
  require(!reply.starts_with("HTTP/1.1 5"), "no fault of the server's own");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  server::Server& server = shared_server();
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::size_t pieces[] = {1 << 20, 1 << 20, 1, 3, 17, 100, 1000, 1 << 20};
  constexpr std::size_t leaves[] = {1 << 24, 1 << 24, 1 << 24, 0, 1, 300, 1500, 1 << 24};
  const std::size_t piece = std::max(pieces[data[0] & 7], bytes.size() / 64 + 1);
  const std::size_t leave = leaves[data[0] >> 3 & 7];
  {
    Connection client(server.port());
    for (std::size_t at = 0; at < bytes.size(); at += piece) client.send(bytes.substr(at, piece));
    if ((data[0] & 64) != 0) client.end_of_requests();
    check_reply(client.receive(leave));
  }
  bool empty = false;
  for (int i = 0; i < 30'000 && !empty; ++i) {
    empty = server.generations().size() == 0;
    if (!empty) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(empty, "requests end when their client has gone");
  require(server.state() == server::Server::State::ready, "the server goes on");
  return 0;
}
