#include "src/engine/sequence.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/engine/sampling.h"

namespace m3::engine {

namespace {

void set_bit(std::vector<std::uint32_t>& words, TokenId id) {
  words[static_cast<std::size_t>(id) / 32] |= 1u << (static_cast<unsigned>(id) % 32);
}

bool contains(const std::vector<TokenId>& ids, TokenId id) { return std::ranges::find(ids, id) != ids.end(); }

}  // namespace

bool is_refusal(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr && (ours->kind() == ErrorKind::input || ours->kind() == ErrorKind::usage);
}

ActiveRequest::ActiveRequest(RequestId request_id, Request asked, std::vector<Picture> shown, EventSink to,
                             std::uint64_t drawn_seed, const SequenceContext& context)
    : id(request_id),
      request(std::move(asked)),
      pictures(std::move(shown)),
      sink(std::move(to)),
      seed(drawn_seed),
      stops(std::make_shared<const StopList>(std::exchange(request.stop, {}))),
      open(request.samples) {
  for (const auto& [token, value] : request.sampling.logit_bias) bias.push_back({token, value});
  if (!request.sampling.allowed_ids.empty()) {
    const std::vector<std::uint32_t>& any = context.vocabulary.allowed_no_end;
    allowed.resize(any.size());
    for (const TokenId token : request.sampling.allowed_ids) {
      if (context.tokenizer.has_token(token)) set_bit(allowed, token);
    }
    for (std::size_t word = 0; word < any.size(); ++word) allowed_no_end.push_back(allowed[word] & any[word]);
  }
  for (int sample = 0; sample < request.samples; ++sample)
    samples.push_back(std::make_unique<Sequence>(*this, sample, context));
  if (request.prompt_logprobs < 0) return;
  prompt_logprobs.resize(request.prompt_ids.size());
  prompt_top_logprobs.resize(request.prompt_ids.size());
  samples.front()->rows_end = static_cast<std::int64_t>(request.prompt_ids.size()) - 1;
}

void ActiveRequest::open_gates(const Constraints& constraints) {
  if (!constraint && request.reasoning.start == Reasoning::Start::outside) return;
  for (const auto& sample : samples) {
    std::optional<ConstraintMatcher> matcher;
    if (constraint) matcher = constraints.matcher(*constraint);
    sample->open_gate(
        std::make_unique<ReplyGate>(request.reasoning, std::move(matcher), tags.get(), constraints.end_ids()));
  }
}

Sequence* ActiveRequest::begin_next() {
  if (begun == samples.size()) return nullptr;
  Sequence& next = *samples[begun++];
  next.take_prompt();
  next.followers = static_cast<int>(samples.size() - begun);
  return &next;
}

std::int64_t Sequence::ready() const {
  const std::int64_t missing = first_missing(request_.pictures, pages.length());
  if (missing - pages.length() >= pending()) return pending();
  const std::int64_t before = missing - pages.length();
  return before < ops::page_tokens ? 0 : before;
}

Sequence::Sequence(ActiveRequest& request, int sample, const SequenceContext& context)
    : Schedulable(context.pages),
      request_(request),
      context_(context),
      decoder_(context.tokenizer, request.request.skip_special),
      stop_(request.stops) {
  rank = {request.request.priority, request.id, sample};
  cache_salt = request.request.cache_salt;
  block_salts = engine::block_salts(request.pictures);
  const std::int64_t left = context.max_model_len - prompt_tokens();
  limit_ = std::min(left, request.request.max_tokens.value_or(left));
}

void Sequence::take_prompt() { tokens = request_.request.prompt_ids; }

const std::vector<std::uint32_t>& Sequence::vocabulary_mask() const {
  const bool may_end = completion_tokens() >= request_.request.min_tokens;
  if (!request_.allowed.empty()) return may_end ? request_.allowed : request_.allowed_no_end;
  return may_end ? context_.vocabulary.allowed : context_.vocabulary.allowed_no_end;
}

void Sequence::fill_mask() {
  mask_.resize(context_.vocabulary.allowed_no_end.size());
  mask_error_.clear();
  mask_refused_ = true;
  try {
    gate_->fill(mask_);
  } catch (const std::exception& error) {  // ends this sequence, and no other
    mask_error_ = error.what();
    mask_refused_ = is_refusal(error);
    std::ranges::fill(mask_, 0u);
  }
  const std::vector<std::uint32_t>& vocabulary = vocabulary_mask();
  bool any = false;
  for (std::size_t word = 0; word < mask_.size(); ++word) {
    if (!vocabulary.empty()) mask_[word] &= vocabulary[word];
    any = any || mask_[word] != 0;
  }
  complete_ = !any && mask_error_.empty() && gate_->may_end();
}

const std::vector<ops::SamplingRow::Bias>& Sequence::bias() {
  const auto& banned = request_.request.sampling.banned;
  if (banned.empty()) return request_.bias;
  const auto output = std::span(tokens).subspan(request_.request.prompt_ids.size());
  bias_ = request_.bias;
  for (const std::vector<TokenId>& run : banned) {
    const auto before = std::span(run).first(run.size() - 1);
    if (before.size() > output.size() || !std::ranges::equal(output.last(before.size()), before)) continue;
    bias_.push_back({run.back(), -std::numeric_limits<float>::infinity()});
  }
  return bias_;
}

ops::SamplingRow Sequence::sampling_row() {
  const Request& request = request_.request;
  ops::SamplingRow row = make_sampling_row(request.sampling, context_.defaults, request_.seed, bias());
  row.sample = static_cast<std::uint32_t>(rank.sample);
  row.position = static_cast<std::int64_t>(tokens.size());
  row.prompt_ids = request.prompt_ids;
  row.output_ids = std::span(tokens).subspan(request.prompt_ids.size());
  row.allowed = needs_mask() ? mask_ : vocabulary_mask();
  return row;
}

Event Sequence::new_event() const {
  Event event;
  event.request = request_.id;
  event.sample = rank.sample;
  event.usage.prompt_tokens = prompt_tokens();
  event.usage.completion_tokens = std::max<std::int64_t>(0, completion_tokens());
  if (gate_) event.usage.reasoning_tokens = gate_->reasoning_tokens();
  event.usage.cached_tokens = std::max<std::int64_t>(0, request_.cached_tokens);
  event.queue_seconds = request_.queue_seconds;
  return event;
}

Event Sequence::accept(DrawnToken drawn) {
  tokens.push_back(drawn.id);
  if (gate_) gate_->accept(drawn.id);
  Event event = new_event();
  event.ids.push_back(drawn.id);
  if (request_.request.logprobs >= 0) {
    event.logprobs.push_back({drawn.id, drawn.logprob});
    event.top_logprobs.push_back(std::move(drawn.top));
  }
  event.prompt_logprobs = std::exchange(request_.prompt_logprobs, {});
  event.prompt_top_logprobs = std::exchange(request_.prompt_top_logprobs, {});
  take(drawn.id, event);
  return event;
}

Event Sequence::end(FinishReason reason, const std::string& error, bool refused) {
  Event event = new_event();
  event.error = error;
  event.refused = refused;
  if (reason == FinishReason::error) {
    event.finish = reason;
    finished_ = true;
  } else {
    finish(reason, "", event);
  }
  return event;
}

// The token's text, and whether it ends the sample.
void Sequence::take(TokenId id, Event& event) {
  const Request& request = request_.request;
  const bool armed = completion_tokens() > request.min_tokens;
  const bool ends = !request.ignore_eos && contains(context_.vocabulary.end_ids, id);
  const bool stops = armed && contains(request.stop_ids, id);
  if (ends || stops) {
    if (request.include_stop_in_output) event.text += stop_.push(decoder_.push(id), false).text;
    return finish(FinishReason::stop, std::string(context_.tokenizer.token_text(id)), event);
  }
  const StopStrings::Result result = stop_.push(decoder_.push(id), armed);
  event.text += result.text;
  if (result.matched >= 0) {
    const std::string& stop = request_.stops->text(static_cast<std::size_t>(result.matched));
    if (request.include_stop_in_output) event.text += stop;
    event.finish = FinishReason::stop;
    event.stop_reason = stop;
    finished_ = true;
    return;
  }
  if (gate_ && gate_->finished())
    return finish(FinishReason::stop, "", event);  // its end token does not end (ignore_eos)
  if (completion_tokens() >= limit_) finish(FinishReason::length, "", event);
}

void Sequence::finish(FinishReason reason, const std::string& why, Event& event) {
  // Bytes of a character that the end cut stay in the decoder: half a character is no text.
  event.text += stop_.flush();
  event.finish = reason;
  event.stop_reason = why;
  finished_ = true;
}

}  // namespace m3::engine
