#include "src/cli/media_flags.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace m3::cli {

std::vector<std::string> word_list(const std::string& flag, const std::vector<std::string>& given) {
  if (given.size() != 1 || given[0].empty() || given[0][0] != '[') return given;
  try {
    return nlohmann::json::parse(given[0]).get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    fail_usage("{} {}: not a JSON list of strings", flag, given[0]);
  }
}

media::MediaOptions MediaFlags::finish() const {
  media::MediaOptions finished = options;
  if (!size_rule.empty()) {
    finished.image.size.rule = finished.video.size.rule = vision::parse_size_rule(size_rule);
  }
  for (const std::string& json : processor_kwargs) {
    media::apply_processor_kwargs(json, "--mm-processor-kwargs", finished);
  }
  media::apply_limits(limits, "--limit-mm-per-prompt", finished);
  if (language_model_only) {
    if (!limits.empty()) fail_usage("--language-model-only and --limit-mm-per-prompt say two things: give one");
    finished.most_images = finished.most_videos = 0;
  }
  if (!local_root.empty()) {
    if (!std::filesystem::is_directory(local_root)) {
      fail_usage("--allowed-local-media-path {}: there is no such folder", local_root);
    }
    finished.sources.local_root = local_root;
  }
  std::vector<std::string> hosts = word_list("--allowed-media-domains", domains);
  finished.sources.web = !hosts.empty() || !finished.sources.fetch.private_hosts.empty();
  if (std::ranges::find(hosts, "*") == hosts.end()) {
    finished.sources.fetch.domains = std::move(hosts);
    // A server in a private network that is named is wanted, and no other one with it.
    for (const std::string& host : finished.sources.fetch.private_hosts) {
      const std::size_t colon = host.rfind(':');
      if (colon == std::string::npos || colon + 1 == host.size() || colon == 0) {
        fail_usage("--media-private-hosts {}: write HOST:PORT", host);
      }
      finished.sources.fetch.domains.push_back(host.substr(0, colon));
    }
  }
  return finished;
}

void add_media_flags(CLI::App& command, MediaFlags& flags) {
  command
      .add_option("--mm-processor-kwargs", flags.processor_kwargs,
                  "How large pictures become, a JSON object: size_rule, max_long_side_pixel, min_pixels, max_pixels, "
                  "fps, min_frames, max_frames, total_pixels; images_kwargs and videos_kwargs for one kind alone")
      ->take_all();
  command
      .add_option("--media-size-rule", flags.size_rule,
                  "long-side (MiniMax's own; the default), or area (as transformers and vLLM size pictures)")
      ->check(CLI::IsMember({"long-side", "area"}));
  command.add_option("--allowed-media-domains", flags.domains,
                     "Hosts that pictures may be fetched from, with all below them (JSON list or words); * is every "
                     "public one. Without, none");
  command.add_option("--media-private-hosts", flags.options.sources.fetch.private_hosts,
                     "HOST:PORT of picture servers in a private network, which are refused otherwise");
  command
      .add_option("--media-fetch-timeout", flags.options.sources.fetch.seconds,
                  "Seconds for fetching a picture, redirects included")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

void add_media_limits(CLI::App& command, MediaFlags& flags) {
  media::MediaOptions& options = flags.options;
  command.add_option("--limit-mm-per-prompt", flags.limits,
                     "Pictures and videos of one prompt at most: image=200,video=20 (the defaults), or JSON");
  command.add_flag("--language-model-only", flags.language_model_only, "No pictures and videos at all");
  command.add_option("--allowed-local-media-path", flags.local_root,
                     "A folder whose files requests may name by file: URLs. Without, none");
  const auto count = [&](const char* name, std::int64_t& value, const char* what) {
    command.add_option(name, value, what)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50))
        ->capture_default_str();
  };
  count("--media-max-image-bytes", options.image.limits.bytes, "Bytes of a picture's file");
  count("--media-max-image-pixels", options.image.limits.pixels, "Pixels of a picture, decoded");
  count("--media-max-video-bytes", options.video.limits.bytes, "Bytes of a video's file");
  count("--media-max-video-pixels", options.video.limits.pixels, "Pixels of a video's frame, decoded");
  count("--media-max-video-frames", options.video.limits.frames, "Frames of a video");
  command.add_option("--media-threads", options.threads, "Threads that fetch and decode; 0 = one a core, 8 at most")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option("--media-memory-bytes", options.memory_bytes,
                  "Memory for prepared pictures of all requests; 0 = a quarter of the machine's")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 50))
      ->capture_default_str();
  command
      .add_option("--media-cache-bytes", options.cache_bytes,
                  "Of that, kept for the next request with the same picture")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 50))
      ->capture_default_str();
}

}  // namespace m3::cli
