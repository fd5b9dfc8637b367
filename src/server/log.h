// Log lines to standard error: text, or one JSON object a line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "src/server/json.h"

namespace spdlog {
class logger;
}

namespace m3::server {

enum class LogLevel { debug, info, warning, error };

class Log {
 public:
  // `level`: debug, info, warning, error. Errors (usage): another word.
  Log(bool json, const std::string& level);

  // `fields` is an object: "request_id", "status" and so on.
  void write(LogLevel level, std::string_view message, const Json& fields = Json::object());
  void info(std::string_view message, const Json& fields = Json::object()) { write(LogLevel::info, message, fields); }
  void error(std::string_view message, const Json& fields = Json::object()) { write(LogLevel::error, message, fields); }
  void debug(std::string_view message, const Json& fields = Json::object()) { write(LogLevel::debug, message, fields); }
  void warning(std::string_view message, const Json& fields = Json::object()) {
    write(LogLevel::warning, message, fields);
  }

 private:
  bool json_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace m3::server
