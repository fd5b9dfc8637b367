#include "tests/support/scripted_engine.h"

#include <algorithm>
#include <thread>

#include "src/base/error.h"

namespace m3::test {

ScriptedEngine::ScriptedEngine(Tokenizer tokenizer, Script script)
    : tokenizer_(std::move(tokenizer)), script_(std::move(script)) {
  info_.name = "scripted";
  info_.max_model_len = 4096;
  info_.vocab_size = tokenizer_.vocab_size();
  info_.cache_pages = 64;
  info_.max_num_seqs = 64;
  info_.backend = "script";
  info_.media.unavailable = "this model takes no pictures: nobody wrote it eyes";
  thread_ = std::thread([this] { loop(); });
}

ScriptedEngine::~ScriptedEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ScriptedEngine::die() {
  {
    const std::lock_guard lock(mutex_);
    dead_ = true;
  }
  wake_.notify_all();
}

RequestId ScriptedEngine::submit(Request request, EventSink sink) {
  std::this_thread::sleep_for(submit_time.load());
  ++submitted;
  const std::lock_guard lock(mutex_);
  if (dead_) throw Error(ErrorKind::internal, "the engine is dead");
  if (static_cast<std::int64_t>(count_) >= most_waiting) throw Error(ErrorKind::busy, "the queue is full");
  if (request.max_tokens && request.min_tokens > *request.max_tokens) fail_usage("min_tokens is more than max_tokens");
  const RequestId id = next_id_++;
  for (int sample = 0; sample < request.samples; ++sample) {
    Reply reply = script_(request, sample);
    std::vector<TokenId> ids = tokenizer_.encode(reply.text, {.parse_special = true});
    if (request.max_tokens && static_cast<std::int64_t>(ids.size()) >= *request.max_tokens) {
      ids.resize(static_cast<std::size_t>(*request.max_tokens));
      reply.finish = FinishReason::length;
    }
    arrived_.push_back({id, request, sink, sample, std::move(reply), std::move(ids), 0,
                        IncrementalDecoder(tokenizer_, true), std::chrono::steady_clock::now(), false});
    ++count_;
  }
  wake_.notify_all();
  return id;
}

void ScriptedEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancel_.push_back(id);
  wake_.notify_all();
}

Statistics ScriptedEngine::statistics() const {
  const std::lock_guard lock(mutex_);
  Statistics statistics;
  statistics.running = static_cast<std::int64_t>(count_);
  statistics.pages_total = info_.cache_pages;
  return statistics;
}

bool ScriptedEngine::healthy() const {
  const std::lock_guard lock(mutex_);
  return !dead_;
}

std::vector<TokenId> ScriptedEngine::encode(std::string_view text, bool parse_special) const {
  return tokenizer_.encode(text, {.parse_special = parse_special});
}

std::string ScriptedEngine::decode(std::span<const TokenId> ids, bool skip_special) const {
  return tokenizer_.decode(ids, skip_special);
}

bool ScriptedEngine::step(Running& running) {
  Event event;
  event.request = running.id;
  event.sample = running.sample;
  event.queue_seconds = 0;
  event.usage.prompt_tokens = static_cast<std::int64_t>(running.request.prompt_ids.size());
  const bool dead = !healthy();
  if (dead) {
    event.finish = FinishReason::error;
    event.error = "the engine died";
  } else if (running.cancelled) {
    event.finish = FinishReason::cancelled;
    ++cancelled;
  } else {
    if (running.next < running.ids.size()) {
      const TokenId id = running.ids[running.next++];
      event.ids = {id};
      event.text = running.decoder.push(id);
      if (running.request.logprobs >= 0) {
        event.logprobs = {{id, -0.5f}};
        event.top_logprobs = {
            std::vector<TokenLogprob>(static_cast<std::size_t>(running.request.logprobs), {id, -0.5f})};
      }
    }
    if (running.next >= running.ids.size()) {
      event.finish = running.reply.finish;
    }
  }
  event.usage.completion_tokens = static_cast<std::int64_t>(running.next);
  const bool goes_on = event.finish == FinishReason::none;
  if (!goes_on) {
    const std::lock_guard lock(mutex_);
    --count_;
  }
  running.sink(event);
  return goes_on;
}

void ScriptedEngine::loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return stopping_ || dead_ || !arrived_.empty() || !cancel_.empty(); };
      if (running_.empty()) {
        wake_.wait(lock, [&] { return stopping_ || !arrived_.empty() || !cancel_.empty(); });
      } else {
        const auto first = std::ranges::min_element(running_, {}, &Running::due)->due;
        wake_.wait_until(lock, first, ready);
      }
      running_.splice(running_.end(), arrived_);
      for (Running& running : running_) {
        running.cancelled |= stopping_ || std::ranges::find(cancel_, running.id) != cancel_.end();
      }
      cancel_.clear();
      if (stopping_ && running_.empty()) return;
    }
    const auto now = std::chrono::steady_clock::now();
    const bool dead = !healthy();
    running_.remove_if([&](Running& running) {
      if (!dead && !running.cancelled && running.due > now) return false;
      running.due = now + running.reply.token_time;
      return !step(running);
    });
  }
}

}  // namespace m3::test
