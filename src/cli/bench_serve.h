// m3 bench serve: a load of requests against a server, and how long each took.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace m3::cli {

// Where requests go. `path` is of /v1/completions or /v1/chat/completions.
struct LoadTarget {
  std::string host, port, path, key;
};

// "http://host:port/prefix" and a path. Errors (usage): https, or no address.
LoadTarget parse_target(const std::string& url, const std::string& path);

struct PlannedRequest {
  double start = 0;  // seconds after the beginning
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::string body;
};

struct LoadPlan {
  std::string dataset = "random";  // or sharegpt: lengths as in that collection of conversations
  std::int64_t requests = 100;
  std::int64_t input_len = 256, output_len = 64, prefix_len = 0;  // of random
  double range_ratio = 0;                                         // lengths vary by this share, up and down
  double rate = 0;                                                // a second, with exponential gaps; 0: all at once
  double temperature = 0;
  bool ignore_eos = false;
  bool chat = false;
  std::uint64_t seed = 0;
  std::string model;
};

// Every prompt differs behind the common prefix, so that no prefix cache helps unless asked to. Completions get token
// ids, chats as many short words.
std::vector<PlannedRequest> plan_requests(const LoadPlan& plan);

// All times in seconds.
struct LoadRecord {
  double started = 0, first = 0, ended = 0;  // first: of text; 0: there was none
  std::vector<double> gaps;                  // between packets of text
  std::int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  std::string error;  // one line; empty: it went well
};

// Whether anything takes a connection there.
bool answers(const LoadTarget& target);

// Sends a request and reads its stream to the end. Never throws: what goes wrong is in `error`. `now` tells the time.
LoadRecord stream_request(const LoadTarget& target, const std::string& body, double (*now)());

// Linear between neighbours; 0 of nothing. `share` from 0 to 1.
double percentile(std::vector<double> values, double share);

// Sums, rates, and mean and percentiles of time to first token, time per output token, gaps and whole times (ms).
nlohmann::ordered_json summarise(const std::vector<LoadRecord>& records, double seconds,
                                 const std::vector<double>& percentiles);
std::string summary_text(const nlohmann::ordered_json& summary);

}  // namespace m3::cli
