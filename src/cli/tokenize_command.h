// m3 tokenize: text to tokens and back.
#pragma once

#include <CLI/CLI.hpp>

namespace m3::cli {

void add_tokenize_command(CLI::App& app);

}  // namespace m3::cli
