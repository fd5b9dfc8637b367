// The flags of m3 serve, under vLLM's names where it has one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/cli/common.h"
#include "src/cli/media_flags.h"
#include "src/server/options.h"

namespace m3::cli {

struct ServeOptions {
  ModelOptions model;
  server::ServerOptions server;
  std::string chat_template;
  std::vector<std::string> origins = {"*"}, methods = {"*"}, headers = {"*"};
  double header_seconds = 10, body_seconds = 300, write_seconds = 60, keep_alive_seconds = 65, shutdown_seconds = 30;
  std::string log_format = "text";
  std::string tool_call_parser, reasoning_parser, chat_template_kwargs;
  int block_size = 128, tensor_parallel_size = 1;
  bool enable_auto_tool_choice = false, always = false;
  std::string dtype = "auto";
  MediaFlags media;

  // What depends on several flags, checked. Errors (usage): a certificate without its key; an empty key.
  server::ServerOptions finish() const;
};

void add_serve_options(CLI::App& command, ServeOptions& options);

}  // namespace m3::cli
