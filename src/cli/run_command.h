// What m3 run's ways share: raw completion, one answered question, a chat at a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "m3/engine.h"
#include "src/cli/common.h"
#include "src/cli/media_flags.h"

namespace m3::cli {

constexpr std::size_t prompt_limit = std::size_t{64} << 20;

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  bool raw = false;
  bool parse_special = false;
  bool json = false;
  bool stats = false;
  // Of a chat.
  std::string system;
  std::string request;  // a file
  std::string thinking;
  std::optional<std::int64_t> thinking_budget;
  std::string tools;  // a file
  std::string tool_choice;
  std::string json_schema;  // a file
  bool show_reasoning = false;
  std::vector<std::string> images, videos;  // files of the question
  MediaFlags media;
};

// The prompt that was given by option, file or standard input; nothing where none was.
std::optional<std::string> given_prompt(const CLI::App& command, const RunOptions& options);

struct LoadedEngine {
  std::unique_ptr<Engine> engine;
  double load_seconds = 0;  // since the program began to load
};
LoadedEngine load_engine(const RunOptions& options);

using Json = nlohmann::ordered_json;

// Log-probabilities of an event's tokens, appended to a list.
void add_logprobs(const Engine& engine, const Event& event, Json& list);
Json usage_json(const Usage& usage);
// One object for one sample, else {"samples": […]}; model and timings behind.
std::string reply_json(Json samples, const Engine& engine, double load_seconds, double first_token_seconds);
void print_stats(const Engine& engine, std::int64_t samples, double load_seconds, int threads);

// The chat's part of m3 run. Returns the exit code.
int run_chat(const CLI::App& command, const RunOptions& options);

}  // namespace m3::cli
