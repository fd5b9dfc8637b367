// A server on 127.0.0.1 that answers each connection with bytes, for the fetching tests.
#pragma once

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/vision/certificates.h"

namespace m3::test {

class RawServer {
 public:
  // `answer`: the whole reply to a request for `target`; empty: none, the connection stays open until the end.
  explicit RawServer(std::function<std::string(std::string target)> answer) : RawServer(std::move(answer), {}) {}
  // Over TLS, where there is a certificate. A reply that ends with `no_goodbye`, which is not sent, is closed without
  // TLS's own end.
  RawServer(std::function<std::string(std::string target)> answer, const Certificate& certificate)
      : answer_(std::move(answer)),
        secure_(!certificate.pem.empty()),
        acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}),
        context_(context(certificate)),
        thread_([this] { serve(); }) {}
  ~RawServer() {
    stopping_ = true;
    boost::system::error_code ignored;
    Tcp::socket(io_).connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }

  static constexpr std::string_view no_goodbye = "<no goodbye>";

  std::string host() const { return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()); }
  int requests() const { return requests_; }

 private:
  using Tcp = boost::asio::ip::tcp;

  static boost::asio::ssl::context context(const Certificate& certificate) {
    using boost::asio::ssl::context;
    context made(context::tls_server);
    if (certificate.pem.empty()) return made;
    made.use_certificate(boost::asio::buffer(certificate.pem), context::pem);
    made.use_private_key(boost::asio::buffer(certificate.key_pem), context::pem);
    return made;
  }

  static std::string target_of(auto& stream, boost::system::error_code& error) {
    std::string request;
    while (request.find("\r\n\r\n") == std::string::npos && !error) {
      char bytes[1024];
      request.append(bytes, stream.read_some(boost::asio::buffer(bytes), error));
      if (request.size() > 2 && request[0] == '\x16') break;  // a TLS greeting
    }
    const std::size_t from = request.find(' ') + 1;
    return request.substr(from, request.find(' ', from) - from);
  }

  void serve_secure(Tcp::socket& socket) {
    boost::system::error_code error;
    boost::asio::ssl::stream<Tcp::socket&> stream(socket, context_);
    stream.handshake(boost::asio::ssl::stream_base::server, error);
    if (error) return;
    ++requests_;
    std::string reply = answer_(target_of(stream, error));
    const bool goodbye = !reply.ends_with(no_goodbye);
    if (!goodbye) reply.resize(reply.size() - no_goodbye.size());
    boost::asio::write(stream, boost::asio::buffer(reply), error);
    if (goodbye) stream.shutdown(error);
  }

  void serve() {
    std::vector<Tcp::socket> open;
    while (true) {
      Tcp::socket socket(io_);
      boost::system::error_code error;
      acceptor_.accept(socket, error);
      if (stopping_) return;
      if (error) continue;
      if (secure_) {
        serve_secure(socket);
        continue;
      }
      ++requests_;
      const std::string reply = answer_(target_of(socket, error));
      if (reply.empty()) {
        open.push_back(std::move(socket));
      } else {
        boost::asio::write(socket, boost::asio::buffer(reply), error);
      }
    }
  }

  std::function<std::string(std::string)> answer_;
  bool secure_;
  boost::asio::io_context io_;
  Tcp::acceptor acceptor_;
  boost::asio::ssl::context context_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

}  // namespace m3::test
