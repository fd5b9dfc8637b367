#include "src/cli/media_flags.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/cli/number_words.h"

namespace m3::cli {

std::vector<std::string> word_list(const std::string& flag, const std::vector<std::string>& given) {
  // CLI11 has taken a list in brackets apart and left the quotes.
  std::vector<std::string> words;
  for (std::string word : given) {
    word.erase(0, word.find_first_not_of(' '));
    try {
      if (word.starts_with('[')) {
        for (const auto& one : nlohmann::json::parse(word)) words.push_back(one.get<std::string>());
      } else {
        words.push_back(word.starts_with('"') ? nlohmann::json::parse(word).get<std::string>() : word);
      }
    } catch (const nlohmann::json::exception&) {
      fail_usage("{} {}: not a JSON list of strings", flag, word);
    }
  }
  return words;
}

namespace {

// What can never match would shut out what was wanted without a word.
std::string checked_host(const std::string& flag, const std::string& host, std::string (*check)(const std::string&)) {
  try {
    return check(host);
  } catch (const Error& error) {
    fail_usage("{} {}: {}", flag, host, error.what());
  }
}

}  // namespace

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
  const std::string domains_flag = "--allowed-media-domains", private_flag = "--media-private-hosts";
  std::vector<std::string> hosts = word_list(domains_flag, domains);
  vision::FetchOptions& fetch = finished.sources.fetch;
  finished.sources.web = !hosts.empty() || !fetch.private_hosts.empty();
  const bool all = std::ranges::find(hosts, "*") != hosts.end();
  for (std::string& host : hosts) {
    if (host != "*") host = checked_host(domains_flag, host, vision::check_domain);
  }
  fetch.domains = all ? std::vector<std::string>() : std::move(hosts);
  for (std::string& host : fetch.private_hosts) {
    host = checked_host(private_flag, host, vision::check_private_host);
    // A server in a private network that is named is wanted, and no other one with it.
    if (!all) fetch.domains.push_back(host.substr(0, host.rfind(':')));
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
  media::MediaOptions& options = flags.options;
  command.add_option("--media-decode-timeout", options.decode_seconds, "Seconds for decoding one picture or video")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
  command
      .add_option("--media-decode-memory-bytes", options.decode_memory_bytes,
                  "Memory for what is being decoded; 0 = an eighth of what is available at start")
      ->transform(byte_words)
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 50))
      ->capture_default_str();
  command
      .add_option("--media-max-video-total-pixels", options.video.limits.all_pixels,
                  "Pixels of all frames of a video, decoded")
      ->transform(byte_words)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 60))
      ->capture_default_str();
}

void add_web_flags(CLI::App& command, MediaFlags& flags) {
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
        ->transform(byte_words)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50))
        ->capture_default_str();
  };
  count("--media-max-image-bytes", options.image.limits.bytes, "Bytes of a picture's file");
  count("--media-max-image-pixels", options.image.limits.pixels, "Pixels of a picture, decoded");
  count("--media-max-video-bytes", options.video.limits.bytes, "Bytes of a video's file");
  count("--media-max-video-pixels", options.video.limits.pixels, "Pixels of a video's frame, decoded");
  count("--media-max-video-frames", options.video.limits.frames, "Frames of a video");
  command
      .add_option("--media-threads", options.threads,
                  "Threads that decode; 0 = one a core. One more is kept for small pictures")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--media-fetches", options.fetches, "Pictures and videos fetched from the web at the same time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--media-fetches-per-host", options.fetches_per_host, "Of these, from one host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--media-memory-bytes", options.memory_bytes,
                  "Memory for files and prepared pictures of all requests; 0 = a quarter of what is available at start")
      ->transform(byte_words)
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 50))
      ->capture_default_str();
  command
      .add_option("--media-cache-bytes", options.cache_bytes,
                  "Of that, kept for the next request with the same picture")
      ->transform(byte_words)
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 50))
      ->capture_default_str();
}

}  // namespace m3::cli
