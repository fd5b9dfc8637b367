// What pictures and videos may be, as m3 serve, run and trace are told.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <vector>

#include "src/media/options.h"

namespace m3::cli {

struct MediaFlags {
  media::MediaOptions options;
  std::vector<std::string> processor_kwargs;  // JSON objects, in their order
  std::string size_rule;
  std::vector<std::string> domains, limits;
  std::string local_root;
  bool language_model_only = false;

  // Checked. Errors (usage): a malformed list or object, sizes that no picture could have, a folder that is not there.
  media::MediaOptions finish() const;
};

// How large pictures become and what decoding may take.
inline constexpr std::array<const char*, 5> media_flags = {"--mm-processor-kwargs", "--media-size-rule",
                                                           "--media-decode-timeout", "--media-decode-memory-bytes",
                                                           "--media-max-video-total-pixels"};
void add_media_flags(CLI::App& command, MediaFlags& flags);
// Where on the web requests may have them: --allowed-media-domains, --media-private-hosts, --media-fetch-timeout.
void add_web_flags(CLI::App& command, MediaFlags& flags);
// What requests of others may cost: --limit-mm-per-prompt, --language-model-only, --allowed-local-media-path,
// --media-*.
void add_media_limits(CLI::App& command, MediaFlags& flags);

// vLLM takes lists as JSON: '["http://a", "http://b"]'. Plain words are taken too. Errors (usage) name the flag.
std::vector<std::string> word_list(const std::string& flag, const std::vector<std::string>& given);

}  // namespace m3::cli
