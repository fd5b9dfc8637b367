// The server as a whole: the model behind it, its routes, its threads and its end.
//
// Threads: `io_threads` move bytes (listener.h), `worker_threads` run handlers and turn events into replies, the
// engine and what fetches and decodes pictures (media_call.h) have their own. A client's bytes go session -> Exchange -> Router -> handler; a reply's go engine -> Generation
// (generation.h) -> ReplyWriter -> Exchange -> session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "src/media/loader.h"
#include "src/server/generation_registry.h"
#include "src/server/log.h"
#include "src/server/metrics.h"
#include "src/server/model.h"
#include "src/server/options.h"
#include "src/server/router.h"
#include "src/server/workers.h"

namespace m3::server {

class Listener;
class ApiKeys;

class Server {
 public:
  using Loader = std::function<std::unique_ptr<Model>(const LoadProgress&)>;

  // Opens the port at once and loads behind it. Errors: the address cannot be had; a certificate cannot be read.
  Server(ServerOptions options, Loader loader);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  std::string url() const;

  // Blocks until the model is there. Errors: what the loader throws.
  void wait_until_loaded();
  // Begins the end: no new connections, running requests may finish within shutdown_timeout; a second call cuts them.
  // From any thread.
  void shut_down();
  // Waits so long for the end: 0 after shut_down() and all replies, 1 when loading or the engine failed (the line is
  // logged), nothing while it goes on.
  std::optional<int> wait_for(std::chrono::milliseconds time);

  // --- for handlers
  // The model. Errors (ApiError): 503 while it loads and when the engine has failed.
  Model& model() const;
  // For replies that have begun: they are finished, or told of the failure, whatever the state is by then.
  const Tokenizer& tokenizer() const { return model_->tokenizer; }
  const ServerOptions& options() const { return options_; }
  Workers& workers() { return workers_; }
  Log& log() { return log_; }
  Metrics& metrics() { return metrics_; }
  media::MediaLoader& media() { return *media_; }
  GenerationRegistry& generations() { return generations_; }
  // What a chat request's template arguments leave open (--default-chat-template-kwargs); a dict.
  const chat::Value& template_defaults() const { return template_defaults_; }
  // The name that replies give; the names that requests may give.
  std::string served_name() const;
  bool serves(const std::string& name) const;

  enum class State { loading, ready, draining, failed };
  State state() const { return state_; }
  // Called where the engine is seen to have failed: /health turns bad and the process ends.
  void engine_failed(const std::string& why);

 private:
  void load(const Loader& loader);
  // On an io thread: what can be said before a body is read.
  std::optional<HttpReply> check_head(HttpRequest& request) const;
  void add_cors(HttpRequest& request) const;
  HttpReply preflight(const HttpRequest& request) const;
  // On an io thread, with a whole request: hands it to a worker.
  void dispatch(const std::shared_ptr<Exchange>& exchange);
  void log_request(const Exchange& exchange, Seconds elapsed, std::size_t bytes, bool whole);
  // Ends what still runs where the time for it is over; whether all has ended.
  bool drained();

  ServerOptions options_;
  Log log_;
  chat::Value template_defaults_;
  Metrics metrics_;
  Router router_;
  GenerationRegistry generations_;
  std::unique_ptr<Model> model_;
  std::atomic<State> state_ = State::loading;
  std::atomic<int> shut_down_calls_ = 0;
  Clock::time_point drain_end_;
  std::exception_ptr load_error_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Workers workers_;
  std::unique_ptr<media::MediaLoader> media_;
  std::unique_ptr<ApiKeys> keys_;
  std::unique_ptr<Listener> listener_;
  std::thread loader_;
};

}  // namespace m3::server
