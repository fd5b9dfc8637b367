#include "src/server/listener.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <list>
#include <mutex>
#include <thread>

#include "src/base/error.h"
#include "src/server/session.h"

namespace m3::server {

struct Listener::State {
  explicit State(const ServerOptions& options, ListenerHooks hooks)
      : io(options.io_threads), acceptor(io), retry(io), shared(std::make_shared<SessionShared>()) {
    shared->options = options;
    shared->hooks = std::move(hooks);
  }

  asio::io_context io;
  Tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::unique_ptr<asio::ssl::context> tls;
  std::shared_ptr<SessionShared> shared;
  std::vector<std::thread> threads;
  std::uint16_t port = 0;
  bool local = false;
  std::mutex mutex;
  std::list<std::weak_ptr<SessionBase>> sessions;

  void add(const std::shared_ptr<SessionBase>& session) {
    const std::lock_guard lock(mutex);
    sessions.remove_if([](const auto& weak) { return weak.expired(); });
    sessions.push_back(session);
  }

  template <typename Call>
  void for_each_session(const Call& call) {
    const std::lock_guard lock(mutex);
    for (const auto& weak : sessions) {
      if (const auto session = weak.lock()) call(*session);
    }
  }

  void serve(Tcp::socket socket) {
    if (tls) {
      auto session = std::make_shared<Session<asio::ssl::stream<Tcp::socket>>>(
          shared, asio::ssl::stream<Tcp::socket>(std::move(socket), *tls));
      add(session);
      return session->start();
    }
    auto session = std::make_shared<Session<Tcp::socket>>(shared, std::move(socket));
    add(session);
    session->start();
  }

  asio::awaitable<void> accept() {
    constexpr auto as_result = asio::as_tuple(asio::use_awaitable);
    while (acceptor.is_open()) {
      auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io), as_result);
      if (!acceptor.is_open() || error == asio::error::operation_aborted) co_return;
      if (error) {  // out of descriptors, most likely: others will be closed
        retry.expires_after(std::chrono::milliseconds(50));
        co_await retry.async_wait(as_result);
        continue;
      }
      if (shared->connections >= shared->options.max_connections) continue;  // closes it
      serve(std::move(socket));
    }
  }
};

namespace {

std::unique_ptr<asio::ssl::context> make_tls(const ServerOptions& options) {
  if (options.ssl_certificate.empty()) return nullptr;
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                       asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  boost::system::error_code error;
  context->use_certificate_chain_file(options.ssl_certificate, error);
  if (error) {
    fail_resource("--ssl-certfile {}: not a readable PEM certificate ({})", options.ssl_certificate, error.message());
  }
  context->use_private_key_file(options.ssl_key, asio::ssl::context::pem, error);
  if (error) {
    fail_resource("--ssl-keyfile {}: not a readable PEM key of that certificate ({})", options.ssl_key,
                  error.message());
  }
  return context;
}

}  // namespace

Listener::Listener(const ServerOptions& options, ListenerHooks hooks)
    : state_(std::make_shared<State>(options, std::move(hooks))) {
  state_->tls = make_tls(options);
  boost::system::error_code error;
  Tcp::resolver resolver(state_->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), Tcp::resolver::passive, error);
  if (error || found.empty()) fail_resource("--host {}: no such address ({})", options.host, error.message());
  const Tcp::endpoint endpoint = found.begin()->endpoint();
  Tcp::acceptor& acceptor = state_->acceptor;
  const auto check = [&](const char* what) {
    if (error) {
      fail_resource("cannot {} {} port {}: {}; choose another with {}", what, options.host, options.port,
                    error.message(), error == boost::system::errc::address_not_available ? "--host" : "--port");
    }
  };
  acceptor.open(endpoint.protocol(), error);
  check("open");
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  check("open");
  acceptor.bind(endpoint, error);
  check("listen on");
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  check("listen on");
  state_->port = acceptor.local_endpoint().port();
  state_->local = acceptor.local_endpoint().address().is_loopback();
}

Listener::~Listener() { stop(); }

void Listener::start() {
  State& state = *state_;
  asio::co_spawn(state.io, state.accept(), asio::detached);
  for (int i = 0; i < state.shared->options.io_threads; ++i) {
    state.threads.emplace_back([&state] { state.io.run(); });
  }
}

std::uint16_t Listener::port() const { return state_->port; }

void Listener::close() {
  state_->shared->closing = true;
  asio::post(state_->io, [state = state_.get()] {  // which owns the queue that this waits in
    boost::system::error_code ignored;
    state->acceptor.close(ignored);
  });
}

void Listener::stop() {
  close();
  state_->for_each_session([](SessionBase& session) { session.cut(); });
  // The sessions' coroutines end on their own once cut; what has not after a moment is dropped with the context.
  const std::atomic<std::size_t>& connections = state_->shared->connections;
  for (int i = 0; i < 100 && connections > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  state_->io.stop();
  for (std::thread& thread : state_->threads) thread.join();
  state_->threads.clear();
}

std::size_t Listener::busy() const { return state_->shared->busy; }

bool Listener::is_local() const { return state_->local; }

}  // namespace m3::server
