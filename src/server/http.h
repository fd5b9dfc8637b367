// An HTTP request, its reply, and the exchange between the two: what handlers see. Nothing here knows sockets.
//
// A handler gets a shared Exchange on a worker thread and either
// - answers at once:      exchange->send({.body = ...});
// - or streams:           exchange->begin_stream("text/event-stream"); exchange->write(...); ...; exchange->end();
// It may return before the reply is complete and go on from any thread, as long as something holds the Exchange.
// Nothing here blocks: bytes wait in a queue for the connection. A client that does not read lets the queue grow to
// its limit and is then cut off; on_gone() tells, as it does for a client that closed.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace m3::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

// The object in which an API tells of errors.
enum class ErrorStyle {
  openai,     // {"error": {"message", "type", "param", "code"}}
  anthropic,  // {"type": "error", "error": {"type", "message"}, "request_id"}
};

struct HttpRequest {
  std::string method;                              // "GET", "POST", ...
  std::string path;                                // as sent, without the query
  std::string query;                               // behind the ?
  Headers headers;                                 // names in lower case
  std::string body;                                // given up once the handler has returned
  std::shared_ptr<const void> body_share;          // of the memory that bodies may hold
  std::string id;                                  // x-request-id as given, else made here
  std::string client;                              // address
  std::map<std::string, std::string> path_values;  // of {name} segments of the route
  std::string route = "other";                     // the route's path, for counts
  ErrorStyle error_style = ErrorStyle::openai;     // the route's
  Headers reply_headers;                           // of every reply to it: CORS

  // The first header of that name (in lower case), or nothing.
  std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  Headers headers = {};
};

class Exchange {
 public:
  // `wake` is called, on any thread, whenever take() has something new. `queue_limit`: bytes that may wait.
  Exchange(HttpRequest request, std::function<void()> wake, std::size_t queue_limit);

  const HttpRequest& request() const { return request_; }
  HttpRequest& request() { return request_; }  // for the server, before a handler runs

  // --- the handler's side, from any thread; what comes after the end or after the client went is dropped
  void send(HttpReply reply);
  void begin_stream(std::string content_type, Headers headers = {});
  void write(std::string_view bytes);
  // With the last bytes, so that who has all of them has the end too: a client that closes then left no reply.
  void end(std::string_view last = {});
  // Ends a stream without its proper end: the connection is cut, so that the client cannot take it for whole.
  void cut();
  // Called once when the client goes before the end; at once if it has gone.
  void on_gone(std::function<void()> callback);
  bool gone() const;
  bool begun() const;     // a status was sent
  bool finished() const;  // the handler has said all

  // --- the connection's side
  struct Outgoing {
    std::optional<HttpReply> head;  // status and headers; its body is whole unless `streamed`
    bool streamed = false;
    std::string bytes;  // of a stream
    bool ended = false;
    bool cut = false;
  };
  Outgoing take();
  void client_gone();

  // Of the reply, for the log.
  int status() const;

 private:
  void begin(HttpReply head, bool streamed, bool ended);

  HttpRequest request_;
  std::function<void()> wake_;
  std::size_t queue_limit_;
  mutable std::mutex mutex_;
  Outgoing outgoing_;
  int status_ = 0;
  bool streamed_ = false;
  bool ended_ = false;
  bool gone_ = false;
  std::function<void()> on_gone_;
};

// The standard phrase of a status ("Not Found").
const char* status_phrase(int status);

// Status line and headers as bytes, up to the blank line. Line breaks inside header values are dropped.
std::string head_bytes(int status, const Headers& headers);

}  // namespace m3::server
