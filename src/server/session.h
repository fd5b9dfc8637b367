// One connection: reads requests, hands them on, writes replies. All on one strand.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <string>

#include "src/server/errors.h"
#include "src/server/listener.h"

namespace m3::server {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

// What the connections of a listener share.
struct SessionShared {
  ServerOptions options;
  ListenerHooks hooks;
  std::atomic<bool> closing = false;  // no request after the present one
  std::atomic<std::size_t> connections = 0;
  std::atomic<std::size_t> busy = 0;        // of them, within a request or its reply
  std::atomic<std::size_t> body_bytes = 0;  // of bodies that are held
};

// What one body takes of body_bytes, given back at the end, when the body and what was read from it are gone.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<SessionShared> shared) : shared_(std::move(shared)) {}
  ~BodyShare();
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  // False: all together hold too much. Small ones always pass: connections bound them.
  bool grow_to(std::size_t bytes);

 private:
  std::shared_ptr<SessionShared> shared_;
  std::size_t bytes_ = 0;
};

class SessionBase {
 public:
  virtual ~SessionBase() = default;
  // Closes the connection. From any thread.
  virtual void cut() = 0;
};

// `Stream` is Tcp::socket or ssl::stream<Tcp::socket>.
template <typename Stream>
class Session final : public SessionBase, public std::enable_shared_from_this<Session<Stream>> {
 public:
  Session(std::shared_ptr<SessionShared> shared, Stream stream);
  ~Session() override;
  // Runs until the connection ends; keeps itself alive.
  void start();
  void cut() override;

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  asio::awaitable<void> run();
  asio::awaitable<bool> handshake();
  // One request and its reply; whether the connection may go on.
  asio::awaitable<bool> one_request();
  asio::awaitable<bool> read_head(Parser& parser);
  asio::awaitable<bool> read_body(Parser& parser, HttpRequest& request);
  asio::awaitable<bool> reply(const std::shared_ptr<Exchange>& exchange, bool old_version, bool keep);
  // Coroutines take no class by value: g++ 12 destroys such temporaries of a co_await twice.
  // Answers a request, with what is known already or through dispatch(); whether the connection may go on.
  asio::awaitable<bool> answer(HttpRequest& request, std::optional<HttpReply>& known, bool old_version, bool keep);
  // Answers with an error and ends the connection: what follows in it is not understood, or not wanted.
  asio::awaitable<void> refuse(const HttpRequest& given, const ApiError& error);
  asio::awaitable<void> close_gently();
  asio::awaitable<bool> write_all(std::string_view bytes);
  // Waits for more bytes in buffer_ until the deadline.
  asio::awaitable<bool> read_more(std::chrono::steady_clock::time_point deadline);
  // Keeps one read going, also while a reply is made: that is how a client that goes is seen.
  void start_read();
  void read_ended(boost::system::error_code error);
  void lose_client();
  void set_idle(bool idle);
  HttpRequest take_request(Parser& parser);
  Tcp::socket& socket();

  std::shared_ptr<SessionShared> shared_;
  Stream stream_;
  std::string client_;
  boost::beast::flat_buffer buffer_;
  asio::steady_timer changed_;      // expires never; cancelled when something happened
  asio::steady_timer write_limit_;  // closes the socket
  std::shared_ptr<Exchange> exchange_;
  bool reading_ = false, idle_ = true, cut_ = false;
  bool read_failed_ = false;  // no further byte comes: half_closed_ or gone_ says why
  bool half_closed_ = false;  // the client has said all and may wait for a reply
  bool gone_ = false;
  std::size_t written_ = 0;  // of the present reply
  bool whole_ = false;       // it was written to its end
};

extern template class Session<Tcp::socket>;
extern template class Session<asio::ssl::stream<Tcp::socket>>;

}  // namespace m3::server
