// m3 trace: what the model did at chosen positions, as a safetensors file.
#include <charconv>
#include <limits>
#include <span>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/checkpoint/safetensors_writer.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/cli/media_flags.h"
#include "src/cli/pixel_file.h"
#include "src/engine/trace.h"
#include "src/media/loader.h"

namespace m3::cli {

namespace {

struct TraceCommand {
  ModelOptions model;
  std::string ids_file, pixels_file, out, positions, tensors, backend = "cpu", numerics = "bf16", dropped;
  std::int64_t chunk = 0, greedy = 0;
  std::uint64_t shuffle_seed = 0;
  std::vector<std::string> images, videos;
  MediaFlags media;
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

// In the order of the command line's kinds: images, then videos.
std::vector<media::Prepared> load_pictures(const TraceCommand& options, const ModelConfig& config) {
  if (!config.vision) {
    fail("{}: this model takes no pictures: its config.json has no vision_config",
         options.images.empty() ? options.videos.front() : options.images.front());
  }
  media::MediaOptions media = options.media.finish();
  media.sources.local_root = "/";
  media.cache_bytes = 0;
  MediaInfo model;
  model.patch_size = config.vision->patch_size;
  model.temporal_patch_size = config.vision->temporal_patch_size;
  model.merge_size = config.vision->spatial_merge_size;
  model.segment_groups = config.vision->segment_max_frames;
  constexpr auto no_limit = std::numeric_limits<std::int64_t>::max();  // memory is planned for what comes
  model.max_patches = no_limit;
  media::MediaLoader loader(media);
  return loader.load_now(media::file_references(options.images, options.videos, media), model, no_limit);
}

template <typename T>
engine::TraceTensor tensor_of(DType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

// What --pixels reads: pixel_values, grid, is_video; and clips' timestamps, one a temporal group.
void add_pixels(const std::vector<Media>& media, const std::vector<double>& timestamps, engine::Trace& trace) {
  std::vector<float> pixels;
  std::vector<std::int32_t> grid, is_video;
  std::int64_t patches = 0;
  for (const Media& one : media) {
    pixels.insert(pixels.end(), one.pixels->begin(), one.pixels->end());
    for (const std::int64_t side : {one.t, one.h, one.w}) grid.push_back(static_cast<std::int32_t>(side));
    is_video.push_back(one.kind == Media::Kind::video ? 1 : 0);
    patches += one.t * one.h * one.w;
  }
  trace["pixel_values"] = tensor_of(DType::f32, {patches, std::ssize(pixels) / patches}, pixels);
  trace["grid"] = tensor_of(DType::i32, {std::ssize(media), 3}, grid);
  trace["is_video"] = tensor_of(DType::i32, {std::ssize(media)}, is_video);
  if (timestamps.empty()) return;
  const std::vector<float> seconds(timestamps.begin(), timestamps.end());
  trace["timestamps"] = tensor_of(DType::f32, {std::ssize(seconds)}, seconds);
}

void run(const CLI::App& command, const TraceCommand& options) {
  engine::TraceOptions trace;
  const bool pictures = !options.images.empty() || !options.videos.empty();
  if (options.ids_file.empty() && options.pixels_file.empty() && !pictures)
    fail_usage("nothing to trace: give --token-ids, --pixels, --image or --video");
  for (const char* flag : media_flags) {
    if (!pictures && command.count(flag) > 0)
      fail_usage("{} is for --image and --video; it has no effect without", flag);
  }
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

  if (options.backend != "scalar" && options.backend != "cpu" && options.backend != "cuda")
    fail_usage("--backend {}: write scalar, cpu or cuda", options.backend);
  std::error_code ignored;
  if (std::filesystem::equivalent(options.ids_file, options.out, ignored))
    fail_usage("--out {} is the file of the ids; writing there would destroy it", options.out);
  if (std::filesystem::equivalent(options.pixels_file, options.out, ignored))
    fail_usage("--out {} is the file of the pixels; writing there would destroy it", options.out);
  for (const std::vector<std::string>* files : {&options.images, &options.videos}) {
    for (const std::string& file : *files) {
      if (std::filesystem::equivalent(file, options.out, ignored))
        fail_usage("--out {} is one of the pictures; writing there would destroy it", options.out);
    }
  }
  const bool fp32 = options.numerics == "fp32";
  if (!fp32 && options.numerics != "bf16") fail_usage("--numerics {}: write bf16 or fp32", options.numerics);
  if (fp32 && options.backend != "scalar") fail_usage("--numerics fp32 is the judge's; add --backend scalar");

  const EngineOptions& engine = options.model.engine;
  engine::LoadedModelOptions load = engine::loaded_model_options(engine);
  load.device = options.backend;
  load.numerics = fp32 ? ops::Numerics::fp32 : ops::Numerics::bf16;
  const auto needed = static_cast<std::int64_t>(trace.token_ids.size()) + trace.greedy;
  load.max_model_len = engine.max_model_len > 0 ? engine.max_model_len : std::max<std::int64_t>(needed, 1);
  const std::int64_t asked = options.chunk > 0 ? options.chunk : engine.max_num_batched_tokens;
  const std::int64_t chunk = asked > 0 ? asked : engine::host_batched_tokens;
  load.max_batched_tokens = std::clamp<std::int64_t>(chunk, 1, std::max<std::int64_t>(needed, 1));
  load.max_logits_rows = std::min(load.max_batched_tokens,
                                  static_cast<std::int64_t>(std::max<std::size_t>(trace.positions.size(), 1)) + 1);
  // An fp32 trace keeps its caches in fp32 too, unless told otherwise.
  if (fp32 && command.count("--kv-cache-dtype") == 0) load.kv_cache_dtype = "f32";
  if (fp32 && command.count("--index-cache-dtype") == 0) load.index_cache_dtype = "f32";

  Checkpoint checkpoint = Checkpoint::open(options.model.path(), {engine.quantization, engine.quantization_exclude});
  std::vector<double> timestamps;
  if (pictures) {
    for (media::Prepared& prepared : load_pictures(options, checkpoint.config())) {
      trace.media.push_back(std::move(prepared.media));
      timestamps.insert(timestamps.end(), prepared.timestamps.begin(), prepared.timestamps.end());
    }
  }
  // A clip is computed in parts, but planning for all of it does no harm: memory is taken as it is used.
  for (const Media& media : trace.media)
    load.vision_patches = std::max(load.vision_patches, media.t * media.h * media.w);

  engine::LoadedModel model(std::move(checkpoint), load);
  engine::Trace result = engine::trace(model, trace);
  if (pictures) add_pixels(trace.media, timestamps, result);

  SafetensorsWriter writer(options.out);
  for (const auto& [name, tensor] : result) writer.declare(name, tensor.dtype, tensor.shape);
  for (const auto& [name, tensor] : result) writer.write(name, tensor.bytes);
  writer.commit();
  write_error(fmt::format("m3: {} tensors stored in {}\n", result.size(), options.out));
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
  command.add_option("--image", options->images, "A picture, a file; stores pixel_values, grid and features")
      ->take_all();
  command.add_option("--video", options->videos, "A video, a file; the same, behind the pictures")->take_all();
  add_media_flags(command, options->media);
  command.add_option("--out", options->out, "The .safetensors file to write")->required();
  command.add_option("--positions", options->positions, "all, or 0,5,… (default: the last)");
  command.add_option("--tensors", options->tensors,
                     "Names or families, separated by commas (default: logits,block_ids,expert_ids,expert_weights)");
  command.add_option("--backend,--device", options->backend, "scalar, cpu or cuda")->capture_default_str();
  command.add_option("--numerics", options->numerics, "bf16, or fp32 (no bf16 rounding; scalar only)")
      ->capture_default_str();
  command.add_option("--chunk", options->chunk, "Tokens of one forward pass");
  command.add_option("--shuffle-pages", options->shuffle_seed, "Hand out cache pages in a random order with this seed");
  command.add_option("--greedy", options->greedy, "Append this many greedy tokens (greedy_ids, greedy_logits)");
  command.add_option("--drop-blocks", options->dropped, "Blocks that may not be chosen, separated by commas");
  command.callback([&command, options] { run(command, *options); });
}

}  // namespace m3::cli
