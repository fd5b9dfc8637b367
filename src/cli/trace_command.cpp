// m3 trace: what the model did at chosen positions, as a safetensors file.
#include <charconv>

#include "src/base/error.h"
#include "src/checkpoint/safetensors_writer.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/cli/pixel_file.h"
#include "src/engine/trace.h"

namespace m3::cli {

namespace {

struct TraceCommand {
  ModelOptions model;
  std::string ids_file, pixels_file, out, positions, tensors, backend = "cpu", numerics = "bf16", dropped;
  std::int64_t chunk = 0, greedy = 0;
  std::uint64_t shuffle_seed = 0;
};

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) {
      words.push_back(list.substr(begin, end - begin));
    } else if (!list.empty()) {
      fail_usage("\"{}\": an entry between commas is empty", list);
    }
    begin = end + 1;
  }
  return words;
}

template <typename T>
std::vector<T> number_list(const std::string& list, const char* option) {
  std::vector<T> numbers;
  for (const std::string& word : split_list(list)) {
    T value{};
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size())
      fail_usage("{} {}: write whole numbers separated by commas", option, word);
    numbers.push_back(value);
  }
  return numbers;
}

void run(const CLI::App& command, const TraceCommand& options) {
  engine::TraceOptions trace;
  if (options.ids_file.empty() && options.pixels_file.empty())
    fail_usage("nothing to trace: give --token-ids, --pixels or both");
  if (!options.ids_file.empty()) trace.token_ids = read_token_ids(options.ids_file);
  if (!options.pixels_file.empty()) trace.media = read_pixel_file(options.pixels_file);
  if (options.positions == "all") {
    for (std::size_t i = 0; i < trace.token_ids.size(); ++i) trace.positions.push_back(static_cast<std::int64_t>(i));
  } else {
    trace.positions = number_list<std::int64_t>(options.positions, "--positions");
    if (command.count("--positions") > 0 && trace.positions.empty())
      fail_usage("--positions is empty: write all or 0,5,…");
  }
  trace.greedy = options.greedy;
  if (command.count("--tensors") > 0) trace.tensors = split_list(options.tensors);
  if (trace.tensors.empty() && trace.greedy == 0) fail_usage("--tensors is empty: name at least one");
  trace.chunk = options.chunk;
  trace.shuffle_pages = command.count("--shuffle-pages") > 0;
  trace.shuffle_seed = options.shuffle_seed;
  trace.dropped_blocks = number_list<std::int32_t>(options.dropped, "--drop-blocks");

  if (options.backend != "scalar" && options.backend != "cpu")
    fail_usage("--backend {}: write scalar or cpu", options.backend);
  std::error_code ignored;
  if (std::filesystem::equivalent(options.ids_file, options.out, ignored))
    fail_usage("--out {} is the file of the ids; writing there would destroy it", options.out);
  if (std::filesystem::equivalent(options.pixels_file, options.out, ignored))
    fail_usage("--out {} is the file of the pixels; writing there would destroy it", options.out);
  const bool fp32 = options.numerics == "fp32";
  if (!fp32 && options.numerics != "bf16") fail_usage("--numerics {}: write bf16 or fp32", options.numerics);
  if (fp32 && options.backend != "scalar") fail_usage("--numerics fp32 is the judge's; add --backend scalar");

  const EngineOptions& engine = options.model.engine;
  engine::LoadedModelOptions load;
  load.device = options.backend;
  load.numerics = fp32 ? ops::Numerics::fp32 : ops::Numerics::bf16;
  load.threads = engine.threads;
  const auto needed = static_cast<std::int64_t>(trace.token_ids.size()) + trace.greedy;
  load.max_model_len = engine.max_model_len > 0 ? engine.max_model_len : std::max<std::int64_t>(needed, 1);
  const std::int64_t chunk = options.chunk > 0 ? options.chunk : engine.max_num_batched_tokens;
  load.max_batched_tokens = std::clamp<std::int64_t>(chunk, 1, std::max<std::int64_t>(needed, 1));
  load.max_logits_rows = std::min(load.max_batched_tokens,
                                  static_cast<std::int64_t>(std::max<std::size_t>(trace.positions.size(), 1)) + 1);
  // An fp32 trace keeps its caches in fp32 too, unless told otherwise.
  load.kv_cache_dtype = fp32 && command.count("--kv-cache-dtype") == 0 ? "f32" : engine.kv_cache_dtype;
  load.index_cache_dtype = fp32 && command.count("--index-cache-dtype") == 0 ? "f32" : engine.index_cache_dtype;

  // A clip is computed in parts, but planning for all of it does no harm: memory is taken as it is used.
  for (const Media& media : trace.media)
    load.vision_patches = std::max(load.vision_patches, media.t * media.h * media.w);

  Checkpoint checkpoint = Checkpoint::open(options.model.path(), {engine.quantization, engine.quantization_exclude});
  engine::LoadedModel model(std::move(checkpoint), load);
  const engine::Trace result = engine::trace(model, trace);

  SafetensorsWriter writer(options.out);
  for (const auto& [name, tensor] : result) writer.declare(name, tensor.dtype, tensor.shape);
  for (const auto& [name, tensor] : result) writer.write(name, tensor.bytes);
  writer.commit();
}

}  // namespace

void add_trace_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("trace", "Store what the model did: logits, hidden states, chosen blocks and experts");
  const auto options = std::make_shared<TraceCommand>();
  add_model_options(command, options->model);
  command.remove_option(command.get_option("--device"));
  command.add_option("--token-ids", options->ids_file, "Ids: white-space separated text or .npy; - for standard input");
  command.add_option("--pixels", options->pixels_file,
                     "Pictures as patches: a .safetensors file with pixel_values and grid; stores features");
  command.add_option("--out", options->out, "The .safetensors file to write")->required();
  command.add_option("--positions", options->positions, "all, or 0,5,… (default: the last)");
  command.add_option("--tensors", options->tensors,
                     "Names or families, separated by commas (default: logits,block_ids,expert_ids,expert_weights)");
  command.add_option("--backend", options->backend, "scalar or cpu")->capture_default_str();
  command.add_option("--numerics", options->numerics, "bf16, or fp32 (no bf16 rounding; scalar only)")
      ->capture_default_str();
  command.add_option("--chunk", options->chunk, "Tokens of one forward pass");
  command.add_option("--shuffle-pages", options->shuffle_seed, "Hand out cache pages in a random order with this seed");
  command.add_option("--greedy", options->greedy, "Append this many greedy tokens (greedy_ids, greedy_logits)");
  command.add_option("--drop-blocks", options->dropped, "Blocks that may not be chosen, separated by commas");
  command.callback([&command, options] { run(command, *options); });
}

}  // namespace m3::cli
