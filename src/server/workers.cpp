#include "src/server/workers.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

namespace m3::server {

namespace asio = boost::asio;

struct Workers::Pool {
  explicit Pool(std::size_t count) : threads(count) {}
  asio::thread_pool threads;
};

Workers::Workers(int threads) : pool_(std::make_unique<Pool>(static_cast<std::size_t>(threads))) {}

Workers::~Workers() { stop(); }

void Workers::post(std::function<void()> work) { asio::post(pool_->threads, std::move(work)); }

void Workers::stop() {
  pool_->threads.stop();
  pool_->threads.join();
}

struct SerialQueue::State {
  explicit State(asio::thread_pool& pool) : strand(asio::make_strand(pool)), alarm(strand) {}
  asio::strand<asio::thread_pool::executor_type> strand;
  asio::steady_timer alarm;
};

SerialQueue::SerialQueue(Workers& workers) : state_(std::make_unique<State>(workers.pool().threads)) {}

SerialQueue::~SerialQueue() = default;

void SerialQueue::post(std::function<void()> work) { asio::post(state_->strand, std::move(work)); }

void SerialQueue::post_at(Clock::time_point time, std::function<void()> work) {
  state_->alarm.expires_at(time);
  state_->alarm.async_wait([work = std::move(work)](const boost::system::error_code& error) {
    if (!error) work();
  });
}

void SerialQueue::cancel_alarm() { state_->alarm.cancel(); }

}  // namespace m3::server
