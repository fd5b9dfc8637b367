// The flags of m3 serve, under vLLM's names where it has one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/cli/common.h"
#include "src/server/options.h"

namespace m3::cli {

struct ServeOptions {
  ModelOptions model;
  server::ServerOptions server;
  std::string chat_template;
  double header_seconds = 10, keep_alive_seconds = 65, shutdown_seconds = 30, write_seconds = 60;
  bool no_request_log = false, no_packets = false;

  // With what depends on several flags checked. Errors (usage): a certificate without its key.
  server::ServerOptions finish(const CLI::App& command) const;
};

void add_serve_options(CLI::App& command, ServeOptions& options);

}  // namespace m3::cli
