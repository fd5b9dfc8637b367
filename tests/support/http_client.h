// A blocking HTTP/1.1 client for tests, close to the socket so that it can also misbehave.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace m3::test {

struct HttpResponse {
  int status = 0;                              // 0: the connection ended before a status came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool whole = false;  // the body came to its proper end

  // The data of its server-sent events, in order; "[DONE]" among them.
  std::vector<std::string> events() const;
};

class HttpClient {
 public:
  // To 127.0.0.1. `tls`: without a look at the certificate. Reads end after `seconds` without a byte.
  explicit HttpClient(std::uint16_t port, bool tls = false, int seconds = 60, int receive_buffer = 0);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  // False when the other side has gone.
  bool send(std::string_view bytes);
  HttpResponse receive(bool head_only = false);
  // One whole request.
  HttpResponse request(const std::string& method, const std::string& path, const std::string& body = "",
                       const std::vector<std::string>& headers = {});
  // The head of a reply and then its data as it comes; for streams.
  HttpResponse receive_head();
  // The next server-sent event's data; nothing at the end.
  std::optional<std::string> next_event();
  // Whether the other side has closed, waiting at most the client's seconds for it.
  bool closed_by_server();
  // Says that no more will be sent; replies can still be read.
  void end_of_requests();
  void close();

 private:
  bool fill();
  bool read_line(std::string& line);
  bool read_exactly(std::size_t count, std::string& out);
  bool next_chunk(std::string& out);
  struct Connection;
  std::unique_ptr<Connection> connection_;
  std::string buffer_;
  std::string stream_;
};

// A request as bytes, with Host and Content-Length.
std::string request_bytes(const std::string& method, const std::string& path, const std::string& body = "",
                          const std::vector<std::string>& headers = {});

}  // namespace m3::test
