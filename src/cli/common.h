// What several subcommands share: options, default checkpoint, id files.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "m3/engine.h"

namespace m3::cli {

// The checkpoint that ships with the program: $M3_MODEL if set, else models/… of the source tree or installation
// this program was started from. Errors: none is found.
std::string shipped_checkpoint();

// Options that decide how a model is loaded, under the names vLLM uses where it has one.
struct ModelOptions {
  std::string checkpoint;  // empty: the one that ships
  EngineOptions engine;

  // The checkpoint's path, resolved. Errors: no directory with a config.json.
  std::string path() const;
};
void add_model_options(CLI::App& command, ModelOptions& options);

// Lists take one value an occurrence, in subcommands too: several would take the checkpoint behind them for one more.
void take_one_value_each(CLI::App& command);

// Sampling options of a request.
struct SamplingOptions {
  Request request;
  std::vector<std::string> logit_bias;  // "ID=VALUE"
  std::optional<std::string> seed;      // checked by finish(): the parser would cut large numbers silently

  // The request with seed and biases parsed. Errors: a malformed one.
  Request finish() const;
};
void add_picture_options(CLI::App& command, EngineOptions& engine);
void add_sampling_options(CLI::App& command, SamplingOptions& options);

// Whitespace-separated ids, or a one-dimensional integer .npy file; "-" reads text from standard input.
std::vector<std::int32_t> read_token_ids(const std::string& path);
// The same from bytes; `origin` names them in errors.
std::vector<std::int32_t> parse_token_ids(std::string_view bytes, const std::string& origin);

// Everything on standard input. Errors: more than `limit` bytes.
std::string read_standard_input(std::size_t limit);

// Turns true when the user presses Ctrl-C (first call installs the handler; a second Ctrl-C ends the program).
bool interrupted();
// For a program that goes on behind a Ctrl-C: forgets it, and from then on only many of them, without one being
// forgotten in between, end the program.
void clear_interrupt();

// Writes to standard output at once. Errors: the disk is full; CLI::RuntimeError where the reader went away, which
// ends the program without a line.
void write_output(std::string_view text);

}  // namespace m3::cli
