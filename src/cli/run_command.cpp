// m3 run: a chat where the checkpoint has a template; with --raw, a prompt completed.
#include "src/cli/run_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/cli/commands.h"

namespace m3::cli {

namespace {

constexpr const char* sample_prompt =
    "Once upon a time there was a little girl who lived at the edge of a great forest. One morning";
constexpr std::int64_t sample_tokens = 120;
// A checkpoint that holds this file only completes text: what `m3 run` without a question completes.
constexpr const char* sample_file = "sample-prompt.txt";

constexpr std::array chat_options = {"--system", "--request",     "--thinking",    "--thinking-budget",
                                     "--tools",  "--tool-choice", "--json-schema", "--show-reasoning",
                                     "--image",  "--video"};

// What one sample has become so far.
struct Completion {
  std::string text;
  std::vector<TokenId> ids;
  Json logprobs = Json::array();
  Event last;
};

Json completion_json(const Completion& completion, bool logprobs) {
  Json sample = {{"text", completion.text},
                 {"ids", completion.ids},
                 {"finish_reason", finish_reason_name(completion.last.finish)}};
  if (!completion.last.stop_reason.empty()) sample["stop_reason"] = completion.last.stop_reason;
  if (logprobs) sample["logprobs"] = completion.logprobs;
  sample["usage"] = usage_json(completion.last.usage);
  return sample;
}

void run_raw(const CLI::App& command, const RunOptions& options, const std::string& sample) {
  Request request = options.sampling.finish();
  const std::optional<std::string> given = given_prompt(command, options);
  request.prompt = given.value_or(sample);
  request.parse_special = options.parse_special;
  if (request.prompt.empty())
    fail_usage("the prompt is empty: give --prompt TEXT, --prompt-file FILE, or text on standard input");
  if (!given && !request.max_tokens) request.max_tokens = sample_tokens;
  const LoadedEngine loaded = load_engine(options);
  Engine& engine = *loaded.engine;

  static_cast<void>(interrupted());  // from here Ctrl-C ends the reply, not the program
  if (!given && !options.json) {
    write_error(fmt::format("No prompt given; completing a sample (m3 run --help tells more).\n\n"));
    write_output(request.prompt);
  }
  std::map<int, Completion> samples;
  std::string error;
  double first_token_seconds = 0;
  const auto submitted = std::chrono::steady_clock::now();
  generate(
      engine, request,
      [&](const Event& event) {
        if (samples.empty())
          first_token_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - submitted).count();
        Completion& completion = samples[event.sample];
        completion.text += event.text;
        completion.ids.insert(completion.ids.end(), event.ids.begin(), event.ids.end());
        add_logprobs(engine, event, completion.logprobs);
        completion.last = event;
        if (event.finish == FinishReason::error && error.empty()) error = event.error;
        if (!options.json) write_output(event.text);
      },
      interrupted);

  if (options.json && error.empty()) {
    Json list = Json::array();
    for (const auto& [index, completion] : samples) list.push_back(completion_json(completion, request.logprobs >= 0));
    write_output(reply_json(std::move(list), engine, loaded.load_seconds, first_token_seconds));
  } else if (!options.json) {
    const auto& text = samples[0].text;
    if (!text.empty() && text.back() != '\n') write_output("\n");
  }
  if (!error.empty()) fail("{}", error);
  if (options.stats) print_stats(engine, request.samples, loaded.load_seconds, options.model.engine.threads);
  if (interrupted()) throw CLI::RuntimeError(130);
}

// The sample of a checkpoint that only completes text, where nothing else was asked for.
std::optional<std::string> own_sample(const CLI::App& command, const RunOptions& options) {
  if (!options.model.checkpoint.empty()) return std::nullopt;
  for (const char* option : chat_options) {
    if (command.count(option) > 0) return std::nullopt;
  }
  const std::filesystem::path file = std::filesystem::path(options.model.path()) / sample_file;
  if (!std::filesystem::exists(file)) return std::nullopt;
  std::string text = read_text_file(file, prompt_limit);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

void check(const CLI::App& command, const RunOptions& options) {
  const Request& request = options.sampling.request;
  if (command.count("--logprobs") > 0 && request.logprobs < 0)
    fail_usage("--logprobs {}: give a number from 0", request.logprobs);
  if (request.logprobs >= 0 && !options.json) fail_usage("--logprobs shows in --json output only; add --json");
  if (request.samples > 1 && !options.json)
    fail_usage("--n {} shows in --json output only; add --json", request.samples);
  if (command.count("--prompt") > 0 && command.count("--prompt-file") > 0)
    fail_usage("--prompt and --prompt-file: give one of them");
  if (!options.raw && options.parse_special) fail_usage("--parse-special is for --raw: a chat's text stays text");
  for (const char* option : chat_options) {
    if (options.raw && command.count(option) > 0) fail_usage("{} is for chats; it has no effect with --raw", option);
  }
}

void run(const CLI::App& command, const RunOptions& options) {
  check(command, options);
  if (options.raw) return run_raw(command, options, sample_prompt);
  const bool asked = command.count("--prompt") > 0 || command.count("--prompt-file") > 0;
  if (!asked) {
    if (const auto sample = own_sample(command, options)) return run_raw(command, options, *sample);
  }
  const int code = run_chat(command, options);
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

std::optional<std::string> given_prompt(const CLI::App& command, const RunOptions& options) {
  const bool from_input = options.prompt == "-" || options.prompt_file == "-";
  if (command.count("--prompt") > 0 && !from_input) return options.prompt;
  if (command.count("--prompt-file") > 0 && !from_input) return read_text_input(options.prompt_file, prompt_limit);
  const bool nothing_piped = ::isatty(STDIN_FILENO) != 0;
  if (from_input || !nothing_piped) {
    std::string text = read_standard_input(prompt_limit);
    if (!text.empty() || from_input) return text;
  }
  return std::nullopt;
}

LoadedEngine load_engine(const RunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  EngineOptions engine_options = options.model.engine;
  engine_options.checkpoint = options.model.path();
  engine_options.max_num_seqs = std::max(1, options.sampling.request.samples);  // others than these never come
  LoadedEngine loaded;
  loaded.engine = Engine::load(engine_options);
  loaded.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

void add_run_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("run", "Chat with a model, ask it one question, or complete a text");
  const auto options = std::make_shared<RunOptions>();
  add_model_options(command, options->model);
  add_picture_options(command, options->model.engine);
  add_media_flags(command, options->media);
  add_web_flags(command, options->media);
  command.add_option("-p,--prompt", options->prompt,
                     "The question, or with --raw the text to complete; - is standard input");
  command.add_option("--prompt-file", options->prompt_file, "Read it from a file, or from standard input with -");
  command.add_flag("--raw", options->raw, "Complete the text as it is, without the chat format");
  command.add_flag("--parse-special", options->parse_special,
                   "With --raw: recognise special tokens written in the prompt");
  command.add_option("--image", options->images, "A picture for the question, a file; may be repeated")->take_all();
  command.add_option("--video", options->videos, "A video for the question, a file; may be repeated")->take_all();
  command.add_option("--system", options->system, "The system prompt");
  command.add_option("--request", options->request,
                     "Begin with the messages, tools and settings of a /v1/chat/completions body, a JSON file");
  command.add_option("--thinking", options->thinking, "enabled, adaptive or disabled (default: adaptive)");
  command.add_option("--thinking-budget", options->thinking_budget, "Tokens of reasoning at most");
  command.add_option("--tools", options->tools, "Tools that may be called, a JSON file as in the API");
  command.add_option("--tool-choice", options->tool_choice, "auto, none, required, or the name of a tool");
  command.add_option("--json-schema", options->json_schema, "The answer is JSON of this JSON Schema, a file");
  command.add_flag("--show-reasoning", options->show_reasoning,
                   "Print the reasoning before the answer (a chat at a terminal always shows it)");
  add_sampling_options(command, options->sampling);
  command.add_flag("--json", options->json, "Print one JSON object: message, text, ids, log-probabilities, timings");
  command.add_flag("--stats", options->stats,
                   "Print speeds, and their share of the read bandwidth measured then, to standard error");
  command.callback([&command, options] { run(command, *options); });
}

}  // namespace m3::cli
