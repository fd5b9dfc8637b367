// m3 run: completes a prompt, streaming.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <map>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/ops/machine_limits.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t prompt_limit = std::size_t{64} << 20;
constexpr const char* sample_prompt =
    "Once upon a time there was a little girl who lived at the edge of a great forest. One morning";
constexpr std::int64_t sample_tokens = 120;

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  bool parse_special = false;
  bool json = false;
  bool stats = false;
};

// What one sample has become so far.
struct Reply {
  std::string text;
  std::vector<TokenId> ids;
  Json logprobs = Json::array();
  Event last;
};

std::string pick_prompt(const CLI::App& command, const RunOptions& options, bool& built_in) {
  built_in = false;
  if (command.count("--prompt") > 0 && command.count("--prompt-file") > 0)
    fail_usage("--prompt and --prompt-file: give one of them");
  if (command.count("--prompt") > 0) return options.prompt;
  if (command.count("--prompt-file") > 0 && options.prompt_file != "-")
    return read_text_input(options.prompt_file, prompt_limit);
  const bool nothing_piped = ::isatty(STDIN_FILENO) != 0;
  if (options.prompt_file == "-" || !nothing_piped) {
    std::string text = read_standard_input(prompt_limit);
    if (!text.empty() || options.prompt_file == "-") return text;
  }
  built_in = true;
  return sample_prompt;
}

Json logprob_json(const Engine& engine, const TokenLogprob& entry) {
  const std::string text = engine.decode({&entry.id, 1}, false);
  return {{"id", entry.id}, {"token", text}, {"logprob", entry.logprob}};
}

void add_logprobs(const Engine& engine, const Event& event, Reply& reply) {
  for (std::size_t i = 0; i < event.logprobs.size(); ++i) {
    Json entry = logprob_json(engine, event.logprobs[i]);
    entry["top"] = Json::array();
    for (const TokenLogprob& top : event.top_logprobs[i]) entry["top"].push_back(logprob_json(engine, top));
    reply.logprobs.push_back(std::move(entry));
  }
}

Json reply_json(const std::map<int, Reply>& replies, const Request& request, const ModelInfo& info,
                const Json& timings) {
  Json samples = Json::array();
  for (const auto& [index, reply] : replies) {
    Json sample = {{"text", reply.text}, {"ids", reply.ids}, {"finish_reason", finish_reason_name(reply.last.finish)}};
    if (!reply.last.stop_reason.empty()) sample["stop_reason"] = reply.last.stop_reason;
    if (request.logprobs >= 0) sample["logprobs"] = reply.logprobs;
    sample["usage"] = {{"prompt_tokens", reply.last.usage.prompt_tokens},
                       {"completion_tokens", reply.last.usage.completion_tokens},
                       {"cached_tokens", reply.last.usage.cached_tokens}};
    samples.push_back(std::move(sample));
  }
  Json out = samples.size() == 1 ? samples.front() : Json{{"samples", samples}};
  out["model"] = info.name;
  out["timings"] = timings;
  return out;
}

double rate(std::int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

void print_stats(const ModelInfo& info, const Statistics& statistics, std::int64_t samples, double load_seconds,
                 int threads) {
  // The first token of each sample comes from the prompt's last logits; the others each took one decode step.
  const std::int64_t steps = std::max<std::int64_t>(0, statistics.generated_tokens - samples);
  const double decode_rate = rate(steps, statistics.decode_seconds);
  const double read = decode_rate * static_cast<double>(info.active_weight_bytes);
  write_error(fmt::format("model     {}: {:.1f} MB of weights, {:.1f} MB read for a decoded token, on {}\n", info.name,
                          static_cast<double>(info.weight_bytes) / 1e6,
                          static_cast<double>(info.active_weight_bytes) / 1e6, info.backend));
  write_error(fmt::format("start     {:.2f} s\n", load_seconds));
  write_error(fmt::format("prefill   {} tokens, {:.1f} tokens/s\n", statistics.prefilled_tokens,
                          rate(statistics.prefilled_tokens, statistics.prefill_seconds)));
  ThreadPool pool(threads);
  const double limit = ops::measure_read_bandwidth(pool);
  const bool in_cache = info.active_weight_bytes < ops::last_cache_bytes();
  write_error(fmt::format(
      "decode    {} tokens, {:.1f} tokens/s, {:.2f} GB/s of weights read, {}\n", statistics.generated_tokens,
      decode_rate, read / 1e9,
      in_cache ? fmt::format("in cache (memory reads at {:.1f} GB/s)", limit / 1e9)
               : fmt::format("{:.0f} % of the {:.1f} GB/s that memory gives", 100 * read / limit, limit / 1e9)));
}

void run(const CLI::App& command, const RunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  bool built_in = false;
  Request request = options.sampling.finish();
  request.prompt = pick_prompt(command, options, built_in);
  request.parse_special = options.parse_special;
  if (request.prompt.empty())
    fail_usage("the prompt is empty: give --prompt TEXT, --prompt-file FILE, or text on standard input");
  if (built_in && !request.max_tokens) request.max_tokens = sample_tokens;
  if (command.count("--logprobs") > 0 && request.logprobs < 0)
    fail_usage("--logprobs {}: give a number from 0", request.logprobs);
  if (request.logprobs >= 0 && !options.json) fail_usage("--logprobs shows in --json output only; add --json");
  if (request.samples > 1 && !options.json)
    fail_usage("--n {} shows in --json output only; add --json", request.samples);

  EngineOptions engine_options = options.model.engine;
  engine_options.checkpoint = options.model.path();
  engine_options.max_num_seqs = request.samples > 0 ? request.samples : 1;  // others than these never come
  const std::unique_ptr<Engine> engine = Engine::load(engine_options);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  static_cast<void>(interrupted());  // from here Ctrl-C ends the reply, not the program
  if (built_in && !options.json) {
    write_error(fmt::format("No prompt given; completing a sample (m3 run --help tells more).\n\n"));
    write_output(request.prompt);
  }
  std::map<int, Reply> replies;
  std::string error;
  double first_token_seconds = 0;
  const auto submitted = std::chrono::steady_clock::now();
  generate(
      *engine, request,
      [&](const Event& event) {
        if (replies.empty())
          first_token_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - submitted).count();
        Reply& reply = replies[event.sample];
        reply.text += event.text;
        reply.ids.insert(reply.ids.end(), event.ids.begin(), event.ids.end());
        add_logprobs(*engine, event, reply);
        reply.last = event;
        if (event.finish == FinishReason::error && error.empty()) error = event.error;
        if (!options.json) write_output(event.text);
      },
      interrupted);

  const Statistics statistics = engine->statistics();
  if (options.json && error.empty()) {
    const Json timings = {{"load_seconds", load_seconds},
                          {"first_token_seconds", first_token_seconds},
                          {"prefill_seconds", statistics.prefill_seconds},
                          {"decode_seconds", statistics.decode_seconds}};
    write_output(
        reply_json(replies, request, engine->info(), timings).dump(2, ' ', false, Json::error_handler_t::replace) +
        "\n");
  } else if (!options.json) {
    const auto& text = replies[0].text;
    if (!text.empty() && text.back() != '\n') write_output("\n");
  }
  if (!error.empty()) fail("{}", error);
  if (options.stats) print_stats(engine->info(), statistics, request.samples, load_seconds, engine_options.threads);
  if (interrupted()) throw CLI::RuntimeError(130);
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("run", "Complete a prompt");
  const auto options = std::make_shared<RunOptions>();
  add_model_options(command, options->model);
  command.add_option("--prompt", options->prompt, "The text to complete");
  command.add_option("--prompt-file", options->prompt_file, "Read it from a file, or from standard input with -");
  command.add_flag("--parse-special", options->parse_special, "Recognise special tokens written in the prompt");
  add_sampling_options(command, options->sampling);
  command.add_flag("--json", options->json, "Print one JSON object: text, ids, log-probabilities, timings");
  command.add_flag("--stats", options->stats,
                   "Print speeds, and their share of the read bandwidth measured then, to standard error");
  command.callback([&command, options] { run(command, *options); });
}

}  // namespace m3::cli
