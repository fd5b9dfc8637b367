// m3 inspect: what a checkpoint, or a config.json alone, amounts to.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/checkpoint/inspection.h"

namespace m3::cli {

// Registers the subcommand and its work. Exit codes: 0 sound, 1 with problems (they are printed), 2 wrong usage.
void add_inspect_command(CLI::App& app);

// The two forms of its output.
std::string inspection_text(const Inspection& inspection);
std::string inspection_json(const Inspection& inspection);  // exact integers

}  // namespace m3::cli
