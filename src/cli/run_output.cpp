// What m3 run prints beside the text: JSON and speeds.
#include <algorithm>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/cli/run_command.h"
#include "src/ops/backends.h"
#include "src/ops/machine_limits.h"

namespace m3::cli {

namespace {

Json logprob_json(const Engine& engine, const TokenLogprob& entry) {
  const std::string text = engine.decode({&entry.id, 1}, false);
  return {{"id", entry.id}, {"token", text}, {"logprob", entry.logprob}};
}

double rate(std::int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

}  // namespace

void add_logprobs(const Engine& engine, const Event& event, Json& list) {
  for (std::size_t i = 0; i < event.logprobs.size(); ++i) {
    Json entry = logprob_json(engine, event.logprobs[i]);
    entry["top"] = Json::array();
    for (const TokenLogprob& top : event.top_logprobs[i]) entry["top"].push_back(logprob_json(engine, top));
    list.push_back(std::move(entry));
  }
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"cached_tokens", usage.cached_tokens}};
}

std::string reply_json(Json samples, const Engine& engine, double load_seconds, double first_token_seconds) {
  const Statistics statistics = engine.statistics();
  Json out = samples.size() == 1 ? Json(samples.front()) : Json{{"samples", std::move(samples)}};
  out["model"] = engine.info().name;
  out["timings"] = {{"load_seconds", load_seconds},
                    {"first_token_seconds", first_token_seconds},
                    {"prefill_seconds", statistics.prefill_seconds},
                    {"decode_seconds", statistics.decode_seconds}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_stats(const Engine& engine, std::int64_t samples, double load_seconds, int threads) {
  const ModelInfo& info = engine.info();
  const Statistics statistics = engine.statistics();
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
  const double limit = ops::measure_read_bytes(info.device, pool);
  const bool in_cache = info.device != "cuda" && info.active_weight_bytes < ops::last_cache_bytes();
  write_error(fmt::format(
      "decode    {} tokens, {:.1f} tokens/s, {:.2f} GB/s of weights read, {}\n", statistics.generated_tokens,
      decode_rate, read / 1e9,
      in_cache ? fmt::format("in cache (memory reads at {:.1f} GB/s)", limit / 1e9)
               : fmt::format("{:.0f} % of the {:.1f} GB/s that memory gives", 100 * read / limit, limit / 1e9)));
}

}  // namespace m3::cli
