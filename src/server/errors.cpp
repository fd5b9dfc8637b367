#include "src/server/errors.h"

#include <new>

#include "m3/error.h"
#include "src/media/media_memory.h"
#include "src/server/json.h"

namespace m3::server {
namespace {

const char* openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

void refuse(const std::string& param, const std::string& why) { throw ApiError(400, param + ": " + why, param); }

std::string param_of(const std::string& line) {
  const std::size_t end =
      line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]$");
  if (end == 0 || end == std::string::npos) return {};
  std::string word = line.substr(0, end);
  // "input[0].arguments is not …": a path that is the sentence's subject.
  const bool is_path = line[end] == ' ' && word.find('[') != std::string::npos;
  return line[end] == ':' || is_path ? word : std::string();
}

ApiError to_api_error(std::exception_ptr problem) try {
  std::rethrow_exception(std::move(problem));
} catch (const ApiError& error) {
  return error;
} catch (const media::MediaMemoryError& error) {
  return {503, error.what(), param_of(error.what()), "media_memory_full"};
} catch (const Error& error) {
  const std::string line = error.what();
  switch (error.kind()) {
    case ErrorKind::usage:
    case ErrorKind::input: return {400, line, param_of(line)};
    case ErrorKind::busy: return {503, line, {}, "queue_full"};
    default: return {500, line};
  }
} catch (const std::bad_alloc&) {
  return {500, "out of memory while this request was handled"};
} catch (const std::exception& error) {
  return {500, std::string("internal error: ") + error.what()};
} catch (...) {
  return {500, "internal error"};
}

std::string error_body(const ApiError& error, ErrorStyle style, const std::string& request_id) {
  const std::string message = error.what();
  if (style == ErrorStyle::anthropic) {
    return to_text({{"type", "error"},
                    {"error", {{"type", anthropic_type(error.status)}, {"message", message}}},
                    {"request_id", request_id}});
  }
  Json object = {{"message", message}, {"type", openai_type(error.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) object["param"] = error.param;
  if (!error.code.empty()) {
    object["code"] = error.code;
  } else {
    object["code"] = error.status;
  }
  return to_text({{"error", std::move(object)}});
}

HttpReply error_reply(const ApiError& error, const HttpRequest& request) {
  HttpReply reply;
  reply.status = error.status;
  reply.body = error_body(error, request.error_style, request.id);
  if (error.status == 503 || error.status == 429) reply.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

}  // namespace m3::server
