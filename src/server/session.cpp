#include "src/server/session.h"

#include <malloc.h>

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <random>

#include "src/server/errors.h"
#include "src/server/request_id.h"

namespace m3::server {
namespace {

namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;
constexpr auto as_result = asio::as_tuple(asio::use_awaitable);

constexpr std::size_t read_piece = std::size_t{64} << 10;
constexpr std::size_t write_piece = std::size_t{64} << 10;
// Bytes of further requests that may wait while a reply is made.
constexpr std::size_t pipeline_limit = std::size_t{64} << 10;

std::chrono::steady_clock::time_point after(Seconds time) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(time);
}

// Of whom no request was understood.
const HttpRequest nobody;

ApiError problem_of(const ErrorCode& error, std::size_t body_limit) {
  if (error == http::error::body_limit) return {413, fmt::format("the body is longer than {} bytes", body_limit)};
  return {400, fmt::format("this is not an HTTP/1.1 request: {}", error.message())};
}

// A body that is taken however much others hold.
constexpr std::size_t small_body = std::size_t{1} << 20;

// How often a client that has said all is asked whether it still reads.
constexpr Seconds probe_interval{1};

// What a client that waits takes without a word: before a reply an interim one, among events a comment.
std::string_view probe_bytes(bool begun, bool chunked) {
  if (!begun) return "HTTP/1.1 100 Continue\r\n\r\n";
  return chunked ? "3\r\n:\n\n\r\n" : ":\n\n";
}

// What is wrong with a head that could be read (RFC 9112, 3.2); empty: nothing.
template <typename Message>
std::string head_problem(const Message& message) {
  const std::string_view target(message.target().data(), message.target().size());
  if (target.find('#') != std::string_view::npos) return "a request's target has no #";
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    if (target.find_first_of("/?", scheme.size()) == scheme.size() || target.size() == scheme.size()) {
      return "a request's target without a host";
    }
  }
  const auto hosts = message.count(http::field::host);
  if (hosts > 1) return "a request has one Host header, not several";
  if (hosts == 0 && message.version() >= 11) return "an HTTP/1.1 request needs a Host header";
  return {};
}

// Of "http://host:port/path?query", as proxies are sent it, or of the path and query alone: these.
std::string_view origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    const std::size_t end = target.find_first_of("/?", scheme.size());
    return end == std::string_view::npos ? std::string_view("/") : target.substr(end);
  }
  return target;
}

}  // namespace

// glibc keeps freed memory, in each of its arenas: after a JSON body of 30 MB and a million members 740 MB. Giving it
// back takes a twentieth of the time that such a body took. Large pieces go back at once (server.cpp).
BodyShare::~BodyShare() {
  shared_->body_bytes -= bytes_;
  if (bytes_ > small_body) malloc_trim(0);
}

bool BodyShare::grow_to(std::size_t bytes) {
  shared_->body_bytes += bytes - bytes_;
  bytes_ = bytes;
  return bytes <= small_body || shared_->body_bytes <= shared_->options.body_memory;
}

template <typename Stream>
Session<Stream>::Session(std::shared_ptr<SessionShared> shared, Stream stream)
    : shared_(std::move(shared)),
      stream_(std::move(stream)),
      changed_(stream_.get_executor()),
      write_limit_(stream_.get_executor()) {
  ++shared_->connections;
  ErrorCode ignored;
  const auto address = socket().remote_endpoint(ignored);
  if (!ignored) client_ = fmt::format("{}:{}", address.address().to_string(), address.port());
  socket().set_option(Tcp::no_delay(true), ignored);  // a token is one small packet
}

template <typename Stream>
Session<Stream>::~Session() {
  set_idle(true);
  --shared_->connections;
}

template <typename Stream>
Tcp::socket& Session<Stream>::socket() {
  if constexpr (std::is_same_v<Stream, Tcp::socket>) {
    return stream_;
  } else {
    return stream_.next_layer();
  }
}

template <typename Stream>
void Session<Stream>::start() {
  asio::co_spawn(
      stream_.get_executor(), [self = this->shared_from_this()] { return self->run(); }, asio::detached);
}

template <typename Stream>
void Session<Stream>::set_idle(bool idle) {
  if (idle_ == idle) return;
  idle_ = idle;
  if (idle) {
    --shared_->busy;
  } else {
    ++shared_->busy;
  }
}

template <typename Stream>
void Session<Stream>::cut() {
  asio::dispatch(stream_.get_executor(), [self = this->shared_from_this()] {
    self->cut_ = true;
    if (self->exchange_) self->exchange_->client_gone();
    ErrorCode ignored;
    self->socket().close(ignored);
    self->changed_.cancel();
  });
}

template <typename Stream>
asio::awaitable<void> Session<Stream>::run() {
  if (co_await handshake()) {
    while (co_await one_request()) {}
  }
  if (exchange_) exchange_->client_gone();
  ErrorCode ignored;
  socket().close(ignored);
  changed_.cancel();
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::handshake() {
  if constexpr (std::is_same_v<Stream, Tcp::socket>) {
    co_return true;
  } else {
    write_limit_.expires_at(after(shared_->options.header_timeout));
    write_limit_.async_wait([self = this->shared_from_this()](ErrorCode error) {
      if (!error) self->cut();
    });
    const auto [error] = co_await stream_.async_handshake(asio::ssl::stream_base::server, as_result);
    write_limit_.cancel();
    co_return !error;
  }
}

template <typename Stream>
void Session<Stream>::start_read() {
  if (reading_ || read_failed_ || (exchange_ && buffer_.size() >= pipeline_limit)) return;
  reading_ = true;
  stream_.async_read_some(buffer_.prepare(read_piece),
                          [self = this->shared_from_this()](ErrorCode error, std::size_t count) {
                            self->reading_ = false;
                            self->buffer_.commit(count);
                            if (error) {
                              self->read_ended(error);
                            } else if (self->exchange_) {
                              self->start_read();
                            }
                            self->changed_.cancel();
                          });
}

// The end of the bytes may be the end of the requests alone: such a client still waits for its reply. A socket that was
// closed answers the next byte with a reset, which ends the wait below.
template <typename Stream>
void Session<Stream>::read_ended(ErrorCode error) {
  read_failed_ = true;
  constexpr bool plain = std::is_same_v<Stream, Tcp::socket>;  // TLS has no half-closed connections
  if (!plain || error != asio::error::eof) return lose_client();
  half_closed_ = true;
  socket().async_wait(Tcp::socket::wait_error, [self = this->shared_from_this()](ErrorCode) {
    self->lose_client();
    self->changed_.cancel();
  });
}

template <typename Stream>
void Session<Stream>::lose_client() {
  gone_ = true;
  if (exchange_) exchange_->client_gone();
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::read_more(std::chrono::steady_clock::time_point deadline) {
  const std::size_t before = buffer_.size();
  start_read();
  while (buffer_.size() == before && reading_ && std::chrono::steady_clock::now() < deadline) {
    changed_.expires_at(deadline);
    co_await changed_.async_wait(as_result);
  }
  co_return buffer_.size() > before;
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    write_limit_.expires_at(after(shared_->options.write_timeout));
    write_limit_.async_wait([self = this->shared_from_this()](ErrorCode error) {
      if (!error) self->cut();
    });
    const auto [error, count] =
        co_await stream_.async_write_some(asio::buffer(bytes.data(), std::min(bytes.size(), write_piece)), as_result);
    write_limit_.cancel();
    if (error || cut_) co_return false;
    written_ += count;
    bytes.remove_prefix(count);
  }
  co_return true;
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::read_head(Parser& parser) {
  const ServerOptions& options = shared_->options;
  set_idle(buffer_.size() == 0);
  auto deadline = after(idle_ ? options.keep_alive_timeout : options.header_timeout);
  while (!parser.is_header_done()) {
    ErrorCode error;
    if (buffer_.size() > 0) {
      if (idle_) {
        set_idle(false);
        deadline = after(options.header_timeout);
      }
      buffer_.consume(parser.put(buffer_.data(), error));
      if (error == http::error::header_limit || buffer_.size() > options.header_limit) {
        const ApiError problem(431, fmt::format("the head is longer than {} bytes", options.header_limit));
        co_await refuse(nobody, problem);
        co_return false;
      }
      if (error && error != http::error::need_more) {
        const ApiError problem = problem_of(error, options.body_limit);
        co_await refuse(nobody, problem);
        co_return false;
      }
      if (parser.is_header_done()) break;
    }
    if (!co_await read_more(deadline)) {
      const bool began = !idle_ && !read_failed_ && !cut_;
      const ApiError problem(408, "the request's head did not come in time");
      if (began) co_await refuse(nobody, problem);
      co_return false;
    }
  }
  co_return true;
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::read_body(Parser& parser, HttpRequest& request) {
  const ServerOptions& options = shared_->options;
  const auto end = after(options.body_timeout);
  parser.eager(true);
  const auto share = std::make_shared<BodyShare>(shared_);
  while (!parser.is_done()) {
    ErrorCode error;
    if (buffer_.size() > 0) buffer_.consume(parser.put(buffer_.data(), error));
    if (error && error != http::error::need_more) {
      const ApiError problem = problem_of(error, options.body_limit);
      co_await refuse(request, problem);
      co_return false;
    }
    if (!share->grow_to(parser.get().body().size())) {
      static_cast<void>(share->grow_to(0));  // the others go on
      const ApiError problem(503, "the bodies of other requests hold the memory for it; try again later", {},
                             "body_memory_full");
      co_await refuse(request, problem);
      co_return false;
    }
    if (parser.is_done()) break;
    if (!co_await read_more(std::min(end, after(options.idle_timeout)))) {
      const ApiError problem(408, "the request's body did not come in time");
      if (!read_failed_ && !cut_) co_await refuse(request, problem);
      co_return false;
    }
  }
  request.body_share = share;
  co_return true;
}

template <typename Stream>
HttpRequest Session<Stream>::take_request(Parser& parser) {
  auto& message = parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target = origin_form({message.target().data(), message.target().size()});
  const std::size_t mark = target.find('?');
  request.path = mark == 0 ? "/" : std::string(target.substr(0, mark));
  if (mark != std::string_view::npos) request.query = std::string(target.substr(mark + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.client = client_;
  request.id = request_id(request.header("x-request-id"));
  return request;
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::one_request() {
  const ServerOptions& options = shared_->options;
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(options.header_limit));
  parser.body_limit(options.body_limit);
  parser.eager(false);
  if (!co_await read_head(parser)) co_return false;
  const bool old_version = parser.get().version() < 11;
  const bool keep = parser.get().keep_alive();
  const bool expects_continue = boost::beast::iequals(parser.get()[http::field::expect], "100-continue");
  HttpRequest request = take_request(parser);
  if (request.headers.size() > options.header_count_limit) {
    const ApiError problem(431, fmt::format("more than {} headers", options.header_count_limit));
    co_await refuse(request, problem);
    co_return false;
  }
  if (const std::string problem = head_problem(parser.get()); !problem.empty()) {
    const ApiError error(400, problem);
    co_await refuse(request, error);
    co_return false;
  }
  std::optional<HttpReply> refused = shared_->hooks.check_head(request);
  if (refused && !parser.is_done()) {
    co_await answer(request, refused, false, false);
    co_return false;
  }
  if (!refused) {
    if (expects_continue && !parser.is_done() && buffer_.size() == 0) {
      if (!co_await write_all("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    if (!co_await read_body(parser, request)) co_return false;
    request.body = std::move(parser.get().body());
  }
  co_return co_await answer(request, refused, old_version, keep);
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::answer(HttpRequest& request, std::optional<HttpReply>& known, bool old_version,
                                              bool keep) {
  exchange_ = std::make_shared<Exchange>(
      std::move(request),
      [weak = this->weak_from_this()] {
        const auto self = weak.lock();
        if (self) asio::post(self->stream_.get_executor(), [self] { self->changed_.cancel(); });
      },
      shared_->options.queue_limit);
  start_read();
  const auto start = std::chrono::steady_clock::now();
  written_ = 0;
  whole_ = false;
  if (known) {
    exchange_->send(std::move(*known));
  } else {
    shared_->hooks.dispatch(exchange_);
  }
  const bool more = co_await reply(exchange_, old_version, keep);
  const auto exchange = std::exchange(exchange_, nullptr);
  if (!more) exchange->client_gone();  // after the end this says nothing
  shared_->hooks.finished(*exchange, std::chrono::steady_clock::now() - start, written_, whole_);
  co_return more;
}

template <typename Stream>
asio::awaitable<void> Session<Stream>::refuse(const HttpRequest& given, const ApiError& error) {
  HttpRequest request = given;
  if (request.id.empty()) request.id = request_id({});
  request.client = client_;
  std::optional<HttpReply> reply = error_reply(error, request);
  co_await answer(request, reply, false, false);
}

template <typename Stream>
asio::awaitable<bool> Session<Stream>::reply(const std::shared_ptr<Exchange>& exchange, bool old_version, bool keep) {
  const bool head_only = exchange->request().method == "HEAD";
  bool begun = false, chunked = false;
  std::chrono::steady_clock::time_point next_probe{};
  while (true) {
    const bool read = !gone_;  // what is written to nobody counts for nothing, even where the system takes it
    Exchange::Outgoing out = exchange->take();
    if (out.cut || cut_) co_return false;
    std::string bytes;
    if (out.head) {
      // What remains of a connection is decided here, once.
      const bool last = read_failed_ && buffer_.size() == 0;
      keep = keep && !shared_->closing && !(out.streamed && old_version) && !last;
      begun = true;
      chunked = out.streamed && !old_version;
      HttpReply& head = *out.head;
      Headers headers = std::move(head.headers);
      if (head.status != 204) headers.emplace_back("Content-Type", head.content_type);
      if (chunked) {
        headers.emplace_back("Transfer-Encoding", "chunked");
      } else if (!out.streamed && head.status != 204) {
        headers.emplace_back("Content-Length", std::to_string(head.body.size()));
      }
      std::ranges::copy(exchange->request().reply_headers, std::back_inserter(headers));
      headers.emplace_back("X-Request-Id", exchange->request().id);
      headers.emplace_back("Connection", keep ? "keep-alive" : "close");
      bytes = head_bytes(head.status, headers);
      if (!head_only) bytes += head.body;
    }
    if (!out.bytes.empty() && !head_only) {
      if (chunked) bytes += fmt::format("{:x}\r\n", out.bytes.size());
      bytes += out.bytes;
      if (chunked) bytes += "\r\n";
    }
    if (out.ended && chunked && !head_only) bytes += "0\r\n\r\n";
    if (!bytes.empty()) {
      if (!co_await write_all(bytes)) co_return false;
    }
    if (out.ended) {
      whole_ = read;
      if (!keep) co_await close_gently();
      co_return keep;
    }
    if (!bytes.empty()) continue;
    if (gone_) co_return false;
    if (half_closed_ && std::chrono::steady_clock::now() >= next_probe) {
      if (!begun && old_version) co_return false;  // it knows no interim replies, so it cannot be asked
      if (!co_await write_all(probe_bytes(begun, chunked))) co_return false;
      next_probe = after(probe_interval);
      continue;
    }
    changed_.expires_at(half_closed_ ? next_probe : std::chrono::steady_clock::time_point::max());
    co_await changed_.async_wait(as_result);
  }
}

// A close with unread bytes would reset the connection and could destroy the reply on its way: say that nothing more
// comes, and read on for a moment.
template <typename Stream>
asio::awaitable<void> Session<Stream>::close_gently() {
  ErrorCode ignored;
  if constexpr (!std::is_same_v<Stream, Tcp::socket>) {
    write_limit_.expires_after(std::chrono::seconds(2));
    write_limit_.async_wait([self = this->shared_from_this()](ErrorCode error) {
      if (!error) self->cut();
    });
    if (!reading_) co_await stream_.async_shutdown(as_result);
    write_limit_.cancel();
  }
  socket().shutdown(Tcp::socket::shutdown_send, ignored);
  const auto end = after(Seconds(2));
  buffer_.consume(buffer_.size());
  while (co_await read_more(end)) buffer_.consume(buffer_.size());
}

template class Session<Tcp::socket>;
template class Session<asio::ssl::stream<Tcp::socket>>;

}  // namespace m3::server
