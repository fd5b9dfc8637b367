// The program's subcommands: each registers its options and its work on `app`.
#pragma once

#include <CLI/CLI.hpp>

#include "src/cli/chat_command.h"
#include "src/cli/inspect_command.h"
#include "src/cli/tokenize_command.h"
#include "src/server/model.h"

namespace m3::cli {

void add_run_command(CLI::App& app);
void add_trace_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_bench_serve_command(CLI::App& bench);
void add_bench_vision_command(CLI::App& bench);
void add_serve_command(CLI::App& app, const server::ModelLoader& load_model);

}  // namespace m3::cli
