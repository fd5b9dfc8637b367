#include "src/cli/inspect_media.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/vision/orientation.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;
using vision::Grid;
using vision::Size;
using vision::SizeOptions;
using vision::SizeRule;

// What one rule makes of a picture or of a video's frames; or why it does not.
struct Sized {
  SizeOptions options;
  Size resized;
  Grid grid;
  std::string refused;
};

struct Report {
  std::string file;
  std::size_t bytes = 0;
  std::string type;
  std::string codec;  // of videos
  Size stored, shown;
  int orientation = 1;
  bool alpha = false;
  std::size_t frames = 1;
  double seconds = 0;               // of videos: when the last frame is shown
  std::vector<std::size_t> chosen;  // of videos
  std::vector<double> timestamps;   // of videos, one a temporal group
  std::vector<Sized> sizes;         // for both rules, the default first
};

constexpr std::array rules = {SizeRule::long_side, SizeRule::area};

SizeOptions with(const MediaOptions& options, SizeOptions sizes, SizeRule rule) {
  sizes.rule = rule;
  if (options.min_pixels != 0) sizes.min_pixels = options.min_pixels;
  if (options.max_pixels != 0) sizes.max_pixels = options.max_pixels;
  if (options.max_long_side != 0) sizes.max_long_side = options.max_long_side;
  vision::check_size_options(sizes);
  return sizes;
}

template <typename Work>
void size_by(Report& report, const SizeOptions& sizes, Work work) {
  Sized sized = {.options = sizes, .resized = {}, .grid = {}, .refused = {}};
  try {
    work(sized);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    sized.refused = error.what();
  }
  report.sizes.push_back(std::move(sized));
}

Report inspect_image(const MediaOptions& options) {
  const MappedFile file(options.image);
  const vision::DecodedImage image = vision::decode_image(file.bytes());
  Report report;
  report.file = options.image;
  report.bytes = file.bytes().size();
  report.type = media_type_name(image.type);
  report.stored = image.stored;
  report.shown = {image.picture.width, image.picture.height};
  report.orientation = image.orientation;
  report.alpha = image.alpha;
  report.frames = static_cast<std::size_t>(image.frames);
  for (const SizeRule rule : rules) {
    size_by(report, with(options, options.image_size, rule), [&](Sized& sized) {
      sized.resized = resized_size(report.shown, sized.options);
      sized.grid = grid_of(sized.resized, 1);
    });
  }
  return report;
}

Report inspect_video(const MediaOptions& options) {
  const MappedFile file(options.video);
  const vision::VideoReader reader(file.bytes());
  vision::check_sampling_options(options.video_options.sampling);
  Report report;
  report.file = options.video;
  report.bytes = file.bytes().size();
  report.type = media_type_name(reader.type());
  report.codec = reader.codec();
  report.stored = report.shown = reader.stored();
  report.orientation = reader.orientation();
  if (vision::turns_sideways(report.orientation)) std::swap(report.shown.width, report.shown.height);
  report.frames = reader.starts().size();
  report.seconds = reader.starts().back();
  report.chosen = choose_frames(reader.starts(), options.video_options.sampling);
  for (std::size_t i = 0; i < report.chosen.size(); i += 2) {
    report.timestamps.push_back(reader.starts()[report.chosen[i]]);
  }
  for (const SizeRule rule : rules) {
    size_by(report, with(options, options.video_options.size, rule), [&](Sized& sized) {
      vision::VideoOptions video = options.video_options;
      video.size = sized.options;
      const vision::VideoPlan plan = plan_video(reader, video);
      sized.resized = plan.resized;
      sized.grid = plan.grid;
    });
  }
  return report;
}

Report inspect_media(const MediaOptions& options) {
  try {
    return options.image.empty() ? inspect_video(options) : inspect_image(options);
  } catch (const Error& error) {
    const std::string& file = options.image.empty() ? options.video : options.image;
    const std::string line = error.what();
    if (line.find(file) != std::string::npos) throw;
    throw Error(error.kind(), fmt::format("{}: {}", file, line));
  }
}

std::string bounds(const SizeOptions& sizes) {
  if (sizes.rule == SizeRule::area) return fmt::format("{} to {} pixels", sizes.min_pixels, sizes.max_pixels);
  return fmt::format("long side to {}, short side from {}", sizes.max_long_side, sizes.min_short_side);
}

std::string text_of(const Size& size) { return fmt::format("{}x{}", size.width, size.height); }

std::string times(const std::vector<double>& timestamps) {
  std::string text;
  for (std::size_t i = 0; i < timestamps.size(); ++i) {
    if (timestamps.size() > 8 && i == 6) {
      text += fmt::format(" … {:.1f}", timestamps.back());
      break;
    }
    text += fmt::format("{}{:.1f}", i == 0 ? "" : " ", timestamps[i]);
  }
  return text;
}

}  // namespace

void add_media_options(CLI::App& command, MediaOptions& options) {
  auto* image = command.add_option("--image", options.image, "A picture instead of a checkpoint: what becomes of it");
  command.add_option("--video", options.video, "A video instead of a checkpoint: what becomes of it")->excludes(image);
  const auto positive = CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max());
  command.add_option("--min-pixels", options.min_pixels, "Area rule: pixels at least")->check(positive);
  command.add_option("--max-pixels", options.max_pixels, "Area rule: pixels at most")->check(positive);
  command.add_option("--max-long-side-pixel", options.max_long_side,
                     "Long-side rule: pixels of the long side at most, a multiple of 28 (112 to 3584)");
  vision::SamplingOptions& sampling = options.video_options.sampling;
  command.add_option("--fps", sampling.fps, "Videos: frames a second, 0.2 to 5")->capture_default_str();
  command.add_option("--min-frames", sampling.min_frames, "Videos: frames at least")->capture_default_str();
  command.add_option("--max-frames", sampling.max_frames, "Videos: frames at most")->capture_default_str();
}

std::string media_text(const MediaOptions& options) {
  const Report report = inspect_media(options);
  std::string out = fmt::format("{}\n  type         {}{}, {} bytes\n", report.file, report.type,
                                report.codec.empty() ? "" : " with " + report.codec, report.bytes);
  out += fmt::format("  stored       {}\n  orientation  {}{}\n", text_of(report.stored), report.orientation,
                     report.orientation == 1 ? " (upright)" : ", turned to " + text_of(report.shown));
  if (report.codec.empty()) {
    out += fmt::format("  transparency {}\n", report.alpha ? "laid on white" : "none");
    if (report.frames > 1) out += fmt::format("  frames       {}, the first one is taken\n", report.frames);
  } else {
    out +=
        fmt::format("  frames       {} in {:.2f} s; {} taken\n", report.frames, report.seconds, report.chosen.size());
    out += fmt::format("  timestamps   {} (seconds, one for two frames)\n", times(report.timestamps));
  }
  out += fmt::format("\n  {:<10} {:<10} {:<14} {:>8} {:>7}\n", "rule", "resized", "grid t,h,w", "patches", "tokens");
  for (const Sized& sized : report.sizes) {
    const std::string name(size_rule_name(sized.options.rule));
    if (!sized.refused.empty()) {
      out += fmt::format("  {:<10} refused: {}\n", name, sized.refused);
      continue;
    }
    out += fmt::format("  {:<10} {:<10} {:<14} {:>8} {:>7}   {}{}\n", name, text_of(sized.resized),
                       fmt::format("{},{},{}", sized.grid.t, sized.grid.h, sized.grid.w), sized.grid.patches(),
                       sized.grid.tokens(), bounds(sized.options),
                       sized.options.rule == SizeRule::long_side ? " (the default)" : "");
  }
  return out;
}

std::string media_json(const MediaOptions& options) {
  const Report report = inspect_media(options);
  const auto pair = [](const Size& size) { return Json::array({size.width, size.height}); };
  Json out = {{"file", report.file},           {"bytes", report.bytes},       {"type", report.type},
              {"stored", pair(report.stored)}, {"shown", pair(report.shown)}, {"orientation", report.orientation},
              {"frames", report.frames}};
  if (report.codec.empty()) {
    out["alpha"] = report.alpha;
  } else {
    out["codec"] = report.codec;
    out["seconds"] = report.seconds;
    out["chosen_frames"] = report.chosen;
    out["timestamps"] = report.timestamps;
  }
  for (const Sized& sized : report.sizes) {
    Json& rule = out["rules"][std::string(size_rule_name(sized.options.rule))];
    if (!sized.refused.empty()) {
      rule = {{"refused", sized.refused}};
    } else {
      rule = {{"resized", pair(sized.resized)},
              {"grid", {sized.grid.t, sized.grid.h, sized.grid.w}},
              {"patches", sized.grid.patches()},
              {"tokens", sized.grid.tokens()}};
    }
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace m3::cli
