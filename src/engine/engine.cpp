// m3::Engine: a queue in front of one engine thread, which runs one request at a time, lowest priority number first.
#include "m3/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/engine/generation.h"
#include "src/engine/loaded_model.h"
#include "src/engine/sampling.h"

namespace m3 {

namespace {

using engine::LoadedModel;

struct Queued {
  RequestId id = 0;
  Request request;
  EventSink sink;
};

class LocalEngine final : public Engine {
 public:
  LocalEngine(std::unique_ptr<LoadedModel> model, Tokenizer tokenizer, GenerationConfig defaults)
      : model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        defaults_(std::move(defaults)),
        vocabulary_(engine::make_vocabulary(tokenizer_, defaults_, model_->config().vocab_size)) {
    fill_info();
    thread_ = std::thread([this] { loop(); });
  }

  ~LocalEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  const ModelInfo& info() const override { return info_; }

  RequestId submit(Request request, EventSink sink) override {
    check(request);
    const std::lock_guard lock(mutex_);
    const RequestId id = next_id_++;
    queue_.push_back({id, std::move(request), std::move(sink)});
    wake_.notify_one();
    return id;
  }

  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    const bool waiting = std::ranges::any_of(queue_, [&](const Queued& queued) { return queued.id == id; });
    if (waiting || running_ == id) cancelled_.insert(id);
  }

  Statistics statistics() const override {
    const std::lock_guard lock(mutex_);
    Statistics statistics = statistics_;
    statistics.waiting = static_cast<std::int64_t>(queue_.size());
    statistics.running = running_ != 0 ? 1 : 0;
    return statistics;
  }

  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override {
    return tokenizer_.encode(text, {.parse_special = parse_special});
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    return tokenizer_.decode(ids, skip_special);
  }

 private:
  void fill_info() {
    const auto& pages = model_->pages();
    info_.name = model_->checkpoint().directory().filename().string();
    info_.max_model_len = model_->max_model_len();
    info_.vocab_size = model_->config().vocab_size;
    info_.weight_bytes = model_->checkpoint().text_weight_bytes();
    info_.active_weight_bytes = model_->model().active_weight_bytes();
    info_.cache_token_bytes = pages.layout().token_bytes();
    info_.cache_pages = pages.pages();
    info_.backend = model_->backend().description();
    info_.end_ids = vocabulary_.end_ids;
    statistics_.pages_total = pages.pages();
  }

  // Completes `prompt_ids` from the text and refuses what cannot run.
  void check(Request& request) const {
    if (request.prompt_ids.empty()) request.prompt_ids = encode(request.prompt, request.parse_special);
    if (request.prompt_ids.empty()) fail_usage("the prompt is empty: give at least one token");
    for (std::size_t i = 0; i < request.prompt_ids.size(); ++i) {
      const TokenId id = request.prompt_ids[i];
      if (id < 0 || id >= info_.vocab_size)
        fail_usage("prompt id {} at index {} is outside the vocabulary of {}", id, i, info_.vocab_size);
    }
    const auto prompt = static_cast<std::int64_t>(request.prompt_ids.size());
    if (prompt >= info_.max_model_len) {
      fail_usage(
          "the prompt has {} tokens but the context holds {}, of which at least one is for the reply; shorten it or "
          "raise "
          "--max-model-len",
          prompt, info_.max_model_len);
    }
    engine::check_sampling(request.sampling, info_.vocab_size);
    if (request.samples < 1 || request.samples > 1024)
      fail_usage("samples {}: give a number from 1 to 1024", request.samples);
    if (request.max_tokens && *request.max_tokens < 1)
      fail_usage("max_tokens {}: give a number from 1", *request.max_tokens);
    if (request.min_tokens < 0) fail_usage("min_tokens {}: give a number from 0", request.min_tokens);
    if (request.max_tokens && request.min_tokens > *request.max_tokens) {
      fail_usage("min_tokens {} is more than max_tokens {}", request.min_tokens, *request.max_tokens);
    }
    if (request.logprobs > 1024 || request.logprobs < -1)
      fail_usage("logprobs {}: give a number from 0 to 1024", request.logprobs);
    if (request.prompt_logprobs != -1) fail_usage("prompt_logprobs is not implemented");
    if (request.constraint.kind != Constraint::Kind::none) fail_usage("constraints are not implemented");
    if (request.reasoning.budget) fail_usage("a reasoning budget is not implemented");
    for (const std::string& stop : request.stop) {
      if (stop.empty()) fail_usage("a stop string is empty");
    }
    for (const TokenId id : request.stop_ids) {
      if (id < 0 || id >= info_.vocab_size)
        fail_usage("stop id {} is outside the vocabulary of {}", id, info_.vocab_size);
    }
  }

  bool take_next(Queued& next) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return false;
    const auto first = std::ranges::min_element(
        queue_, {}, [](const Queued& queued) { return std::pair(queued.request.priority, queued.id); });
    next = std::move(*first);
    queue_.erase(first);
    running_ = next.id;
    return true;
  }

  void loop() {
    Queued next;
    while (take_next(next)) {
      const auto cancelled = [&] {
        const std::lock_guard lock(mutex_);
        statistics_.pages_used = model_->pages().pages() - model_->pages().free_pages();
        return stopping_ || cancelled_.contains(next.id);
      };
      engine::StepTimes times;
      {
        const std::uint64_t seed = next.request.sampling.seed.value_or(fresh_seed());
        engine::Generation generation(next.id, next.request, seed, *model_, tokenizer_, vocabulary_, defaults_);
        // Counts are there before the last event is, so that who has seen it reads them whole.
        const EventSink sink = [&](const Event& event) {
          const bool last = event.finish != FinishReason::none && event.sample == next.request.samples - 1;
          if (event.finish != FinishReason::none) publish(times, last);
          next.sink(event);
        };
        generation.run(sink, cancelled, times);
      }
      const std::lock_guard lock(mutex_);
      cancelled_.erase(next.id);
    }
  }

  // Adds a request's counts to the totals and starts them anew; nothing runs after its last sample.
  void publish(engine::StepTimes& times, bool last) {
    const std::lock_guard lock(mutex_);
    statistics_.pages_used = model_->pages().pages() - model_->pages().free_pages();
    if (last) running_ = 0;
    statistics_.prompt_tokens += times.prompt_tokens;
    statistics_.generated_tokens += times.generated_tokens;
    statistics_.prefill_seconds += times.prefill_seconds;
    statistics_.decode_seconds += times.decode_seconds;
    times = {};
  }

  static std::uint64_t fresh_seed() {
    std::random_device device;
    return (static_cast<std::uint64_t>(device()) << 32) | device();
  }

  std::unique_ptr<LoadedModel> model_;
  Tokenizer tokenizer_;
  GenerationConfig defaults_;
  engine::Vocabulary vocabulary_;
  ModelInfo info_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Queued> queue_;
  std::set<RequestId> cancelled_;
  RequestId running_ = 0;
  RequestId next_id_ = 1;
  Statistics statistics_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> Engine::load(const EngineOptions& options, const LoadProgress& progress) {
  const auto report = [&](std::string_view what, std::int64_t done) {
    if (progress) progress(what, done, 3);
  };
  report("validating the checkpoint", 0);
  Checkpoint checkpoint = Checkpoint::open(options.checkpoint, {options.quantization, options.quantization_exclude});
  report("reading the tokenizer", 1);
  Tokenizer tokenizer = Tokenizer::load(options.checkpoint);
  GenerationConfig defaults = read_generation_config(options.checkpoint);
  for (const std::string& key : defaults.without_effect) {
    write_error(fmt::format("m3: note: generation_config.json: {} is not implemented and has no effect\n", key));
  }
  if (tokenizer.vocab_size() > checkpoint.config().vocab_size) {
    fail("tokenizer.json has ids up to {} but the model's vocabulary has {}; the two files do not belong together",
         tokenizer.vocab_size() - 1, checkpoint.config().vocab_size);
  }
  report("planning memory", 2);
  engine::LoadedModelOptions model_options;
  model_options.device = options.device;
  model_options.threads = options.threads;
  model_options.max_model_len = options.max_model_len;
  model_options.cache_bytes = options.cache_bytes;
  model_options.max_batched_tokens = options.max_num_batched_tokens;
  model_options.kv_cache_dtype = options.kv_cache_dtype;
  model_options.index_cache_dtype = options.index_cache_dtype;
  auto model = std::make_unique<LoadedModel>(std::move(checkpoint), model_options);
  report("ready", 3);
  return std::make_unique<LocalEngine>(std::move(model), std::move(tokenizer), std::move(defaults));
}

namespace {

// Carries events from the engine's thread to the caller's; shared, so that it outlives whichever ends first.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::list<Event> events;
};

}  // namespace

void generate(Engine& engine, Request request, const EventSink& sink, const std::function<bool()>& stop) {
  const auto mailbox = std::make_shared<Mailbox>();
  int open = request.samples;
  const RequestId id = engine.submit(std::move(request), [mailbox](const Event& event) {
    const std::lock_guard lock(mailbox->mutex);
    mailbox->events.push_back(event);
    mailbox->arrived.notify_one();
  });
  bool cancelled = false;
  try {
    while (open > 0) {
      std::list<Event> batch;
      {
        std::unique_lock lock(mailbox->mutex);
        mailbox->arrived.wait_for(lock, std::chrono::milliseconds(50), [&] { return !mailbox->events.empty(); });
        batch.swap(mailbox->events);
      }
      if (!cancelled && stop && stop()) {
        engine.cancel(id);
        cancelled = true;
      }
      for (const Event& event : batch) {
        sink(event);
        if (event.finish != FinishReason::none) --open;
      }
    }
  } catch (...) {
    engine.cancel(id);  // nobody reads what would still come
    throw;
  }
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "";
}

std::string_view version() { return M3_VERSION; }

}  // namespace m3
