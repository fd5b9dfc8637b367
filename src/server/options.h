// What `m3 serve` can be told. The names of the flags are in src/cli/serve_options.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/media/options.h"

namespace m3::server {

using Seconds = std::chrono::duration<double>;

struct ServerOptions {
  std::string host = "0.0.0.0";
  std::uint16_t port = 8000;              // 0: any free one
  std::string root_path;                  // a prefix that a proxy leaves in the paths: "/m3"
  std::vector<std::string> served_names;  // the first is the one replies name; empty: the checkpoint's folder name
  std::vector<std::string> api_keys;      // empty: everybody may call
  std::string ssl_certificate, ssl_key;   // PEM files; both or none

  std::vector<std::string> allowed_origins = {"*"};  // CORS; empty: no CORS headers
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;

  // Bounds on what one client can take.
  std::size_t body_limit = std::size_t{64} << 20;
  std::size_t body_memory = 0;  // bytes of all bodies that are held; 0: an eighth of what is available at start
  std::size_t header_limit = std::size_t{64} << 10;  // bytes of a request's head
  std::size_t header_count_limit = 256;
  std::size_t queue_limit = std::size_t{8} << 20;  // bytes of a reply that may wait for its reader
  std::size_t max_connections = 4096;
  Seconds header_timeout{10};      // for a whole head
  Seconds body_timeout{300};       // for a whole body
  Seconds idle_timeout{30};        // without a byte within a body
  Seconds write_timeout{60};       // without a byte taken by the reader
  Seconds keep_alive_timeout{65};  // between requests
  Seconds shutdown_timeout{30};    // for running requests after SIGTERM

  int io_threads = 1;
  int worker_threads = 2;

  bool allow_unknown_fields = false;
  bool join_packets = true;        // join and cut stream fragments (packets.h)
  bool vllm_metric_names = false;  // each series a second time, under vLLM's own name
  bool return_tokens_as_ids = false;
  std::string default_template_arguments;  // JSON object; fills what chat_template_kwargs leaves open
  std::int64_t max_logprobs = 20;

  media::MediaOptions media;  // pictures and videos of requests

  bool log_json = false;
  bool log_requests = true;
  bool log_prompts = false;
  std::string log_level = "info";
};

}  // namespace m3::server
