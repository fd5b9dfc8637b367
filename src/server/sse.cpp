#include "src/server/sse.h"

namespace m3::server {

void SseStream::begin() {
  // No proxy may hold events back (nginx reads the second header).
  exchange_->begin_stream("text/event-stream; charset=utf-8",
                          {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
}

namespace {

std::string event_bytes(const Json& data, std::string_view event) {
  std::string out;
  if (!event.empty()) out.append("event: ").append(event).append("\n");
  return out.append("data: ").append(to_text(data)).append("\n\n");
}

constexpr std::string_view done_bytes = "data: [DONE]\n\n";

}  // namespace

void SseStream::send(const Json& data, std::string_view event) { exchange_->write(event_bytes(data, event)); }

void SseStream::send_last(const Json& data, std::string_view event) { exchange_->end(event_bytes(data, event)); }

void SseStream::done() { exchange_->end(done_bytes); }

void SseStream::fail(const ApiError& error) {
  exchange_->end("data: " + error_body(error, ErrorStyle::openai, exchange_->request().id) + "\n\n" +
                 std::string(done_bytes));
}

void SseStream::comment(std::string_view text) { exchange_->write(std::string(": ").append(text).append("\n\n")); }

}  // namespace m3::server
