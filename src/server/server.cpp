#include "src/server/server.h"

#include <malloc.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/chat/messages.h"
#include "src/chat/template/json.h"
#include "src/server/api_keys.h"
#include "src/server/listener.h"
#include "src/server/routes.h"
#include "src/server/values.h"

namespace m3::server {
namespace {

struct Interrupted {};

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

chat::Value read_template_defaults(const std::string& text) {
  const std::string flag = "--default-chat-template-kwargs";
  chat::Value value = chat::parse_json(text.empty() ? "{}" : text, flag);
  if (!value.is(chat::Kind::dict)) fail_usage("{}: expected a JSON object", flag);
  try {  // as every chat will
    chat::Dict body;
    set_member(body, "messages", list_value({dict_value({{"role", text_value("user")}, {"content", text_value("")}})}));
    set_member(body, "chat_template_kwargs", value);
    static_cast<void>(chat::parse_chat_request(dict_value(std::move(body))));
  } catch (const Error& problem) {
    fail_usage("{}: {}", flag, problem.what());
  }
  return value;
}

ServerOptions with_body_memory(ServerOptions options) {
  if (options.body_memory > 0) return options;
  const auto share = static_cast<std::size_t>(available_memory_bytes() / 8);
  options.body_memory = std::max(share, 4 * options.body_limit);
  return options;
}

bool any(const std::vector<std::string>& words) { return std::ranges::find(words, "*") != words.end(); }

}  // namespace

Server::Server(ServerOptions options, Loader loader)
    : options_(with_body_memory(std::move(options))),
      log_(options_.log_json, options_.log_level),
      template_defaults_(read_template_defaults(options_.default_template_arguments)),
      metrics_(options_.vllm_metric_names),
      workers_(options_.worker_threads),
      media_(std::make_unique<media::MediaLoader>(options_.media)),
      keys_(std::make_unique<ApiKeys>(options_.api_keys)) {
  mallopt(M_MMAP_THRESHOLD, 4 << 20);  // fixed: else it grows up to 32 MiB with what is freed
  add_routes(router_, *this);
  listener_ = std::make_unique<Listener>(
      options_, ListenerHooks{[this](const auto& exchange) { dispatch(exchange); },
                              [this](HttpRequest& request) { return check_head(request); },
                              [this](const Exchange& exchange, Seconds elapsed, std::size_t bytes, bool whole) {
                                log_request(exchange, elapsed, bytes, whole);
                              }});
  listener_->start();
  if (options_.api_keys.empty() && !listener_->is_local()) {
    log_.warning(
        "everyone on the network can use this server: --api-key KEY asks for a key, "
        "--host 127.0.0.1 keeps it to this machine");
  }
  loader_ = std::thread([this, loader = std::move(loader)] { load(loader); });
}

// In the order in which they call each other: sessions, pictures, handlers, the engine.
Server::~Server() {
  ++shut_down_calls_;
  listener_->stop();
  loader_.join();
  media_->stop();
  workers_.stop();
  model_.reset();
}

std::uint16_t Server::port() const { return listener_->port(); }

std::string Server::url() const {
  const bool everywhere = options_.host == "0.0.0.0" || options_.host == "::" || options_.host.empty();
  const std::string host = everywhere ? "localhost" : options_.host;
  const bool bare = host.find(':') == std::string::npos;  // no IPv6 address
  return fmt::format("{}://{}{}{}:{}", options_.ssl_certificate.empty() ? "http" : "https", bare ? "" : "[", host,
                     bare ? "" : "]", port());
}

void Server::load(const Loader& loader) {
  std::exception_ptr problem;
  try {
    std::unique_ptr<Model> model = loader([this](std::string_view what, std::int64_t, std::int64_t) {
      if (shut_down_calls_ > 0) throw Interrupted();
      log_.debug("loading", {{"what", what}});
    });
    const std::lock_guard lock(mutex_);
    model_ = std::move(model);
    auto expected = State::loading;
    state_.compare_exchange_strong(expected, State::ready);
  } catch (...) {
    problem = std::current_exception();
  }
  if (problem) {
    const std::lock_guard lock(mutex_);
    load_error_ = std::move(problem);  // this thread lets go of it
    auto expected = State::loading;
    state_.compare_exchange_strong(expected, State::failed);
  }
  changed_.notify_all();
}

void Server::wait_until_loaded() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ != State::loading; });
  if (load_error_ && shut_down_calls_ == 0) std::rethrow_exception(load_error_);
}

void Server::shut_down() {
  const int calls = ++shut_down_calls_;
  {
    const std::lock_guard lock(mutex_);
    drain_end_ = Clock::now();
    if (calls == 1) drain_end_ += std::chrono::duration_cast<Clock::duration>(options_.shutdown_timeout);
    if (state_ != State::failed) state_ = State::draining;
  }
  if (calls == 1) log_.info("shutting down: running requests may finish", {{"running", generations_.size()}});
  listener_->close();
  changed_.notify_all();
}

bool Server::drained() {
  if (generations_.size() == 0 && listener_->busy() == 0) return true;
  if (Clock::now() < drain_end_) return false;
  const std::size_t cancelled = generations_.cancel_all();
  if (cancelled > 0) {
    log_.warning("time is over: requests cancelled", {{"running", cancelled}});
    generations_.wait_until_empty(Clock::now() + std::chrono::seconds(2));
  }
  return true;
}

std::optional<int> Server::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return state_ == State::draining || state_ == State::failed; });
  const bool dead = model_ != nullptr && !model_->engine->healthy();
  lock.unlock();
  if (dead) engine_failed("its thread has ended");
  const State state = state_;
  if (state == State::failed) {
    // Those who wait have been told; their connections get a moment to hear it.
    listener_->close();
    const auto end = Clock::now() + std::chrono::seconds(1);
    while (listener_->busy() > 0 && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return 1;
  }
  if (state == State::draining) {
    if (drained()) return 0;
    std::this_thread::sleep_for(std::min(time, std::chrono::milliseconds(20)));
  }
  return std::nullopt;
}

void Server::engine_failed(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::failed) return;
    state_ = State::failed;
  }
  log_.error("the engine failed", {{"why", why}});
  changed_.notify_all();
}

Model& Server::model() const {
  switch (state_) {
    case State::loading: throw ApiError(503, "the model is loading; try again in a moment", {}, "loading");
    case State::failed: throw ApiError(503, "the engine has failed; the server is ending", {}, "engine_failed");
    case State::draining: {
      const std::lock_guard lock(mutex_);  // it may have come just now
      if (model_ == nullptr) throw ApiError(503, "the server is ending", {}, "shutting_down");
      break;
    }
    case State::ready: break;
  }
  return *model_;
}

std::string Server::served_name() const {
  return options_.served_names.empty() ? model().name : options_.served_names.front();
}

bool Server::serves(const std::string& name) const {
  if (options_.served_names.empty()) return name == model().name;
  return std::ranges::find(options_.served_names, name) != options_.served_names.end();
}

void Server::add_cors(HttpRequest& request) const {
  const auto origin = request.header("origin");
  if (!origin || options_.allowed_origins.empty()) return;
  const bool all = any(options_.allowed_origins);
  if (!all && std::ranges::find(options_.allowed_origins, *origin) == options_.allowed_origins.end()) return;
  const bool plain = all && !options_.allow_credentials;
  request.reply_headers.emplace_back("Access-Control-Allow-Origin", plain ? "*" : std::string(*origin));
  if (!plain) request.reply_headers.emplace_back("Vary", "Origin");
  if (options_.allow_credentials) request.reply_headers.emplace_back("Access-Control-Allow-Credentials", "true");
  request.reply_headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
}

HttpReply Server::preflight(const HttpRequest& request) const {
  HttpReply reply;
  reply.status = 204;
  const std::string methods = router_.methods_of(request.path);
  if (methods.empty()) return error_reply(ApiError(404, shortened(request.path) + ": no such path here"), request);
  reply.headers.emplace_back("Allow", methods + ", OPTIONS");
  if (request.reply_headers.empty() || !request.header("access-control-request-method")) return reply;
  reply.headers.emplace_back("Access-Control-Allow-Methods",
                             any(options_.allowed_methods) ? methods : joined(options_.allowed_methods));
  const auto asked = request.header("access-control-request-headers");
  if (asked) {
    reply.headers.emplace_back("Access-Control-Allow-Headers",
                               any(options_.allowed_headers) ? std::string(*asked) : joined(options_.allowed_headers));
  }
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

std::optional<HttpReply> Server::check_head(HttpRequest& request) const try {
  const std::string& root = options_.root_path;
  if (!root.empty() && request.path.starts_with(root) &&
      (request.path.size() == root.size() || request.path[root.size()] == '/')) {
    request.path = request.path.size() == root.size() ? std::string(1, '/') : request.path.substr(root.size());
  }
  request.error_style = router_.style_of(request.path);
  add_cors(request);
  if (request.method == "OPTIONS") return preflight(request);
  const Route& route = router_.find(request);
  request.error_style = route.style;
  request.route = route.path;
  if (!route.open && !keys_->allow(request)) {
    throw ApiError(401, "no valid API key: send \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"", {},
                   "invalid_api_key");
  }
  if (!route.while_loading) {
    static_cast<void>(model());
    if (state_ == State::draining) throw ApiError(503, "the server is ending", {}, "shutting_down");
  }
  return std::nullopt;
} catch (...) {
  HttpReply reply = error_reply(to_api_error(std::current_exception()), request);
  if (reply.status == 405) reply.headers.emplace_back("Allow", router_.methods_of(request.path) + ", OPTIONS");
  return reply;
}

void Server::dispatch(const std::shared_ptr<Exchange>& exchange) {
  const Route* route = &router_.find(exchange->request());  // check_head() found it
  const auto handle = [route, exchange] {
    try {
      route->handler(exchange);
    } catch (...) {
      exchange->send(error_reply(to_api_error(std::current_exception()), exchange->request()));
    }
    // All that is needed of it was read; the reply may take long.
    std::string().swap(exchange->request().body);  // an assignment keeps its memory
    exchange->request().body_share = nullptr;
  };
  if (route->at_once) return handle();
  workers_.post(handle);
}

void Server::log_request(const Exchange& exchange, Seconds elapsed, std::size_t bytes, bool whole) {
  const HttpRequest& request = exchange.request();
  const int status = whole ? exchange.status() : 499;  // "client closed request", as nginx counts them
  metrics_.request_done(request.method, request.route, status, elapsed.count());
  if (!options_.log_requests) return;
  const bool probe = request.path == "/health" || request.path == "/metrics" || request.path == "/ping";
  log_.write(probe ? LogLevel::debug : LogLevel::info, "request",
             {{"request_id", request.id},
              {"client", request.client},
              {"method", request.method},
              {"path", request.path},
              {"status", status},
              {"bytes", bytes},
              {"seconds", std::round(elapsed.count() * 1e4) / 1e4},
              {"gone", !whole}});
}

}  // namespace m3::server
