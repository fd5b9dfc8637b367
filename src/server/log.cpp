#include "src/server/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "src/base/error.h"

namespace m3::server {
namespace {

spdlog::level::level_enum spd_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

LogLevel level_of(const std::string& name) {
  if (name == "debug" || name == "trace") return LogLevel::debug;
  if (name == "info") return LogLevel::info;
  if (name == "warning") return LogLevel::warning;
  if (name == "error" || name == "critical") return LogLevel::error;
  fail_usage("log level {}: known are critical, error, warning, info, debug and trace", name);
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
  }
  return "";
}

}  // namespace

Log::Log(bool json, const std::string& level)
    : json_(json),
      // Not registered by name: several servers may live in one process.
      logger_(std::make_shared<spdlog::logger>("m3", std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  logger_->set_level(spd_level(level_of(level)));
  logger_->set_pattern(json ? "%v" : "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger_->flush_on(spdlog::level::trace);
}

void Log::write(LogLevel level, std::string_view message, const Json& fields) {
  const auto spd = spd_level(level);
  if (!logger_->should_log(spd)) return;
  if (json_) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    Json line = {
        {"time", std::chrono::duration<double>(now).count()}, {"level", level_name(level)}, {"message", message}};
    line.update(fields);
    return logger_->log(spd, "{}", to_text(line));
  }
  std::string line(message);
  for (const auto& [name, value] : fields.items()) {
    line += ' ';
    line += name;
    line += '=';
    const std::string text = to_text(value);
    // Strings without quotes where nothing can be mistaken.
    const bool plain = value.is_string() && text.find_first_of(" \\=") == std::string::npos;
    line += plain ? text.substr(1, text.size() - 2) : text;
  }
  logger_->log(spd, "{}", line);
}

}  // namespace m3::server
