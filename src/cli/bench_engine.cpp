#include "src/cli/bench_engine.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "src/base/error.h"
#include "src/engine/benchmark.h"
#include "src/engine/engine_benchmark.h"

namespace m3::cli {

namespace {

constexpr std::int64_t prompt_tokens = 64;
constexpr std::int64_t reply_tokens = 128;

}  // namespace

void bench_engine(Checkpoint checkpoint, const EngineBenchOptions& options) {
  using Json = nlohmann::ordered_json;
  const auto [least, most] = std::ranges::minmax(options.concurrent);
  if (least < 1 || most > 4096) fail_usage("--engine takes numbers of concurrent requests from 1 to 4096");
  const EngineOptions& engine_options = options.model.engine;
  const std::int64_t asked = engine_options.max_num_batched_tokens;
  const std::int64_t step_tokens = asked > 0 ? std::max(asked, most) : 0;
  engine::LoadedModelOptions load = engine::loaded_model_options(engine_options);
  load.isa = options.isa;
  load.max_model_len = prompt_tokens + reply_tokens;
  load.max_batched_tokens = step_tokens;
  load.max_sequences = most;
  load.max_logits_rows = engine::logits_rows(most, step_tokens);
  load.full_contexts = most;
  const auto model = std::make_shared<engine::LoadedModel>(std::move(checkpoint), load);
  // Without a prefix cache, so that the model alone has all the pages between the engine's runs.
  engine::LocalEngine engine(
      model, Tokenizer::load(options.model.path()), GenerationConfig{},
      {.max_num_seqs = most, .max_queued_requests = most, .enable_prefix_caching = false, .before_step = {}});

  Json out = {{"backend", engine.info().backend}, {"rows", Json::array()}};
  if (!options.json) {
    write_output(
        fmt::format("{}; decoding, prompts of {} and replies of {} tokens\n\n{:>10} {:>14} {:>15} {:>8} {:>12}\n",
                    engine.info().backend, prompt_tokens, reply_tokens, "concurrent", "model tokens/s",
                    "engine tokens/s", "share", "overhead"));
  }
  for (const std::int64_t concurrent : options.concurrent) {
    const std::int64_t context = prompt_tokens + reply_tokens / 2;
    const double before = engine::time_decode(*model, concurrent, context, options.repeats).seconds;
    const engine::EngineTiming timing = engine::time_engine(engine, concurrent, prompt_tokens, reply_tokens);
    const double after = engine::time_decode(*model, concurrent, context, options.repeats).seconds;
    const double model_rate = static_cast<double>(concurrent) * 2 / (before + after);
    const double share = timing.tokens_per_second / model_rate;
    out["rows"].push_back({{"concurrent", concurrent},
                           {"model_tokens_per_second", model_rate},
                           {"engine_tokens_per_second", timing.tokens_per_second},
                           {"share", share},
                           {"scheduler_share", timing.scheduler_share},
                           {"first_token_seconds", timing.first_token_seconds}});
    if (!options.json) {
      write_output(fmt::format("{:>10} {:>14.1f} {:>15.1f} {:>7.0f}% {:>11.1f}%\n", concurrent, model_rate,
                               timing.tokens_per_second, share * 100, timing.scheduler_share * 100));
    }
  }
  if (options.json) write_output(out.dump(2) + "\n");
}

}  // namespace m3::cli
