// m3 eval: bits per byte and perplexity of a text.
#include <nlohmann/json.hpp>

#include <cmath>
#include <numbers>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/progress.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/engine/evaluate.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::cli {

namespace {

constexpr std::size_t text_limit = std::size_t{1} << 30;

struct EvalOptions {
  ModelOptions model;
  std::string text;
  std::int64_t window = 2048;
  std::int64_t stride = 1024;
  bool json = false;
};

void run(const EvalOptions& options) {
  const std::string path = options.model.path();
  const std::string text =
      options.text == "-" ? read_standard_input(text_limit) : read_text_input(options.text, text_limit);
  if (text.empty()) fail("{} is empty; there is nothing to evaluate", options.text);
  const EngineOptions& engine = options.model.engine;
  Checkpoint checkpoint = Checkpoint::open(path, {engine.quantization, engine.quantization_exclude});
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::vector<std::int32_t> ids = tokenizer.encode(text, {.parse_special = false});

  engine::LoadedModelOptions load = engine::loaded_model_options(engine);
  load.max_model_len = engine.max_model_len > 0 ? engine.max_model_len : options.window;
  load.max_batched_tokens = std::min(
      engine.max_num_batched_tokens > 0 ? engine.max_num_batched_tokens : engine::host_batched_tokens, options.window);
  load.max_logits_rows = load.max_batched_tokens;
  if (load.max_model_len < options.window)
    fail_usage("--window {} is longer than --max-model-len {}", options.window, load.max_model_len);
  engine::LoadedModel model(std::move(checkpoint), load);

  Progress progress("evaluating", static_cast<std::int64_t>(ids.size()) - 1, "tokens");
  const engine::Evaluation result =
      engine::evaluate(model, ids, options.window, options.stride, [&](std::int64_t done) {
        progress.update(done);
        if (interrupted()) fail("interrupted after {} of {} tokens", done, ids.size() - 1);
      });
  // The first token is given, so its bytes do not count.
  const auto bytes = static_cast<double>(text.size() - tokenizer.token_bytes(ids.front()).size());
  const double bits_per_byte = result.nll / std::numbers::ln2 / bytes;
  const double perplexity = std::exp(result.nll / static_cast<double>(result.tokens));
  if (options.json) {
    const nlohmann::ordered_json out = {{"bytes", text.size()},           {"tokens", ids.size()},
                                        {"predicted", result.tokens},     {"window", options.window},
                                        {"stride", options.stride},       {"nll", result.nll},
                                        {"bits_per_byte", bits_per_byte}, {"perplexity", perplexity}};
    write_output(out.dump(2) + "\n");
  } else {
    write_output(
        fmt::format("{} bytes, {} tokens ({:.2f} bytes a token), windows of {} with stride {}\nbits per byte  "
                    "{:.4f}\nperplexity     {:.3f} a token\n",
                    text.size(), ids.size(), static_cast<double>(text.size()) / static_cast<double>(ids.size()),
                    options.window, options.stride, bits_per_byte, perplexity));
  }
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("eval", "Bits per byte and perplexity of a text");
  const auto options = std::make_shared<EvalOptions>();
  add_model_options(command, options->model);
  command.add_option("--text", options->text, "The text file; - for standard input")->required();
  command.add_option("--window", options->window, "Tokens of context at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command.add_option("--stride", options->stride, "Tokens from one window to the next")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_flag("--json", options->json, "Print one JSON object");
  command.callback([options] { run(*options); });
}

}  // namespace m3::cli
