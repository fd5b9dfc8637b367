#include "src/cli/serve_options.h"

#include <cstdlib>
#include "src/base/error.h"
#include "src/cli/number_words.h"

namespace m3::cli {
namespace {

const CLI::Validator only_one_device(
    [](std::string& text) {
      return text == "1" ? std::string()
                         : text +
                               " is not there yet: one device computes all, so leave it out or give 1 (--quantization "
                               "ptpc_fp8 and --kv-cache-dtype fp8 make a model smaller)";
    },
    "", "");

void add_network_options(CLI::App& command, ServeOptions& options) {
  server::ServerOptions& server = options.server;
  command.add_option("--host", server.host, "Address to listen at")->capture_default_str();
  command.add_option("--port", server.port, "Port; 0 picks a free one and prints it")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command.add_option("--root-path", server.root_path, "Path prefix that a proxy leaves in requests, such as /m3");
  command.add_option("--ssl-certfile", server.ssl_certificate, "Certificate chain (PEM): serves https");
  command.add_option("--ssl-keyfile", server.ssl_key, "Its key (PEM)");
  command.add_option("--api-key", server.api_keys,
                     "A key that callers must show; several may be given (also: $M3_API_KEY)");
  command.add_option("--allowed-origins", options.origins, "Origins that browsers may call from (JSON list or words)")
      ->capture_default_str();
  command.add_option("--allowed-methods", options.methods, "Methods that they may use")->capture_default_str();
  command.add_option("--allowed-headers", options.headers, "Headers that they may send")->capture_default_str();
  command.add_flag("--allow-credentials", server.allow_credentials, "They may send cookies");
  command.add_option("--max-body-size", server.body_limit, "Bytes of a request's body (also 64M)")
      ->transform(byte_words)
      ->check(CLI::Range(std::size_t{1} << 10, std::size_t{1} << 32))
      ->capture_default_str();
  command
      .add_option("--max-body-memory", server.body_memory,
                  "Bytes of all bodies that are read and looked at; a large one beyond gets 503. 0 = an eighth of the "
                  "memory available at start")
      ->transform(byte_words)
      ->check(CLI::Range(std::size_t{0}, std::size_t{1} << 50))
      ->capture_default_str();
  command.add_option("--h11-max-incomplete-event-size", server.header_limit, "Bytes of a request's head")
      ->transform(byte_words)
      ->check(CLI::Range(std::size_t{1} << 10, std::size_t{1} << 26))
      ->capture_default_str();
  command.add_option("--h11-max-header-count", server.header_count_limit, "Headers of a request")
      ->check(CLI::Range(8, 100'000))
      ->capture_default_str();
  command.add_option("--max-connections", server.max_connections, "Connections; further ones are closed")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      .add_option("--max-stream-queue", server.queue_limit,
                  "Bytes of a reply that may wait for a slow reader before it is cut off")
      ->transform(byte_words)
      ->check(CLI::Range(std::size_t{1} << 16, std::size_t{1} << 32))
      ->capture_default_str();
  const auto seconds = [&](const char* name, double& value, const char* what) {
    command.add_option(name, value, what)->check(CLI::Range(0.01, 86400.0))->capture_default_str();
  };
  seconds("--timeout-header", options.header_seconds, "Seconds for a request's head");
  seconds("--timeout-body", options.body_seconds, "Seconds for a request's body");
  seconds("--timeout-write", options.write_seconds, "Seconds without a byte taken by a reader");
  seconds("--timeout-keep-alive", options.keep_alive_seconds, "Seconds between requests of a connection");
  command
      .add_option("--timeout-graceful-shutdown", options.shutdown_seconds,
                  "Seconds that running requests have after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

void add_api_options(CLI::App& command, ServeOptions& options) {
  server::ServerOptions& server = options.server;
  command.add_option("--served-model-name", server.served_names,
                     "Names that requests may give; replies give the first (default: the checkpoint's folder)");
  command.add_option("--chat-template", options.chat_template, "A chat template file in place of the checkpoint's");
  command.add_option("--default-chat-template-kwargs", server.default_template_arguments,
                     "JSON object that fills what a request's chat_template_kwargs leave open");
  command.add_flag("--enable-auto-tool-choice", options.enable_auto_tool_choice, "Always on; for vLLM's scripts");
  const std::vector<std::string> parsers = {"minimax_m3", "minimax-m3", "auto"};  // vLLM's name, SGLang's two
  command.add_option("--tool-call-parser", options.tool_call_parser, "minimax_m3, the only one")
      ->check(CLI::IsMember(parsers));
  command.add_option("--reasoning-parser", options.reasoning_parser, "minimax_m3, the only one")
      ->check(CLI::IsMember(parsers));
  command.add_option("--max-logprobs", server.max_logprobs, "Log-probabilities of a token that a request may ask for")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_flag("--return-tokens-as-token-ids", server.return_tokens_as_ids,
                   "Tokens in log-probabilities are written \"token_id:5\"");
  command.add_flag("--allow-unknown-fields", server.allow_unknown_fields,
                   "Unknown fields of requests are ignored instead of refused");
  command.add_flag("!--no-packet-joining,--packet-joining", server.join_packets,
                   "Stream fragments of chats are joined and cut (5 to 200 characters; on unless --no-packet-joining)");
  command.add_flag("--vllm-metric-names", server.vllm_metric_names, "/metrics has each series as vllm:... too");
}

void add_log_options(CLI::App& command, ServeOptions& options) {
  server::ServerOptions& server = options.server;
  command.add_option("--log-format", options.log_format, "text, or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command
      .add_option("--log-level,--uvicorn-log-level", server.log_level, "critical, error, warning, info, debug, trace")
      ->check(CLI::IsMember({"critical", "error", "warning", "info", "debug", "trace"}))
      ->capture_default_str();
  command.add_flag(
      "!--disable-log-requests,!--no-enable-log-requests,!--disable-uvicorn-access-log,--enable-log-requests",
      server.log_requests, "A line for each request (on)");
  command.add_flag("--log-prompts", server.log_prompts, "A line with each prompt; without, no log holds any");
}

void add_engine_options(CLI::App& command, ServeOptions& options) {
  EngineOptions& engine = options.model.engine;
  command.add_option("--max-num-seqs", engine.max_num_seqs, "Samples computed at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--max-queued-requests", engine.max_queued_requests,
                  "Requests that may wait; further ones get 503 with Retry-After")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      .add_option("--kv-cache-memory-bytes", engine.cache_bytes,
                  "Memory for the cache in place of what --memory-utilization leaves (also 4G); 0 = that")
      ->transform(byte_words)
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 50))
      ->capture_default_str();
  command.add_flag("!--no-enable-prefix-caching,--enable-prefix-caching", engine.enable_prefix_caching,
                   "Blocks of 128 tokens computed once serve all prompts that begin so (on)");
  add_picture_options(command, engine);
  add_media_flags(command, options.media);
  add_web_flags(command, options.media);
  add_media_limits(command, options.media);
  command.add_option("--block-size", options.block_size, "Tokens of a cache block: 128 in M3")
      ->check(CLI::IsMember({128}));
  // In most launch scripts for vLLM, and true here in any case.
  command.add_flag("--enable-chunked-prefill", options.always, "Always on; for vLLM's scripts");
  command.add_flag("--trust-remote-code", options.always, "Without effect: no code of a checkpoint is run");
  command.add_flag("!--enforce-eager", engine.record_passes, "On cuda: launch each kernel of a step, record no graphs");
  command.add_option("--dtype", options.dtype, "auto or bfloat16, which is what activations are")
      ->check(CLI::IsMember({"auto", "bfloat16"}));
  command
      .add_option("--tensor-parallel-size", options.tensor_parallel_size, "1: several devices are not implemented yet")
      ->check(only_one_device);
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  add_network_options(command, options);
  add_api_options(command, options);
  add_engine_options(command, options);
  add_log_options(command, options);
  take_one_value_each(command);
  // As launch scripts for vLLM write them: several words behind one flag.
  for (const char* list : {"--api-key", "--served-model-name", "--allowed-media-domains", "--media-private-hosts",
                           "--allowed-origins", "--allowed-methods", "--allowed-headers"}) {
    command.get_option(list)->allow_extra_args(true);
  }
}

server::ServerOptions ServeOptions::finish() const {
  server::ServerOptions finished = server;
  if (const char* key = std::getenv("M3_API_KEY"); key != nullptr && *key != '\0') finished.api_keys.emplace_back(key);
  for (const std::string& key : finished.api_keys) {
    if (key.empty()) fail_usage("--api-key: a key is empty");
  }
  if (finished.ssl_certificate.empty() != finished.ssl_key.empty()) {
    fail_usage("--ssl-certfile and --ssl-keyfile: give both or none");
  }
  if (!finished.root_path.empty() && (finished.root_path[0] != '/' || finished.root_path.back() == '/')) {
    fail_usage("--root-path {}: begins with / and does not end with one", finished.root_path);
  }
  for (const std::string& name : finished.served_names) {
    if (name.empty()) fail_usage("--served-model-name: a name is empty");
  }
  finished.allowed_origins = word_list("--allowed-origins", origins);
  finished.allowed_methods = word_list("--allowed-methods", methods);
  finished.allowed_headers = word_list("--allowed-headers", headers);
  finished.header_timeout = server::Seconds(header_seconds);
  finished.body_timeout = server::Seconds(body_seconds);
  finished.write_timeout = server::Seconds(write_seconds);
  finished.keep_alive_timeout = server::Seconds(keep_alive_seconds);
  finished.shutdown_timeout = server::Seconds(shutdown_seconds);
  finished.log_json = log_format == "json";
  finished.media = media::with_machine_defaults(media.finish());
  // Who waits for pictures waits for the engine.
  finished.media.most_waiting = model.engine.max_queued_requests;
  return finished;
}

}  // namespace m3::cli
