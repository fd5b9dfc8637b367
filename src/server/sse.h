// Server-sent events on an exchange.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "src/server/errors.h"
#include "src/server/http.h"
#include "src/server/json.h"

namespace m3::server {

class SseStream {
 public:
  explicit SseStream(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  // Status 200 and the headers; the events may follow at any time.
  void begin();
  // "data: {...}", or with a name "event: name" before it.
  void send(const Json& data, std::string_view event = {});
  // "data: [DONE]", as the OpenAI APIs end, and the end of the reply.
  void done();
  // An OpenAI error as an event, and then as done().
  void fail(const ApiError& error);
  // An event that ends the reply.
  void send_last(const Json& data, std::string_view event = {});
  // A line that clients ignore; keeps proxies from closing an idle connection.
  void comment(std::string_view text);

  Exchange& exchange() { return *exchange_; }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace m3::server
