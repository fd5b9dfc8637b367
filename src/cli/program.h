// m3: one program, one subcommand a task.
#pragma once

#include "src/server/model.h"

namespace m3::cli {

// Runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted. `load_model` stands
// in for `m3 serve`'s own (tests of faults).
int run_program(int argc, char** argv, const server::ModelLoader& load_model = server::load_model);

}  // namespace m3::cli
