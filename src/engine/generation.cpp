#include "src/engine/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "src/base/error.h"
#include "src/engine/logprobs.h"
#include "src/engine/sampling.h"

namespace m3::engine {

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

bool contains(const std::vector<TokenId>& ids, TokenId id) { return std::ranges::find(ids, id) != ids.end(); }

void clear_bit(std::vector<std::uint32_t>& words, TokenId id) {
  words[static_cast<std::size_t>(id) / 32] &= ~(1u << (static_cast<unsigned>(id) % 32));
}

}  // namespace

Vocabulary make_vocabulary(const Tokenizer& tokenizer, const GenerationConfig& config, std::int64_t vocab_size) {
  Vocabulary vocabulary;
  for (const std::int32_t id : config.eos_token_ids) {
    if (id < 0 || id >= vocab_size)
      fail("generation_config.json: eos_token_id {} is outside the vocabulary of {}", id, vocab_size);
    vocabulary.end_ids.push_back(id);
  }
  if (vocabulary.end_ids.empty()) {
    const std::int32_t end = tokenizer.id_of("[e~[");
    if (end >= 0 && end < vocab_size) vocabulary.end_ids.push_back(end);
  }
  std::vector<std::uint32_t> allowed(static_cast<std::size_t>(vocab_size + 31) / 32, 0xffffffffu);
  bool all = true;
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (tokenizer.has_token(id)) continue;
    clear_bit(allowed, id);
    all = false;
  }
  if (!all) vocabulary.allowed = allowed;
  vocabulary.allowed_no_end = std::move(allowed);
  for (const TokenId id : vocabulary.end_ids) clear_bit(vocabulary.allowed_no_end, id);
  return vocabulary;
}

struct Generation::Sample {
  Sample(int sample, const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : index(sample), decoder(tokenizer, true), stop(stops) {}
  int index;
  std::vector<TokenId> ids;
  IncrementalDecoder decoder;
  StopStrings stop;
};

Generation::Generation(RequestId id, const Request& request, std::uint64_t seed, LoadedModel& model,
                       const Tokenizer& tokenizer, const Vocabulary& vocabulary, const GenerationConfig& defaults)
    : id_(id),
      request_(request),
      seed_(seed),
      model_(model),
      tokenizer_(tokenizer),
      vocabulary_(vocabulary),
      defaults_(defaults),
      sequence_(model.pages()) {
  for (const auto& [token, value] : request.sampling.logit_bias) bias_.push_back({token, value});
}

std::int64_t Generation::limit() const {
  const std::int64_t left = model_.max_model_len() - static_cast<std::int64_t>(request_.prompt_ids.size());
  return std::min(left, request_.max_tokens.value_or(left));
}

// Brings the prompt into the cache; the last token's logits stay. Later samples redo only that token.
bool Generation::prefill(const std::function<bool()>& cancelled, StepTimes& times) {
  const auto prompt = static_cast<std::int64_t>(request_.prompt_ids.size());
  sequence_.truncate(std::min(sequence_.length(), prompt - 1));
  while (sequence_.length() < prompt) {
    if (cancelled()) return false;
    const Stopwatch watch(times.prefill_seconds);
    const std::int64_t first = sequence_.length();
    const std::int64_t count = std::min(model_.max_batched_tokens(), prompt - first);
    if (!sequence_.extend(count)) fail_resource("the cache has no room for {} more tokens", count);
    batch_.clear();
    batch_.add({request_.prompt_ids.data() + first, static_cast<std::size_t>(count)}, first, sequence_.pages());
    const auto last = static_cast<std::int32_t>(count - 1);
    const bool whole = first + count == prompt;
    logits_ = model_.forward(batch_, whole ? std::span<const std::int32_t>(&last, 1) : std::span<const std::int32_t>());
    times.prompt_tokens += count;
  }
  return true;
}

TokenId Generation::draw(Sample& sample, Event& event) {
  const std::span<float> logits(reinterpret_cast<float*>(logits_.data), static_cast<std::size_t>(logits_.columns));
  if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); })) {
    fail(
        "the logits at position {} are not finite; the checkpoint's weights or scales are damaged (m3 inspect --deep "
        "looks for the cause)",
        sequence_.length() - 1);
  }
  if (request_.logprobs >= 0) raw_logits_.assign(logits.begin(), logits.end());

  ops::SamplingRow row = make_sampling_row(request_.sampling, defaults_, seed_, bias_);
  row.sample = static_cast<std::uint32_t>(sample.index);
  row.position = sequence_.length();
  row.prompt_ids = request_.prompt_ids;
  row.output_ids = sample.ids;
  const bool may_end = static_cast<std::int64_t>(sample.ids.size()) >= request_.min_tokens;
  row.allowed = may_end ? vocabulary_.allowed : vocabulary_.allowed_no_end;
  TokenId id = -1;
  model_.backend().sample(logits_, {&row, 1}, {&id, 1});
  if (id < 0) fail("no token may follow: every id is masked out by the parameters of the request");
  if (request_.logprobs >= 0) {
    event.logprobs.push_back(logprob_of(raw_logits_, id));
    event.top_logprobs.push_back(top_logprobs(raw_logits_, request_.logprobs));
  }
  return id;
}

void Generation::finish(Sample& sample, FinishReason reason, const std::string& why, Event& event) {
  event.text += sample.stop.push(sample.decoder.flush(), false).text;
  event.finish = reason;
  event.stop_reason = why;
}

void Generation::accept(Sample& sample, TokenId id, Event& event) {
  sample.ids.push_back(id);
  event.ids.push_back(id);
  event.usage.completion_tokens = static_cast<std::int64_t>(sample.ids.size());
  const bool armed = event.usage.completion_tokens > request_.min_tokens;
  const bool ends = !request_.ignore_eos && contains(vocabulary_.end_ids, id);
  const bool stops = armed && contains(request_.stop_ids, id);
  if (ends || stops) {
    if (request_.include_stop_in_output) event.text += sample.stop.push(sample.decoder.push(id), false).text;
    return finish(sample, FinishReason::stop, std::string(tokenizer_.token_text(id)), event);
  }
  const StopStrings::Result result = sample.stop.push(sample.decoder.push(id), armed);
  event.text += result.text;
  if (result.matched >= 0) {
    const std::string& stop = request_.stop[static_cast<std::size_t>(result.matched)];
    if (request_.include_stop_in_output) event.text += stop;
    event.finish = FinishReason::stop;
    event.stop_reason = stop;
    return;
  }
  if (event.usage.completion_tokens >= limit()) finish(sample, FinishReason::length, "", event);
}

// Pages are free before the request's last event is seen.
void Generation::deliver(const Event& event, const EventSink& sink) {
  if (event.finish != FinishReason::none && event.sample == request_.samples - 1) sequence_.truncate(0);
  sink(event);
}

void Generation::run_sample(int index, const EventSink& sink, const std::function<bool()>& cancelled,
                            StepTimes& times) {
  Sample sample(index, tokenizer_, request_.stop);
  Event event;
  const auto begin_event = [&] {
    event = Event{};
    event.request = id_;
    event.sample = index;
    event.usage.prompt_tokens = static_cast<std::int64_t>(request_.prompt_ids.size());
    event.usage.completion_tokens = static_cast<std::int64_t>(sample.ids.size());
  };
  try {
    begin_event();
    if (!prefill(cancelled, times)) {
      event.finish = FinishReason::cancelled;
      return deliver(event, sink);
    }
    while (true) {
      begin_event();
      TokenId id = -1;
      {
        const Stopwatch watch(times.decode_seconds);
        id = draw(sample, event);
      }
      ++times.generated_tokens;
      accept(sample, id, event);
      if (event.finish == FinishReason::none && cancelled()) finish(sample, FinishReason::cancelled, "", event);
      deliver(event, sink);
      if (event.finish != FinishReason::none) return;

      const Stopwatch watch(times.decode_seconds);
      const std::int64_t position = sequence_.length();
      if (!sequence_.extend(1)) fail_resource("the cache has no room for one more token");
      batch_.clear();
      batch_.add({&id, 1}, position, sequence_.pages());
      const std::int32_t row = 0;
      logits_ = model_.forward(batch_, {&row, 1});
    }
  } catch (const std::exception& error) {
    begin_event();
    event.finish = FinishReason::error;
    event.error = error.what();
    deliver(event, sink);
  }
}

void Generation::run(const EventSink& sink, const std::function<bool()>& cancelled, StepTimes& times) {
  for (int index = 0; index < request_.samples; ++index) run_sample(index, sink, cancelled, times);
}

}  // namespace m3::engine
