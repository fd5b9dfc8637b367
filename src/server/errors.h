// What a client is told when something is wrong: a status and an object in the style of the API it spoke to.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "src/server/http.h"
#include "src/tokenizer/utf8.h"

namespace m3::server {

// Thrown by handlers for what the client did wrong, or must hear about. `param` is the path of the request's field,
// such as "messages[2].content"; empty where none is to blame. Both are cut where they are longer than a person reads.
class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, const std::string& message, const std::string& field = {}, std::string word = {})
      : std::runtime_error(shortened(message, 2000)),
        status(http_status),
        param(shortened(field, 300)),
        code(std::move(word)) {}

  int status;
  std::string param;
  std::string code;  // a word for programs, such as "model_not_found"
};

// 400 for one field: the message begins with its path.
[[noreturn]] void refuse(const std::string& param, const std::string& why);

// Any exception as an ApiError: m3::Error of kind usage and input are 400 (the field is read off the line's beginning
// "path: ..."), busy is 503, the others 500.
ApiError to_api_error(std::exception_ptr problem);
// The field that an error line begins with ("messages[2].content: ...", "input[0].arguments is not ..."), or nothing.
std::string param_of(const std::string& line);

std::string error_body(const ApiError& error, ErrorStyle style, const std::string& request_id);
// With Retry-After for 503 and 429, WWW-Authenticate for 401.
HttpReply error_reply(const ApiError& error, const HttpRequest& request);

}  // namespace m3::server
