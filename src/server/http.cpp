#include "src/server/http.h"

#include <fmt/format.h>

#include <algorithm>

namespace m3::server {

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  const auto found = std::ranges::find_if(headers, [&](const auto& entry) { return entry.first == name; });
  if (found == headers.end()) return std::nullopt;
  return found->second;
}

Exchange::Exchange(HttpRequest request, std::function<void()> wake, std::size_t queue_limit)
    : request_(std::move(request)), wake_(std::move(wake)), queue_limit_(queue_limit) {}

void Exchange::begin(HttpReply head, bool streamed, bool ended) {
  {
    const std::lock_guard lock(mutex_);
    if (status_ != 0 || gone_) return;
    status_ = head.status;
    streamed_ = outgoing_.streamed = streamed;
    outgoing_.head = std::move(head);
    ended_ = outgoing_.ended = ended;
  }
  wake_();
}

void Exchange::send(HttpReply reply) { begin(std::move(reply), false, true); }

void Exchange::begin_stream(std::string content_type, Headers headers) {
  HttpReply head;
  head.content_type = std::move(content_type);
  head.headers = std::move(headers);
  begin(std::move(head), true, false);
}

void Exchange::write(std::string_view bytes) {
  bool overflow = false;
  {
    const std::lock_guard lock(mutex_);
    if (!streamed_ || ended_ || gone_ || bytes.empty()) return;
    outgoing_.bytes += bytes;
    overflow = outgoing_.bytes.size() > queue_limit_;
    if (overflow) outgoing_.cut = true;
  }
  if (overflow) client_gone();
  wake_();
}

void Exchange::end(std::string_view last) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || gone_) return;
    outgoing_.bytes += last;
    ended_ = outgoing_.ended = true;
    on_gone_ = nullptr;
  }
  wake_();
}

void Exchange::cut() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || gone_) return;
    ended_ = outgoing_.cut = true;
    on_gone_ = nullptr;
  }
  wake_();
}

void Exchange::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!gone_) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

bool Exchange::begun() const {
  const std::lock_guard lock(mutex_);
  return status_ != 0;
}

bool Exchange::finished() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

Exchange::Outgoing Exchange::take() {
  const std::lock_guard lock(mutex_);
  Outgoing taken = std::exchange(outgoing_, {});
  outgoing_.streamed = taken.streamed;
  outgoing_.ended = taken.ended;
  outgoing_.cut = taken.cut;
  return taken;
}

void Exchange::client_gone() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = true;
    if (!ended_) callback = std::exchange(on_gone_, nullptr);
    outgoing_.bytes = std::string();
  }
  if (callback) callback();
}

int Exchange::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

const char* status_phrase(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
  }
}

std::string head_bytes(int status, const Headers& headers) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, status_phrase(status));
  for (const auto& [name, value] : headers) {
    out += name;
    out += ": ";
    for (const char c : value) {
      if (c != '\r' && c != '\n' && c != '\0') out += c;
    }
    out += "\r\n";
  }
  return out + "\r\n";
}

}  // namespace m3::server
