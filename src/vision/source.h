// Where a request's pictures and videos come from: data: URLs, files below one folder, and the web where it is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/vision/fetch.h"

namespace m3::vision {

struct SourceOptions {
  // file: URLs may name what lies below this folder; empty: none at all. (--allowed-local-media-path)
  std::filesystem::path local_root;
  // http: and https: URLs are off unless this says so.
  bool web = false;
  FetchOptions fetch;
  // Called with the bytes that there will be of a data: URL or a file, before they are taken, and from the web with
  // those that have come (fetch.received is not looked at). What it throws ends the reading.
  std::function<void(std::int64_t bytes)> received;
};

// The bytes behind a URL, `limit` at most. Errors (input), one line that begins with the URL (shortened, no data): a
// scheme that is unknown or not allowed, malformed, too large, and what each source has of its own.
std::vector<std::byte> load_source(std::string_view url, const SourceOptions& options, std::int64_t limit);

// By its scheme alone.
bool is_data_url(std::string_view url);
// "example.org:443" of an http: or https: URL; empty: another one, or malformed.
std::string web_host(std::string_view url);

// A URL for messages: "data:image/png;base64,…", others cut after 100 characters, control characters replaced.
std::string short_url(std::string_view url);

// The content of "data:[TYPE][;base64],TEXT". The type is not believed and may be absent. Base64 may be wrapped, lack
// its padding, or use the URL-safe letters.
std::vector<std::byte> decode_data_url(std::string_view url, std::int64_t limit,
                                       const std::function<void(std::int64_t)>& received = {});

// Base64 as above. Errors (input): another character, and the number of its place; a length that no data has.
std::vector<std::byte> decode_base64(std::string_view text);

// "%41b" -> "Ab". Errors (input): % without two hexadecimal digits.
std::string decode_percent(std::string_view text);

// The bytes of a file: URL's file. What is opened must be a regular file that really lies below `root`, links and ".."
// resolved. Errors (input): anything else, in the same words whether the file exists or not.
std::vector<std::byte> read_local_file(std::string_view url, const std::filesystem::path& root, std::int64_t limit,
                                       const std::function<void(std::int64_t)>& received = {});

}  // namespace m3::vision
