// m3 bench vision: the tower's speed, beside the arithmetic peak measured in the same run.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/checkpoint/anonymous_memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/seeded_weights.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/engine/profile.h"
#include "src/model/vision_tower.h"
#include "src/ops/backends.h"
#include "src/ops/machine_limits.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

struct VisionOptions {
  std::string checkpoint, random_config, isa;
  std::vector<std::string> pictures = {"672x672"};
  int frames = 1, layers = 0, threads = 0, repeats = 3;
  bool profile = false, json = false;
};

Checkpoint open_tower(const VisionOptions& options) {
  if (options.random_config.empty()) {
    if (options.checkpoint.empty()) fail_usage("give a checkpoint or a --random-config");
    if (options.layers > 0) fail_usage("--layers cuts a --random-config; a checkpoint is run as it is");
    return Checkpoint::open(options.checkpoint);
  }
  if (!options.checkpoint.empty()) fail_usage("a checkpoint and --random-config: give one of them");
  ModelConfig config = read_config(options.random_config);
  if (!config.vision) fail("{}: there is no vision_config", options.random_config);
  if (options.layers > config.vision->num_hidden_layers)
    fail_usage("--layers {}: the tower has {}", options.layers, config.vision->num_hidden_layers);
  if (options.layers > 0) config.vision->num_hidden_layers = options.layers;
  return Checkpoint::random_vision(config, 1);
}

// "672x378": height x width in pixels.
model::PatchGrid parse_picture(const std::string& text, const VisionConfig& vision, int frames) {
  const std::size_t cross = text.find('x');
  const auto side = [&](const std::string& digits) -> std::int64_t {
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos)
      fail_usage("--picture {}: write height x width in pixels, as 672x378", text);
    const std::int64_t pixels = std::stoll(digits);
    const std::int64_t unit = std::int64_t{vision.patch_size} * vision.spatial_merge_size;
    if (pixels < unit || pixels % unit != 0) fail_usage("--picture {}: sides are multiples of {}", text, unit);
    return pixels / vision.patch_size;
  };
  if (cross == std::string::npos) fail_usage("--picture {}: write height x width in pixels, as 672x378", text);
  const std::int64_t h = side(text.substr(0, cross));
  return {(frames + vision.temporal_patch_size - 1) / vision.temporal_patch_size, h, side(text.substr(cross + 1))};
}

// Multiplications and additions of products, useful ones only.
double operations_of(const VisionConfig& vision, std::int64_t hidden, const model::PatchGrid& grid,
                     std::int64_t segment) {
  const double patches = static_cast<double>(grid.patches());
  const double width = vision.hidden_size, inner = vision.intermediate_size, projector = vision.projector_hidden_size;
  const double merged = vision.spatial_merge_size * vision.spatial_merge_size;
  const double out = static_cast<double>(hidden);
  const double layer = 4 * width * width + 2 * width * inner + 2 * width * static_cast<double>(segment);
  return 2 * patches *
         (static_cast<double>(vision.patch_elements()) * width + vision.num_hidden_layers * layer +
          projector * (width + out) + (projector * (merged * out + out)) / merged);
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const VisionOptions& options) {
  const Checkpoint checkpoint = open_tower(options);
  const ModelConfig& config = checkpoint.config();
  if (!config.vision) fail("{}: this checkpoint has no vision tower", options.checkpoint);
  ThreadPool pool(options.threads);
  auto backend = ops::make_backend({.name = "cpu", .isa = options.isa}, pool);
  engine::Profile profile;
  if (options.profile) backend = engine::make_profiled(std::move(backend), profile);
  model::VisionTower tower(config, checkpoint.vision(), *backend);
  const double peak = ops::measure_fp32_peak(pool, options.isa);
  Json out = {{"backend", backend->description()},
              {"layers", config.vision->num_hidden_layers},
              {"fp32_operations_per_second", peak},
              {"rows", Json::array()}};
  if (!options.json) {
    write_output(
        fmt::format("{}; {} layers of width {}; fp32 peak measured now: {:.0f} GFLOP/s\n\n{:<12} {:>8} {:>7} "
                    "{:>10} {:>10} {:>8} {:>11}\n",
                    backend->description(), config.vision->num_hidden_layers, config.vision->hidden_size, peak / 1e9,
                    "picture", "patches", "tokens", "ms", "GFLOP", "of peak", "working MB"));
  }
  for (const std::string& text : options.pictures) {
    const model::PatchGrid grid = parse_picture(text, *config.vision, options.frames);
    tower.check(grid);
    const std::int64_t segment = tower.segment_patches(grid);
    const std::int64_t rows = tower.feature_rows(grid);
    const std::int64_t columns = tower.feature_columns();
    const auto bytes = static_cast<std::size_t>(tower.workspace_bytes(segment));
    AnonymousMemory workspace(bytes);
    tower.bind_workspace({workspace.data(), bytes}, segment);
    std::vector<float> pixels(static_cast<std::size_t>(grid.patches() * tower.pixel_columns()));
    seeded_values(seeded_key("pixels", 1), 2.0, 0, std::ssize(pixels), pixels.data());
    std::vector<std::byte> features(static_cast<std::size_t>(rows * columns) * dtype_size(tower.feature_dtype()));
    const ops::Tensor to{tower.feature_dtype(), rows, columns, columns, features.data()};
    tower.forward({&grid, 1}, pixels, to);  // touches memory
    profile.clear();
    std::vector<double> times;
    for (int i = 0; i < options.repeats; ++i)
      times.push_back(seconds_of([&] { tower.forward({&grid, 1}, pixels, to); }));
    std::ranges::sort(times);
    const double seconds = times[times.size() / 2];
    const double operations = operations_of(*config.vision, columns, grid, segment);
    const double share = operations / seconds / peak;
    out["rows"].push_back({{"picture", text},
                           {"patches", grid.patches()},
                           {"tokens", rows},
                           {"seconds", seconds},
                           {"operations", operations},
                           {"compute_share", share},
                           {"workspace_bytes", bytes}});
    if (options.json) continue;
    write_output(fmt::format("{:<12} {:>8} {:>7} {:>10.1f} {:>10.1f} {:>7.0f}% {:>11.0f}\n", text, grid.patches(), rows,
                             seconds * 1e3, operations / 1e9, share * 100, static_cast<double>(bytes) / 1e6));
    for (const engine::Profile::Entry& entry : profile.entries()) {
      const double own = entry.seconds / options.repeats;
      write_output(fmt::format("  {:<28} {:>6} {:>10.2f} ms {:>7.0f}% of peak\n", entry.operation,
                               entry.calls / options.repeats, own * 1e3,
                               entry.operations / options.repeats / own / peak * 100));
    }
  }
  if (options.json) write_output(out.dump(2) + "\n");
}

}  // namespace

void add_bench_vision_command(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("vision", "Measure the vision tower beside the machine's arithmetic peak");
  const auto options = std::make_shared<VisionOptions>();
  command.add_option("checkpoint", options->checkpoint, "Checkpoint directory with a vision tower");
  command.add_option("--random-config", options->random_config,
                     "A config.json: a tower of that size with random weights, in memory");
  command.add_option("--layers", options->layers, "Cut the random tower to this many layers")
      ->check(CLI::Range(1, 1 << 16));
  command
      .add_option("--picture", options->pictures, "Height x width in pixels; a list 672x672,378x672 is run one by one")
      ->delimiter(',');
  command.add_option("--frames", options->frames, "A clip of so many frames instead of a picture")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--isa", options->isa, "Force the instruction set: avx2 or avx512");
  command.add_option("--threads", options->threads, "Threads; 0 = one for each physical core")->capture_default_str();
  command.add_option("--repeats", options->repeats, "Timed passes; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_flag("--profile", options->profile, "Time by operation");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.callback([options] { run(*options); });
}

}  // namespace m3::cli
