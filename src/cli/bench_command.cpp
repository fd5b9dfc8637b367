// m3 bench: prefill and decode speeds, each with its share of the limit measured in the same run.
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/cli/bench_engine.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/engine/benchmark.h"
#include "src/engine/profile.h"
#include "src/ops/backends.h"
#include "src/ops/machine_limits.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  ModelOptions model;
  std::string random_config, format = "bf16";
  std::vector<std::string> isas = {""};
  std::vector<int> thread_counts;  // empty: --threads
  std::vector<std::int64_t> batches = {1}, contexts = {0}, engine;
  std::int64_t prompt = 512;
  int layers = 0, experts = 0, repeats = 5;
  bool json = false;
  bool profile = false;
  bool stored = false;
  bool format_given = false;
};

Checkpoint open_model(const BenchOptions& options) {
  const EngineOptions& engine = options.model.engine;
  if (options.random_config.empty()) {
    if (options.format_given) fail_usage("--format is of a --random-config; a checkpoint is run as it is");
    if (options.stored) fail_usage("--stored is of a --random-config; a checkpoint is stored");
    if (options.layers > 0 || options.experts > 0)
      fail_usage("--layers and --experts cut a --random-config; a checkpoint is run as it is");
    return Checkpoint::open(options.model.path(), {engine.quantization, engine.quantization_exclude});
  }
  if (!options.model.checkpoint.empty()) fail_usage("a checkpoint and --random-config: give one of them");
  if (!engine.quantization.empty() || !engine.quantization_exclude.empty())
    fail_usage("--quantization is of a checkpoint; --format says what the weights of a --random-config are");
  ModelConfig config = read_config(options.random_config);
  if (options.layers > 0) {
    if (options.layers > config.num_hidden_layers)
      fail_usage("--layers {}: the configuration has {}", options.layers, config.num_hidden_layers);
    // The first layers, and at least one of the sparse ones that follow the dense ones.
    const auto first_sparse =
        static_cast<int>(std::ranges::find_if(config.layers, &LayerKind::sparse_attention) - config.layers.begin());
    std::vector<LayerKind> kept;
    const int dense =
        std::max(0, std::min(first_sparse, options.layers - (first_sparse < config.num_hidden_layers ? 1 : 0)));
    const int leading = std::min(dense, 1);
    kept.insert(kept.end(), config.layers.begin(), config.layers.begin() + leading);
    for (int i = first_sparse; static_cast<int>(kept.size()) < options.layers && i < config.num_hidden_layers; ++i)
      kept.push_back(config.layers[static_cast<std::size_t>(i)]);
    while (static_cast<int>(kept.size()) < options.layers) kept.push_back(config.layers.front());
    config.layers = kept;
    config.num_hidden_layers = options.layers;
  }
  if (options.experts > 0) {
    if (options.experts < config.num_experts_per_tok || options.experts > config.num_local_experts) {
      fail_usage("--experts {}: give {} to {}", options.experts, config.num_experts_per_tok, config.num_local_experts);
    }
    config.num_local_experts = options.experts;
  }
  // A device makes its weights where they stay.
  return options.model.engine.device == "cuda" && !options.stored ? Checkpoint::random_unmade(config, options.format, 1)
                                                                  : Checkpoint::random(config, options.format, 1);
}

std::string layer_map(const ModelConfig& config) {
  std::string map;
  for (const LayerKind& layer : config.layers) map += layer.sparse_attention ? 'S' : 'D';
  return map;
}

void note(const BenchOptions& options, const std::string& line) {
  if (!options.json) write_output(line);
}

// The operations of `passes` passes that took `seconds` each, with each one's share of its limit: the time that its
// bytes or its operations take at best, whichever is longer.
void show_profile(const BenchOptions& options, const engine::Profile& profile, double seconds,
                  const ops::MeasuredLimits& limits, Json& row) {
  const double passes = options.repeats;
  double all = 0;
  for (const engine::Profile::Entry& entry : profile.entries()) all += entry.seconds / passes;
  note(options, fmt::format("  {:<22} {:>5} {:>9} {:>8} {:>9} {:>9} {:>9}\n", "operation", "calls", "ms", "of time",
                            "GB read", "GFLOP", "of limit"));
  row["profile"] = Json::array();
  for (const engine::Profile::Entry& entry : profile.entries()) {
    const double own = entry.seconds / passes;
    const double reading = entry.bytes / passes / limits.read_bytes;
    const double computing = limits.operations > 0 ? entry.operations / passes / limits.operations : 0;
    const double limit = std::max(reading, computing);
    const bool reads = reading >= computing;
    note(options, fmt::format("  {:<22} {:>5} {:>9.3f} {:>7.1f}% {:>9.4f} {:>9.2f} {:>8.0f}% of {}\n", entry.operation,
                              entry.calls / options.repeats, own * 1e3, own / all * 100, entry.bytes / passes / 1e9,
                              entry.operations / passes / 1e9, limit / own * 100, reads ? "read" : "peak"));
    row["profile"].push_back({{"operation", entry.operation},
                              {"calls", entry.calls / options.repeats},
                              {"seconds", own},
                              {"bytes", entry.bytes / passes},
                              {"operations", entry.operations / passes},
                              {"limit", reads ? "read" : "compute"},
                              {"share_of_limit", limit / own}});
  }
  note(options, fmt::format("  operations {:.2f} ms (mean), a pass {:.2f} ms (median)\n\n", all * 1e3, seconds * 1e3));
}

// One instruction set and number of threads.
Json run_variant(const BenchOptions& options, const std::string& isa, int threads, Checkpoint& checkpoint) {
  const std::int64_t batch = *std::ranges::max_element(options.batches);
  const EngineOptions& engine = options.model.engine;
  engine::Profile profile;
  engine::LoadedModelOptions load = engine::loaded_model_options(engine);
  load.isa = isa;
  load.threads = threads;
  load.max_model_len = *std::ranges::max_element(options.contexts) + std::max<std::int64_t>(options.prompt, 1);
  const std::int64_t asked = engine.max_num_batched_tokens;
  load.max_batched_tokens = asked > 0 ? std::max(asked, batch) : 0;
  load.max_sequences = batch;
  load.max_logits_rows = batch;
  load.full_contexts = batch;
  if (options.profile) load.profile = &profile;
  engine::LoadedModel model(std::move(checkpoint), load);

  const ops::MeasuredLimits limits = ops::measure_limits(model.backend().name(), model.threads(), isa);
  const bool in_cache =
      model.backend().has_host_memory() && model.checkpoint().text_weight_bytes() < ops::last_cache_bytes();
  Json out = {{"backend", model.description()},
              {"layers", layer_map(model.config())},
              {"weight_bytes", model.checkpoint().text_weight_bytes()},
              {"read_bytes_per_second", limits.read_bytes},
              {limits.operation + "_operations_per_second", limits.operations},
              {"rows", Json::array()}};
  note(options,
       fmt::format("{}; {} layers {} (S sparse, D dense), {:.2f} GB of weights{}\nlimits measured now: read {:.1f} "
                   "GB/s, {} {:.0f} GFLOP/s\n\n",
                   model.description(), model.config().num_hidden_layers, layer_map(model.config()),
                   static_cast<double>(model.checkpoint().text_weight_bytes()) / 1e9,
                   in_cache ? ", which fit the last cache: shares of the read limit mean little" : "",
                   limits.read_bytes / 1e9, limits.operation, limits.operations / 1e9));
  const double placing = model.placing_seconds();
  if (placing > 0 && model.checkpoint().made().empty()) {
    const auto bytes = static_cast<double>(model.model().placed_bytes());
    out["load_bytes_per_second"] = bytes / placing;
    note(options, fmt::format("weights to the device: {:.2f} s, {:.1f} GB/s\n\n", placing, bytes / placing / 1e9));
  }
  const std::string header = fmt::format("{:<8} {:>6} {:>8} {:>11} {:>11} {:>9} {:>7} {:>9} {:>8}\n", "phase", "batch",
                                         "context", "tokens/s", "ms a pass", "GB read", "of read", "GFLOP", "of peak");
  if (!options.profile) note(options, header);
  const auto show = [&](const char* phase, std::int64_t size, std::int64_t cached, std::int64_t tokens,
                        const engine::Timing& timing) {
    const double read = timing.work.weight_bytes + timing.work.cache_bytes;
    const double tokens_per_second = static_cast<double>(tokens) / timing.seconds;
    const double read_share = read / timing.seconds / limits.read_bytes;
    const double compute_share =
        limits.operations > 0 ? timing.work.operations / timing.seconds / limits.operations : 0;
    if (options.profile) note(options, header);
    note(options, fmt::format("{:<8} {:>6} {:>8} {:>11.1f} {:>11.2f} {:>9.3f} {:>6.0f}% {:>9.1f} {:>7.0f}%\n", phase,
                              size, cached, tokens_per_second, timing.seconds * 1e3, read / 1e9, read_share * 100,
                              timing.work.operations / 1e9, compute_share * 100));
    Json row = {{"phase", phase},
                {"batch", size},
                {"context", cached},
                {"tokens_per_second", tokens_per_second},
                {"seconds", timing.seconds},
                {"weight_bytes", timing.work.weight_bytes},
                {"cache_bytes", timing.work.cache_bytes},
                {"operations", timing.work.operations},
                {"read_share", read_share},
                {"compute_share", compute_share}};
    if (options.profile) show_profile(options, profile, timing.seconds, limits, row);
    out["rows"].push_back(std::move(row));
  };
  for (const std::int64_t cached : options.contexts) {
    if (options.prompt > 0) {
      const engine::Timing timing = engine::time_prefill(model, options.prompt, cached, options.repeats, &profile);
      show("prefill", 1, cached, options.prompt, timing);
    }
    for (const std::int64_t size : options.batches) {
      show("decode", size, cached, size, engine::time_decode(model, size, cached, options.repeats, &profile));
    }
  }
  note(options, "\n");
  checkpoint = std::move(model).release_checkpoint();
  return out;
}

void run(BenchOptions options) {
  std::string& device = options.model.engine.device;
  if (device == "auto" && !options.random_config.empty() && ops::no_cuda_reason().empty()) device = "cuda";
  if (*std::ranges::min_element(options.batches) < 1) fail_usage("--batch takes numbers from 1");
  if (*std::ranges::min_element(options.contexts) < 0) fail_usage("--context takes numbers from 0");
  Checkpoint checkpoint = open_model(options);
  if (!options.engine.empty()) {
    if (!options.random_config.empty()) fail_usage("--engine needs a tokenizer: give a checkpoint, no --random-config");
    if (options.profile || options.isas.size() > 1 || !options.thread_counts.empty())
      fail_usage("--engine takes no --profile, no --scaling and one --isa");
    return bench_engine(std::move(checkpoint),
                        {options.model, options.isas.front(), options.engine, options.repeats, options.json});
  }
  const std::int64_t longest = *std::ranges::max_element(options.contexts);
  const std::int64_t own = std::max<std::int64_t>(options.prompt, 1), most = checkpoint.config().max_context();
  if (own > most) fail_usage("--prompt {}: the model's positions end at {}; ask for at most that", own, most);
  if (longest > most - own) {
    fail_usage("--context {}: the model's positions end at {}, and {} of --prompt follow; give at most {}", longest,
               most, own, most - own);
  }
  std::vector<int> thread_counts = options.thread_counts;
  if (thread_counts.empty()) thread_counts = {options.model.engine.threads};
  Json runs = Json::array();
  for (const std::string& isa : options.isas) {
    for (const int threads : thread_counts) runs.push_back(run_variant(options, isa, threads, checkpoint));
  }
  if (options.json) write_output((runs.size() == 1 ? runs.front() : runs).dump(2) + "\n");
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("bench", "Measure prefill and decode beside the machine's limits");
  const auto options = std::make_shared<BenchOptions>();
  add_model_options(command, options->model);
  command.remove_option(command.get_option("--max-model-len"));  // --context and --prompt say it
  command.add_option("--random-config", options->random_config,
                     "A config.json: random weights of that size, made in memory, the device's on cuda");
  command
      .add_option("--format", options->format,
                  "Of random weights: bf16, fp8, mxfp8, mxfp4 or nvfp4 (4-bit: the routed experts)")
      ->capture_default_str();
  command.add_flag("--stored", options->stored,
                   "Random weights in the host's memory first, as if mapped: times their way to the device");
  command.add_option("--layers", options->layers, "Cut the random model to this many layers")
      ->check(CLI::Range(1, 1 << 16));
  command.add_option("--experts", options->experts, "Cut the random model to this many routed experts")
      ->check(CLI::Range(1, 1 << 16));
  command
      .add_option("--isa", options->isas,
                  "Force the cpu backend's instruction set: avx2 or avx512; a list is run one by one")
      ->delimiter(',');
  command
      .add_option("--scaling", options->thread_counts,
                  "Numbers of threads, 1,2,4: everything is run with each, limits included")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  command.add_option("--batch", options->batches, "Sequences that decode together; a list 1,8,32 is run one by one")
      ->delimiter(',');
  command.add_option("--context", options->contexts, "Tokens already in the cache; a list is run one by one")
      ->delimiter(',');
  command.add_option("--prompt", options->prompt, "Tokens of the prefill; 0 = none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--repeats", options->repeats, "Timed passes; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      .add_option("--engine", options->engine,
                  "Instead: the engine's rate at so many concurrent requests, beside the model's at that batch")
      ->delimiter(',');
  command.add_flag("--profile", options->profile, "Time by operation, each beside its limit");
  command.add_flag("--json", options->json, "Print one JSON object");
  add_bench_serve_command(command);
  add_bench_vision_command(command);
  command.callback([&command, options] {
    if (!command.get_subcommands().empty()) return;
    options->format_given = command.count("--format") > 0;
    run(*options);
  });
}

}  // namespace m3::cli
