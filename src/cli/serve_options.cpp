#include "src/cli/serve_options.h"

#include <cstdlib>

#include "src/base/error.h"

namespace m3::cli {

void add_serve_options(CLI::App& command, ServeOptions& options) {
  server::ServerOptions& server = options.server;
  command.add_option("--host", server.host, "Address to listen at")->capture_default_str();
  command.add_option("--port", server.port, "Port; 0 picks a free one")->capture_default_str();
  command.add_option("--served-model-name", server.served_names,
                     "Names that requests may give; replies give the first (default: the checkpoint's folder)");
  command.add_option("--api-key", server.api_keys,
                     "A key that callers must show; several may be given (also: $M3_API_KEY)");
  command.add_option("--chat-template", options.chat_template, "A chat template file in place of the checkpoint's");
  command
      .add_option("--timeout-graceful-shutdown", options.shutdown_seconds,
                  "Seconds that running requests have after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

server::ServerOptions ServeOptions::finish(const CLI::App&) const {
  server::ServerOptions finished = server;
  if (const char* key = std::getenv("M3_API_KEY"); key != nullptr && *key != '\0') finished.api_keys.emplace_back(key);
  for (const std::string& key : finished.api_keys) {
    if (key.empty()) fail_usage("--api-key: a key is empty");
  }
  finished.shutdown_timeout = server::Seconds(shutdown_seconds);
  return finished;
}

}  // namespace m3::cli
