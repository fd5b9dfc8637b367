#include "src/vision/fetch.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "src/base/error.h"

namespace m3::vision {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::use_awaitable;
using asio::ip::tcp;

constexpr std::chrono::milliseconds stop_period{50};

struct Reply {
  unsigned status = 0;
  std::string location;
  std::string body;
};

bool is_redirect(unsigned status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_interim(unsigned status) { return status / 100 == 1 && status != 101; }

bool is_public(const asio::ip::address& address) {
  return address.is_v4() ? is_public_v4(address.to_v4().to_bytes()) : is_public_v6(address.to_v6().to_bytes());
}

std::string host_and_port(const WebUrl& url) { return fmt::format("{}:{}", url.host, url.port); }

// The addresses that may be connected to, and nothing is looked up after this.
asio::awaitable<std::vector<tcp::endpoint>> look_up(const WebUrl& url, const FetchOptions& options) {
  tcp::resolver resolver(co_await asio::this_coro::executor);
  boost::system::error_code error;
  const auto found =
      co_await resolver.async_resolve(url.host, std::to_string(url.port), asio::redirect_error(use_awaitable, error));
  if (error) fail("the host {} is unknown", url.host);
  const bool trusted = std::ranges::find(options.private_hosts, host_and_port(url)) != options.private_hosts.end();
  std::vector<tcp::endpoint> usable;
  for (const auto& entry : found) {
    if (trusted || is_public(entry.endpoint().address())) usable.push_back(entry.endpoint());
  }
  if (usable.empty()) fail("the host {} has no public address", url.host);
  co_return usable;
}

template <typename Stream>
asio::awaitable<Reply> exchange(Stream& stream, const WebUrl& url, const FetchOptions& options, std::int64_t limit) {
  http::request<http::empty_body> request(http::verb::get, url.target, 11);
  const bool v6 = url.host.find(':') != std::string::npos;
  const bool usual = url.port == (url.secure ? 443 : 80);
  request.set(http::field::host,
              (v6 ? "[" + url.host + "]" : url.host) + (usual ? "" : ":" + std::to_string(url.port)));
  request.set(http::field::user_agent, "m3.cpp");
  request.set(http::field::accept, "image/*, video/*, */*;q=0.5");
  request.set(http::field::accept_encoding, "identity");
  request.set(http::field::connection, "close");
  co_await http::async_write(stream, request, use_awaitable);

  boost::beast::flat_buffer buffer;
  boost::system::error_code error;
  // Any number of interim replies (100, 103) may come before the one that counts; 101 is none.
  std::optional<http::response_parser<http::string_body>> last;
  do {
    last.emplace();
    last->header_limit(1 << 16);
    last->body_limit(static_cast<std::uint64_t>(limit));
    co_await http::async_read_header(stream, buffer, *last, asio::redirect_error(use_awaitable, error));
  } while (!error && is_interim(last->get().result_int()));
  auto& parser = *last;
  Reply reply;
  if (!error) {
    reply.status = parser.get().result_int();
    reply.location = std::string(parser.get()[http::field::location]);
    if (is_redirect(reply.status)) co_return reply;
    if (reply.status != 200) fail("the server of {} answers with status {}", url.host, reply.status);
    const auto coding = parser.get()[http::field::content_encoding];
    if (!coding.empty() && coding != "identity") fail("the server of {} sends it compressed", url.host);
    while (!error && !parser.is_done()) {
      co_await http::async_read_some(stream, buffer, parser, asio::redirect_error(use_awaitable, error));
      if (options.received) options.received(static_cast<std::int64_t>(parser.get().body().size()));
    }
  }
  if (error == http::error::body_limit) fail("more than the {} bytes allowed", limit);
  // Many servers close without TLS's own goodbye; a length that was announced is checked by the parser.
  if (error && !(error == asio::ssl::error::stream_truncated && parser.is_done())) {
    fail("the server of {} broke off ({})", url.host, error.message());
  }
  reply.body = std::move(parser.get().body());
  co_return reply;
}

asio::awaitable<Reply> get(const WebUrl& url, const FetchOptions& options, std::int64_t limit) {
  const std::vector<tcp::endpoint> endpoints = co_await look_up(url, options);
  tcp::socket socket(co_await asio::this_coro::executor);
  boost::system::error_code error;
  co_await asio::async_connect(socket, endpoints, asio::redirect_error(use_awaitable, error));
  if (error) fail("the host {} cannot be reached ({})", host_and_port(url), error.message());
  if (!url.secure) co_return co_await exchange(socket, url, options, limit);

  asio::ssl::context context(asio::ssl::context::tls_client);
  context.set_default_verify_paths();
  context.set_verify_mode(asio::ssl::verify_peer);
  asio::ssl::stream<tcp::socket&> stream(socket, context);
  stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
  SSL_set_tlsext_host_name(stream.native_handle(), url.host.c_str());
  co_await stream.async_handshake(asio::ssl::stream_base::client, asio::redirect_error(use_awaitable, error));
  if (error) fail("no trusted connection to {} ({})", url.host, error.message());
  co_return co_await exchange(stream, url, options, limit);
}

asio::awaitable<std::string> follow(std::string first, FetchOptions options, std::int64_t limit) {
  WebUrl url = parse_web_url(first);
  for (int hops = 0;; ++hops) {
    if (!domain_allowed(url.host, options.domains)) fail("the host {} is not among the allowed ones", url.host);
    Reply reply = co_await get(url, options, limit);
    if (!is_redirect(reply.status)) co_return std::move(reply.body);
    if (reply.location.empty()) fail("the server of {} redirects to nowhere", url.host);
    if (hops == options.redirects) fail("more than {} redirects", options.redirects);
    url = resolve_redirect(url, reply.location);
  }
}

}  // namespace

std::vector<std::byte> fetch(const std::string& url, const FetchOptions& options, std::int64_t limit) {
  std::optional<std::string> body;
  std::exception_ptr failure;
  {
    asio::io_context io(1);
    asio::co_spawn(io, follow(url, options, limit), [&](std::exception_ptr error, std::string result) {
      failure = std::move(error);
      body = std::move(result);
    });
    using Clock = std::chrono::steady_clock;
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
    if (!options.stop) io.run_until(end);
    while (options.stop && !body && !failure && Clock::now() < end) {
      if (options.stop()) fail("nobody waits for it any more");
      io.run_until(std::min(end, Clock::now() + stop_period));
      if (io.stopped()) break;
    }
  }
  if (!body) fail("no complete answer within {} seconds", options.seconds);
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const boost::system::system_error& error) {
      fail("the connection failed ({})", error.code().message());
    }
  }
  if (body->empty()) fail("the server sends no bytes");
  const auto bytes = std::as_bytes(std::span(*body));
  return {bytes.begin(), bytes.end()};
}

}  // namespace m3::vision
