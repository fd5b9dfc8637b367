#include "src/cli/inspect_command.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/progress.h"
#include "src/cli/common.h"
#include "src/cli/inspect_media.h"
#include "src/vision/media_type.h"

namespace m3::cli {

namespace {

struct InspectOptions {
  std::string path;
  bool json = false;
  bool deep = false;
  MediaOptions media;
};

void check(const CLI::App& command, const MediaOptions& media) {
  for (const char* option : {"--min-pixels", "--max-pixels", "--max-long-side-pixel"}) {
    if (!media.asked() && command.count(option) > 0)
      fail_usage("{} is for --image and --video; it has no effect without", option);
  }
  for (const char* option : {"--fps", "--min-frames", "--max-frames"}) {
    if (media.video.empty() && command.count(option) > 0)
      fail_usage("{} is for --video; it has no effect without", option);
  }
}

// A file that is no config.json: what it is for instead, before a JSON parser stumbles over it.
void check_config_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const vision::MediaType type = vision::media_type(bytes);
  const bool picture = vision::is_picture(type);
  if (picture || vision::is_video(type))
    fail_usage("{}: a {}, not a checkpoint; add --{} before it", path, picture ? "picture" : "video",
               picture ? "image" : "video");
  const auto first = std::ranges::find_if(bytes, [](std::byte b) { return !std::isspace(static_cast<int>(b)); });
  if (first == bytes.end() || *first != std::byte{'{'})
    fail("{}: no config.json (a JSON object); give that file, or a checkpoint's directory", path);
}

void run(const InspectOptions& options) {
  if (options.media.asked()) {
    if (!options.path.empty() || options.deep) fail_usage("inspect: --image and --video go without a checkpoint");
    write_output(options.json ? media_json(options.media) : media_text(options.media));
    return;
  }
  std::optional<Progress> progress;
  const auto show = [&](std::int64_t done, std::int64_t total) {
    if (!progress) progress.emplace("reading weights", total, "bytes");
    progress->update(done);
  };
  const std::string path = options.path.empty() ? shipped_checkpoint() : options.path;
  check_config_file(path);
  const Inspection inspection = inspect(path, options.deep, show);
  progress.reset();
  write_output(options.json ? inspection_json(inspection) : inspection_text(inspection));
  if (!inspection.sound()) throw CLI::RuntimeError(1);
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("inspect",
                                          "Parameters, bytes, cache, layers and problems of a checkpoint; "
                                          "or sizes and tokens of a picture or video");
  const auto options = std::make_shared<InspectOptions>();
  command.add_option("path", options->path,
                     "Checkpoint directory, or a config.json alone (default: the one that ships)");
  command.add_flag("--json", options->json, "Print one JSON object with exact integers");
  command.add_flag("--deep", options->deep, "Read all weights too: values that are not finite, NaN scales, ranges");
  add_media_options(command, options->media);
  command.callback([&command, options] {
    check(command, options->media);
    run(*options);
  });
}

}  // namespace m3::cli
