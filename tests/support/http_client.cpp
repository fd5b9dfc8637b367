#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace m3::test {

struct HttpClient::Connection {
  int socket = -1;
  SSL_CTX* context = nullptr;
  SSL* tls = nullptr;

  void close() {
    if (tls != nullptr) SSL_free(tls);
    if (context != nullptr) SSL_CTX_free(context);
    if (socket >= 0) ::close(socket);
    tls = nullptr;
    context = nullptr;
    socket = -1;
  }
  ~Connection() { close(); }
};

HttpClient::HttpClient(std::uint16_t port, bool tls, int seconds, int receive_buffer)
    : connection_(std::make_unique<Connection>()) {
  Connection& c = *connection_;
  c.socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {seconds, 0};
  ::setsockopt(c.socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(c.socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int on = 1;
  ::setsockopt(c.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (receive_buffer > 0) ::setsockopt(c.socket, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(c.socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    c.close();
    return;
  }
  if (!tls) return;
  c.context = SSL_CTX_new(TLS_client_method());
  c.tls = SSL_new(c.context);
  SSL_set_fd(c.tls, c.socket);
  if (SSL_connect(c.tls) != 1) c.close();
}

HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

void HttpClient::close() { connection_->close(); }

void HttpClient::end_of_requests() { ::shutdown(connection_->socket, SHUT_WR); }

bool HttpClient::send(std::string_view bytes) {
  Connection& c = *connection_;
  while (!bytes.empty() && c.socket >= 0) {
    const auto count = c.tls != nullptr ? SSL_write(c.tls, bytes.data(), static_cast<int>(bytes.size()))
                                        : ::send(c.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return c.socket >= 0;
}

bool HttpClient::fill() {
  Connection& c = *connection_;
  if (c.socket < 0) return false;
  char bytes[16384];
  const auto count = c.tls != nullptr ? SSL_read(c.tls, bytes, sizeof bytes) : ::recv(c.socket, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

bool HttpClient::read_line(std::string& line) {
  std::size_t end = buffer_.find("\r\n");
  while (end == std::string::npos) {
    if (!fill()) return false;
    end = buffer_.find("\r\n");
  }
  line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return true;
}

bool HttpClient::read_exactly(std::size_t count, std::string& out) {
  while (buffer_.size() < count) {
    if (!fill()) return false;
  }
  out.append(buffer_, 0, count);
  buffer_.erase(0, count);
  return true;
}

HttpResponse HttpClient::receive_head() {
  HttpResponse response;
  std::string line;
  do {
    if (!read_line(line) || line.size() < 12) return response;
    response.status = std::stoi(line.substr(9, 3));
    while (read_line(line) && !line.empty()) {
      const std::size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      response.headers[name] = colon == std::string::npos ? "" : line.substr(colon + 2);
    }
  } while (response.status == 100);
  return response;
}

bool HttpClient::next_chunk(std::string& out) {
  std::string line;
  if (!read_line(line)) return false;
  std::size_t size = 0;
  std::from_chars(line.data(), line.data() + line.size(), size, 16);
  if (!read_exactly(size, out)) return false;
  return read_line(line) && size > 0;
}

HttpResponse HttpClient::receive(bool head_only) {
  HttpResponse response = receive_head();
  if (response.status == 0 || head_only) return response;
  if (response.headers["transfer-encoding"] == "chunked") {
    std::string line;
    while (true) {
      if (!read_line(line)) return response;
      std::size_t size = 0;
      std::from_chars(line.data(), line.data() + line.size(), size, 16);
      if (!read_exactly(size, response.body) || !read_line(line)) return response;
      if (size == 0) break;
    }
    response.whole = true;
  } else if (const auto length = response.headers.find("content-length"); length != response.headers.end()) {
    response.whole = read_exactly(std::stoul(length->second), response.body);
  } else if (response.status != 204) {
    while (fill()) {}
    response.body = std::exchange(buffer_, {});
    response.whole = true;
  }
  return response;
}

HttpResponse HttpClient::request(const std::string& method, const std::string& path, const std::string& body,
                                 const std::vector<std::string>& headers) {
  send(request_bytes(method, path, body, headers));
  return receive(method == "HEAD");
}

std::optional<std::string> HttpClient::next_event() {
  while (true) {
    const std::size_t end = stream_.find("\n\n");
    if (end == std::string::npos) {
      if (!next_chunk(stream_)) return std::nullopt;
      continue;
    }
    const std::string block = stream_.substr(0, end);
    stream_.erase(0, end + 2);
    const std::size_t data = block.find("data: ");
    if (data != std::string::npos) return block.substr(data + 6);
  }
}

bool HttpClient::closed_by_server() {
  while (fill()) {}
  return errno != EAGAIN && errno != EWOULDBLOCK;
}

std::vector<std::string> HttpResponse::events() const {
  std::vector<std::string> list;
  for (std::size_t at = body.find("data: "); at != std::string::npos; at = body.find("\ndata: ", at)) {
    at += body[at] == '\n' ? 7 : 6;
    list.push_back(body.substr(at, body.find("\n\n", at) - at));
  }
  return list;
}

std::string request_bytes(const std::string& method, const std::string& path, const std::string& body,
                          const std::vector<std::string>& headers) {
  std::string out = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string& header : headers) out += header + "\r\n";
  if (!body.empty() || method == "POST") {
    out += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return out + "\r\n" + body;
}

}  // namespace m3::test
