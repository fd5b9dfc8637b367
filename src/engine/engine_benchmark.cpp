#include "src/engine/engine_benchmark.h"

#include <chrono>
#include <future>
#include <random>

#include "src/base/error.h"

namespace m3::engine {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Reads the clock when everybody has begun and when somebody ends. All calls come from the engine's thread.
class Watch {
 public:
  Watch(const Engine& engine, std::int64_t concurrent) : engine_(engine), waiting_(concurrent), open_(concurrent) {}

  void see(const Event& event) {
    tokens_ += static_cast<std::int64_t>(event.ids.size());
    if (event.usage.completion_tokens == 1 && --waiting_ == 0) all_begun_ = now();
    if (event.finish == FinishReason::none) return;
    if (event.finish == FinishReason::error) error_ = event.error;
    if (open_ == concurrent()) first_end_ = now();
    if (--open_ == 0) done_.set_value();
  }

  EngineTiming wait() {
    done_.get_future().wait();
    if (!error_.empty()) fail("the engine's benchmark: {}", error_);
    const Statistics& from = all_begun_.statistics;
    const Statistics& to = first_end_.statistics;
    EngineTiming timing;
    timing.tokens_per_second =
        static_cast<double>(first_end_.tokens - all_begun_.tokens) / seconds_between(all_begun_.time, first_end_.time);
    timing.scheduler_share = (to.scheduler_seconds - from.scheduler_seconds) / (to.step_seconds - from.step_seconds);
    timing.first_token_seconds = seconds_between(start_, all_begun_.time);
    return timing;
  }

 private:
  struct Reading {
    Clock::time_point time;
    std::int64_t tokens = 0;
    Statistics statistics;
  };
  Reading now() const { return {Clock::now(), tokens_, engine_.statistics()}; }
  std::int64_t concurrent() const { return total_; }

  const Engine& engine_;
  std::int64_t waiting_, open_, total_ = open_;
  std::int64_t tokens_ = 0;
  Clock::time_point start_ = Clock::now();
  Reading all_begun_, first_end_;
  std::string error_;
  std::promise<void> done_;
};

}  // namespace

EngineTiming time_engine(Engine& engine, std::int64_t concurrent, std::int64_t prompt, std::int64_t reply) {
  std::mt19937 random(11);
  Watch watch(engine, concurrent);
  for (std::int64_t i = 0; i < concurrent; ++i) {
    Request request;
    for (std::int64_t token = 0; token < prompt; ++token)
      request.prompt_ids.push_back(
          static_cast<TokenId>(random() % static_cast<std::uint32_t>(engine.info().vocab_size)));
    request.max_tokens = reply;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    engine.submit(std::move(request), [&watch](const Event& event) { watch.see(event); });
  }
  return watch.wait();
}

}  // namespace m3::engine
