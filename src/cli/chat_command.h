// m3 chat-render and m3 chat-parse: the chat format without a model.
#pragma once

#include <CLI/CLI.hpp>

namespace m3::cli {

void add_chat_commands(CLI::App& app);

}  // namespace m3::cli
