#include "src/server/generation.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "m3/error.h"
#include "src/server/server.h"

namespace m3::server {
namespace {

// How soon a request that the full queue refused is tried again, if none of its own company ends before.
constexpr auto retry_interval = std::chrono::milliseconds(10);
// Of a list of prompts, so many are queued before events are looked at again and others have their turn.
constexpr int most_at_once = 16;

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Server& server, std::shared_ptr<Exchange> exchange, std::unique_ptr<ReplyWriter> writer)
      : server_(server),
        engine_(*server.model().engine),
        exchange_(std::move(exchange)),
        writer_(std::move(writer)),
        queue_(server.workers()) {}

  void start(Request request, std::vector<std::vector<TokenId>> prompts) {
    const auto now = Clock::now();
    // A constraint may turn out to cost too much while it is compiled, and limits to leave no token: such a reply begins
    // with its first event.
    begins_at_once_ = request.constraint.kind == Constraint::Kind::none && request.sampling.allowed_ids.empty();
    samples_ = request.samples;
    open_ = samples_ * static_cast<int>(prompts.size());
    open_of_.assign(prompts.size(), samples_);
    for (std::size_t i = 0; i < prompts.size(); ++i) timers_.emplace_back(server_.metrics(), request, now);
    if (server_.options().log_prompts) {
      for (const std::vector<TokenId>& prompt : prompts) {
        server_.log().info("prompt",
                           {{"request_id", exchange_->request().id}, {"prompt", engine_.decode(prompt, false)}});
      }
    }
    request_ = std::move(request);
    prompts_ = std::move(prompts);
    const std::weak_ptr<Generation> weak = weak_from_this();
    const auto cancel_weakly = [weak] {
      if (const auto self = weak.lock()) self->cancel();
    };
    key_ = server_.generations().add(exchange_->request().id, cancel_weakly);
    exchange_->on_gone(cancel_weakly);
    try {
      submit_more();
    } catch (...) {
      cancel();  // the ones before; their events wait for a beginning that never comes
      server_.generations().remove(key_);
      throw;
    }
    queue_.post([self = shared_from_this()] {
      self->accepted_ = true;
      self->drain();
    });
  }

 private:
  struct Arrived {
    std::size_t prompt;
    Event event;
    Clock::time_point time;
  };

  // On the engine's thread.
  void push(std::size_t prompt, const Event& event) {
    {
      const std::lock_guard lock(mutex_);
      arrived_.push_back({prompt, event, Clock::now()});
      if (posted_) return;
      posted_ = true;
    }
    queue_.post([self = shared_from_this()] { self->drain(); });
  }

  void cancel() {
    std::vector<RequestId> ids;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      ids = ids_;
    }
    for (const RequestId id : ids) engine_.cancel(id);
  }

  bool cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

  bool wants_a_place() const {
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, 2 * engine_.info().max_num_seqs));
    return submitted_ < prompts_.size() && submitted_ - ended_ < most;
  }

  // As many as can run and as many again, if the engine's queue takes them: a list of prompts may be longer than the
  // queue, and should leave places for others. Errors: what submit() throws, a full queue only for the first.
  void submit_more() {
    for (int queued = 0; wants_a_place() && !cancelled(); ++queued) {
      if (queued == most_at_once) return queue_.post([self = shared_from_this()] { self->drain(); });
      RequestId id = 0;
      try {
        Request next = request_;
        next.prompt_ids = prompts_[submitted_];
        id = engine_.submit(std::move(next),
                            [self = shared_from_this(), i = submitted_](const Event& event) { self->push(i, event); });
      } catch (const Error& error) {
        if (submitted_ == 0 || error.kind() != ErrorKind::busy) throw;
        return;
      }
      prompts_[submitted_++] = {};
      if (submitted_ == prompts_.size()) request_ = {};  // the engine has its pictures
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
      if (cancelled_) engine_.cancel(id);  // meanwhile
    }
  }

  // On the queue: what waits for a place, or will never get one.
  void go_on_submitting() {
    if (submitted_ == prompts_.size()) return;
    if (!cancelled()) return submit_more();
    for (; submitted_ < prompts_.size(); ++submitted_) {
      for (int sample = 0; sample < samples_; ++sample) {
        Event event;
        event.sample = sample;
        event.finish = FinishReason::cancelled;
        handle({submitted_, event, Clock::now()});
      }
    }
  }

  void begin() {
    began_ = true;
    writer_->begin();
  }

  void drain() {
    if (!accepted_ || done_) return;
    std::vector<Arrived> batch;
    {
      const std::lock_guard lock(mutex_);
      batch.swap(arrived_);
      posted_ = false;
    }
    try {
      if (begins_at_once_ && !began_) begin();
      for (const Arrived& arrived : batch) {
        if (done_) return;
        handle(arrived);
      }
      if (!done_) go_on_submitting();
      if (done_) return;
      const auto now = Clock::now();
      if (const auto due = writer_->due(); began_ && due && *due <= now) writer_->tick(now);
      set_alarm();
    } catch (...) {
      end_with(to_api_error(std::current_exception()));
    }
  }

  void handle(const Arrived& arrived) {
    const Event& event = arrived.event;
    if (event.finish == FinishReason::error) {
      if (!event.refused) {
        if (!engine_.healthy()) server_.engine_failed(event.error);
        return end_with(ApiError(500, event.error));
      }
      return end_with(ApiError(400, event.error, param_of(event.error)));
    }
    if (!began_) begin();
    timers_[arrived.prompt].event(event, arrived.time);
    writer_->event(arrived.prompt, event, arrived.time);
    if (event.finish == FinishReason::none) return;
    if (--open_of_[arrived.prompt] == 0) ++ended_;
    if (--open_ > 0) return;
    writer_->finish();
    end();
  }

  void end_with(const ApiError& error) {
    cancel();
    const LogLevel level = error.status < 500 ? LogLevel::info : LogLevel::error;  // the client's fault, or ours
    server_.log().write(level, "a request failed", {{"request_id", exchange_->request().id}, {"why", error.what()}});
    if (exchange_->begun()) {
      writer_->fail(error);
    } else {
      exchange_->send(error_reply(error, exchange_->request()));
    }
    end();
  }

  void end() {
    done_ = true;
    queue_.cancel_alarm();
    server_.generations().remove(key_);
  }

  void set_alarm() {
    auto due = began_ ? writer_->due() : std::nullopt;
    if (wants_a_place()) {
      const auto retry = Clock::now() + retry_interval;
      due = due ? std::min(*due, retry) : retry;
    }
    if (due == alarm_) return;
    alarm_ = due;
    if (!due) return queue_.cancel_alarm();
    queue_.post_at(*due, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      self->alarm_.reset();
      self->drain();
    });
  }

  Server& server_;
  Engine& engine_;
  std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<ReplyWriter> writer_;
  SerialQueue queue_;
  Request request_;  // without a prompt
  int samples_ = 1;  // of it
  std::vector<std::vector<TokenId>> prompts_;
  std::size_t submitted_ = 0;           // of them; these are empty here
  std::size_t ended_ = 0;               // of these
  std::vector<int> open_of_;            // by prompt: samples that have not finished
  std::vector<Metrics::Timer> timers_;  // by prompt
  std::uint64_t key_ = 0;
  int open_ = 0;  // samples that have not finished
  bool begins_at_once_ = true;
  bool accepted_ = false;  // start() is through
  bool began_ = false, done_ = false;
  std::optional<Clock::time_point> alarm_;

  std::mutex mutex_;
  std::vector<RequestId> ids_;
  bool cancelled_ = false;
  std::vector<Arrived> arrived_;
  bool posted_ = false;
};

}  // namespace

void start_generation(Server& server, const std::shared_ptr<Exchange>& exchange, Request request,
                      std::vector<std::vector<TokenId>> prompts, std::unique_ptr<ReplyWriter> writer) {
  std::make_shared<Generation>(server, exchange, std::move(writer))->start(std::move(request), std::move(prompts));
}

void start_generation(Server& server, const std::shared_ptr<Exchange>& exchange, Request request,
                      std::unique_ptr<ReplyWriter> writer) {
  std::vector<std::vector<TokenId>> prompts = {std::exchange(request.prompt_ids, {})};
  start_generation(server, exchange, std::move(request), std::move(prompts), std::move(writer));
}

}  // namespace m3::server
