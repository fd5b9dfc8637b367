#include "src/server/sse.h"

namespace m3::server {

void SseStream::begin() {
  // No proxy may hold events back (nginx reads the second header).
  exchange_->begin_stream("text/event-stream; charset=utf-8",
                          {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
}

void SseStream::send(const Json& data, std::string_view event) {
  std::string out;
  if (!event.empty()) out.append("event: ").append(event).append("\n");
  out.append("data: ").append(to_text(data)).append("\n\n");
  exchange_->write(out);
}

void SseStream::done() {
  exchange_->write("data: [DONE]\n\n");
  exchange_->end();
}

void SseStream::fail(const ApiError& error) {
  exchange_->write("data: " + error_body(error, ErrorStyle::openai, exchange_->request().id) + "\n\n");
  done();
}

void SseStream::comment(std::string_view text) { exchange_->write(std::string(": ").append(text).append("\n\n")); }

}  // namespace m3::server
