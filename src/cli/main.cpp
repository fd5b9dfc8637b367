#include "src/cli/program.h"

int main(int argc, char** argv) { return m3::cli::run_program(argc, argv); }
