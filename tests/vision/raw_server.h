// A server on 127.0.0.1 that answers each connection with bytes, for the fetching tests.
#pragma once

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace m3::test {

class RawServer {
 public:
  // `answer`: the whole reply to a request for `target`; empty: none, the connection stays open until the end.
  explicit RawServer(std::function<std::string(std::string target)> answer)
      : answer_(std::move(answer)),
        acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}),
        thread_([this] { serve(); }) {}
  ~RawServer() {
    stopping_ = true;
    boost::system::error_code ignored;
    Tcp::socket(io_).connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }

  std::string host() const { return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()); }
  int requests() const { return requests_; }

 private:
  using Tcp = boost::asio::ip::tcp;

  void serve() {
    std::vector<Tcp::socket> open;
    while (true) {
      Tcp::socket socket(io_);
      boost::system::error_code error;
      acceptor_.accept(socket, error);
      if (stopping_) return;
      if (error) continue;
      ++requests_;
      std::string request;
      while (request.find("\r\n\r\n") == std::string::npos && !error) {
        char bytes[1024];
        request.append(bytes, socket.read_some(boost::asio::buffer(bytes), error));
        if (request.size() > 2 && request[0] == '\x16') break;  // a TLS greeting
      }
      const std::size_t from = request.find(' ') + 1;
      const std::string reply = answer_(request.substr(from, request.find(' ', from) - from));
      if (reply.empty()) {
        open.push_back(std::move(socket));
      } else {
        boost::asio::write(socket, boost::asio::buffer(reply), error);
      }
    }
  }

  std::function<std::string(std::string)> answer_;
  boost::asio::io_context io_;
  Tcp::acceptor acceptor_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

}  // namespace m3::test
