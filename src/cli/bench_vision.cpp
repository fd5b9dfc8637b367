// m3 bench vision: the tower's speed, beside the arithmetic peak measured in the same run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/seeded_weights.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/engine/profile.h"
#include "src/model/vision_tower.h"
#include "src/ops/backends.h"
#include "src/vision/preprocess.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

// What pictures are planned for by default: clips are computed as many segments at a time as fit.
constexpr std::int64_t tower_patches = 20736;

struct VisionOptions {
  std::string checkpoint, random_config, isa, image, device = "cpu";
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

// "672x392": height x width in pixels.
model::PatchGrid parse_picture(const std::string& text, const VisionConfig& vision, int frames) {
  const std::size_t cross = text.find('x');
  const auto side = [&](const std::string& digits) -> std::int64_t {
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos)
      fail_usage("--picture {}: write height x width in pixels, as 672x392", text);
    const std::int64_t pixels = std::stoll(digits);
    const std::int64_t unit = std::int64_t{vision.patch_size} * vision.spatial_merge_size;
    if (pixels < unit || pixels % unit != 0) fail_usage("--picture {}: sides are multiples of {}", text, unit);
    return pixels / vision.patch_size;
  };
  if (cross == std::string::npos) fail_usage("--picture {}: write height x width in pixels, as 672x392", text);
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

// The tower on its backend, for segments of up to `patches` patches.
class BenchTower {
 public:
  BenchTower(const Checkpoint& checkpoint, ops::Backend& backend)
      : backend_(backend), tower_(checkpoint.config(), checkpoint.vision(), backend) {
    if (tower_.placed_bytes() > 0) tower_.place_weights(checkpoint.made(), {});
  }
  const model::VisionTower& tower() const { return tower_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(workspace_.size()); }

  void plan(std::int64_t patches) {
    workspace_ = {};
    workspace_ = backend_.allocate(tower_.workspace_bytes(patches));
    tower_.bind_workspace(workspace_.bytes(), patches);
  }
  // Features are in the host's memory when it returns.
  void forward(const model::PatchGrid& grid, std::span<const float> pixels) {
    const std::int64_t rows = tower_.feature_rows(grid), columns = tower_.feature_columns();
    features_.resize(static_cast<std::size_t>(rows * columns) * dtype_size(tower_.feature_dtype()));
    backend_.begin_pass(0);
    tower_.forward({&grid, 1}, pixels, {tower_.feature_dtype(), rows, columns, columns, features_.data()});
    backend_.end_pass();
  }

 private:
  ops::Backend& backend_;
  model::VisionTower tower_;
  ops::Memory workspace_;
  std::vector<std::byte> features_;
};

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// From a file's bytes to features: one by itself, and several, the next ones read while the tower computes.
void run_image(const VisionOptions& options, const VisionConfig& vision, BenchTower& bench, Json& out) {
  const std::string content = read_text_file(options.image, std::size_t{30} << 20);
  const auto bytes = std::as_bytes(std::span(content));
  vision::ImageOptions how;
  how.shape = {.channels = vision.num_channels,
               .temporal = vision.temporal_patch_size,
               .patch = vision.patch_size,
               .merge = vision.spatial_merge_size};
  const auto read = [&] { return vision::image_pixels(bytes, how); };
  const auto grid_of = [](const vision::Pixels& pixels) {
    return model::PatchGrid{pixels.grid.t, pixels.grid.h, pixels.grid.w};
  };
  const model::PatchGrid grid = grid_of(read());
  bench.plan(grid.patches());
  std::vector<double> reading, whole;
  for (int i = 0; i <= options.repeats; ++i) {  // the first touches memory
    vision::Pixels pixels;
    const double own = seconds_of([&] { pixels = read(); });
    const double rest = seconds_of([&] { bench.forward(grid_of(pixels), pixels.values); });
    if (i == 0) continue;
    reading.push_back(own);
    whole.push_back(own + rest);
  }
  constexpr int many = 16, readers = 2;
  const double several = seconds_of([&] {
    std::vector<std::future<vision::Pixels>> ahead;
    for (int i = 0; i < readers; ++i) ahead.push_back(std::async(std::launch::async, read));
    for (int i = 0; i < many; ++i) {
      const vision::Pixels pixels = ahead[static_cast<std::size_t>(i % readers)].get();
      if (i + readers < many) ahead[static_cast<std::size_t>(i % readers)] = std::async(std::launch::async, read);
      bench.forward(grid_of(pixels), pixels.values);
    }
  });
  out["image"] = {{"patches", grid.patches()},
                  {"read_seconds", median(reading)},
                  {"seconds", median(whole)},
                  {"seconds_of_several", several / many}};
  if (options.json) return;
  write_output(fmt::format(
      "\n{}: {} patches; from its bytes to features {:.2f} ms, {:.2f} ms of it before the tower; {} one after "
      "another, {} read ahead: {:.2f} ms each\n",
      options.image, grid.patches(), median(whole) * 1e3, median(reading) * 1e3, many, readers, several / many * 1e3));
}

void run(const VisionOptions& options) {
  const Checkpoint checkpoint = open_tower(options);
  const ModelConfig& config = checkpoint.config();
  if (!config.vision) fail("{}: this checkpoint has no vision tower", options.checkpoint);
  ThreadPool pool(options.threads);
  auto backend = ops::make_backend({.name = options.device, .isa = options.isa}, pool);
  engine::Profile profile;
  if (options.profile) backend = engine::make_profiled(std::move(backend), profile);
  BenchTower bench(checkpoint, *backend);
  const model::VisionTower& tower = bench.tower();
  const ops::MeasuredLimits limits = ops::measure_limits(options.device, pool, options.isa);
  const double peak = limits.operations;
  Json out = {{"backend", backend->description()},
              {"layers", config.vision->num_hidden_layers},
              {limits.operation + "_operations_per_second", peak},
              {"rows", Json::array()}};
  if (!options.json) {
    write_output(fmt::format(
        "{}; {} layers of width {}; {} peak measured now: {}\n\n{:<12} {:>8} {:>7} {:>10} {:>10} {:>10} {:>8} {:>11}\n",
        backend->description(), config.vision->num_hidden_layers, config.vision->hidden_size, limits.operation,
        peak > 0 ? fmt::format("{:.0f} GFLOP/s", peak / 1e9) : "not known", "picture", "patches", "tokens", "ms",
        "GFLOP", "GFLOP/s", "of peak", "working MB"));
  }
  for (const std::string& text : options.pictures) {
    const model::PatchGrid grid = parse_picture(text, *config.vision, options.frames);
    tower.check(grid);
    const std::int64_t segment = tower.segment_patches(grid);
    bench.plan(options.frames > 1 ? std::max(segment, std::min(grid.patches(), tower_patches)) : segment);
    std::vector<float> pixels(static_cast<std::size_t>(grid.patches() * tower.pixel_columns()));
    seeded_values(seeded_key("pixels", 1), 2.0, 0, std::ssize(pixels), pixels.data());
    bench.forward(grid, pixels);  // touches memory
    profile.clear();
    std::vector<double> times;
    for (int i = 0; i < options.repeats; ++i) times.push_back(seconds_of([&] { bench.forward(grid, pixels); }));
    const double seconds = median(times);
    const double operations = operations_of(*config.vision, tower.feature_columns(), grid, segment);
    const auto share = [&](double rate) { return peak > 0 ? fmt::format("{:.0f}%", 100 * rate / peak) : "-"; };
    out["rows"].push_back({{"picture", text},
                           {"patches", grid.patches()},
                           {"tokens", tower.feature_rows(grid)},
                           {"seconds", seconds},
                           {"operations", operations},
                           {"compute_share", peak > 0 ? operations / seconds / peak : 0},
                           {"workspace_bytes", bench.bytes()}});
    if (options.json) continue;
    write_output(fmt::format("{:<12} {:>8} {:>7} {:>10.2f} {:>10.1f} {:>10.0f} {:>8} {:>11.0f}\n", text, grid.patches(),
                             tower.feature_rows(grid), seconds * 1e3, operations / 1e9, operations / seconds / 1e9,
                             share(operations / seconds), static_cast<double>(bench.bytes()) / 1e6));
    for (const engine::Profile::Entry& entry : profile.entries()) {
      const double own = entry.seconds / options.repeats;
      write_output(fmt::format("  {:<28} {:>6} {:>10.2f} ms {:>8} of peak\n", entry.operation,
                               entry.calls / options.repeats, own * 1e3,
                               share(entry.operations / options.repeats / own)));
    }
  }
  if (!options.image.empty()) run_image(options, *config.vision, bench, out);
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
      .add_option("--picture", options->pictures, "Height x width in pixels; a list 672x672,392x672 is run one by one")
      ->delimiter(',');
  command.add_option("--frames", options->frames, "A clip of so many frames instead of a picture")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--image", options->image,
                     "A picture file: also the time from its bytes to features, by itself and one after another");
  command.add_option("--device", options->device, "cuda, cpu, or scalar (the slow, exact judge)")
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
