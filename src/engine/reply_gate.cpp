#include "src/engine/reply_gate.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "src/base/error.h"

namespace m3::engine {
namespace {

void set(std::span<std::uint32_t> words, TokenId id) {
  if (id < 0 || static_cast<std::size_t>(id) / 32 >= words.size()) return;
  words[static_cast<std::size_t>(id) / 32] |= 1u << (static_cast<unsigned>(id) % 32);
}

void clear(std::span<std::uint32_t> words, TokenId id) {
  if (id < 0 || static_cast<std::size_t>(id) / 32 >= words.size()) return;
  words[static_cast<std::size_t>(id) / 32] &= ~(1u << (static_cast<unsigned>(id) % 32));
}

}  // namespace

ThinkTags::ThinkTags(const Tokenizer& tokenizer, std::int64_t vocab_size, TokenId begin_id, TokenId end_id)
    : tokenizer_(tokenizer), begin_id_(begin_id), end_id_(end_id) {
  if (end_id < 0 || !tokenizer.has_token(end_id)) return;
  end_text_ = tokenizer.token_bytes(end_id);
  completing_.resize(end_text_.size());
  const std::int64_t count = std::min(vocab_size, tokenizer.vocab_size());
  for (std::int64_t id = 0; id < count; ++id) {
    const auto token = static_cast<TokenId>(id);
    if (token == end_id || !tokenizer.has_token(id)) continue;
    const std::string_view bytes = tokenizer.token_bytes(token);
    const bool whole = bytes.find(end_text_) != std::string_view::npos;
    for (std::size_t there = 0; there < end_text_.size(); ++there) {
      if (whole || bytes.starts_with(std::string_view(end_text_).substr(there))) completing_[there].push_back(token);
    }
  }
}

std::span<const TokenId> ThinkTags::spelling(std::string_view tail) const {
  if (completing_.empty()) return {};
  return completing_[tail.size()];
}

// The longest beginning of the end tag that the text ends with.
void ThinkTags::extend(std::string& tail, TokenId token) const {
  if (end_text_.empty() || !tokenizer_.has_token(token)) return;
  tail += tokenizer_.token_bytes(token);
  std::size_t length = std::min(tail.size(), end_text_.size() - 1);
  while (!std::string_view(end_text_).starts_with(std::string_view(tail).substr(tail.size() - length))) --length;
  tail.erase(0, tail.size() - length);
}

ReplyGate::ReplyGate(const Reasoning& reasoning, std::optional<ConstraintMatcher> matcher, const ThinkTags* tags,
                     std::span<const TokenId> end_ids)
    : reasoning_(reasoning),
      matcher_(std::move(matcher)),
      tags_(tags),
      end_ids_(end_ids.begin(), end_ids.end()),
      state_(reasoning.start == Reasoning::Start::inside   ? State::reasoning
             : reasoning.start == Reasoning::Start::either ? State::first
                                                           : State::answer) {}

bool ReplyGate::forced() const {
  return state_ == State::reasoning && reasoning_.budget && reasoning_.end_id >= 0 && thought_ >= *reasoning_.budget;
}

bool ReplyGate::limits() const {
  if (state_ == State::reasoning) return matcher_ || reasoning_.budget;
  return matcher_.has_value();
}

void ReplyGate::fill(std::span<std::uint32_t> words) {
  if (forced()) {
    std::ranges::fill(words, 0u);
    return set(words, reasoning_.end_id);
  }
  if (state_ == State::reasoning || !matcher_) {
    std::ranges::fill(words, 0xffffffffu);
    if (state_ != State::reasoning || !limits()) return;
    // The end tag comes as its own token, so that what follows it is known to be the answer.
    if (tags_ != nullptr) {
      for (const TokenId id : tags_->spelling(tail_)) clear(words, id);
    }
    if (!matcher_) return;
    for (const TokenId id : end_ids_) clear(words, id);
    return;
  }
  matcher_->fill(words);
  if (state_ != State::first) return;
  set(words, reasoning_.begin_id);
  set(words, reasoning_.end_id);  // a model that does not think may say so
}

void ReplyGate::accept(TokenId token) {
  steps_.push_back({state_, false, thought_, reasoning_tokens_, tail_});
  const bool begins = token == reasoning_.begin_id && token >= 0;
  const bool ends = token == reasoning_.end_id && token >= 0;
  const bool thinks = reasoning_.start != Reasoning::Start::outside;
  if (state_ == State::reasoning) {
    ++reasoning_tokens_;
    if (ends) {
      state_ = State::answer;
      tail_.clear();
    } else {
      ++thought_;
      if (limits() && tags_ != nullptr) tags_->extend(tail_, token);
    }
    return;
  }
  if (state_ == State::first && (begins || ends)) {
    ++reasoning_tokens_;
    state_ = begins ? State::reasoning : State::answer;
    return;
  }
  state_ = State::answer;
  if (matcher_) {
    if (!matcher_->accept(token)) fail_internal("token {} does not satisfy the constraint", token);
    steps_.back().matched = true;
  } else if (begins && thinks) {
    ++reasoning_tokens_;
    state_ = State::reasoning;  // it thinks again
  }
}

void ReplyGate::rollback(int count) {
  for (int i = 0; i < count; ++i) {
    if (steps_.empty()) fail_internal("more tokens are taken back than there were");
    Step& step = steps_.back();
    if (step.matched) matcher_->rollback(1);
    state_ = step.before;
    thought_ = step.thought;
    reasoning_tokens_ = step.reasoning_tokens;
    tail_ = std::move(step.tail);
    steps_.pop_back();
  }
}

bool ReplyGate::may_end() const {
  if (!matcher_) return true;
  return state_ == State::answer && (matcher_->is_finished() || matcher_->may_end());
}

bool ReplyGate::finished() const { return matcher_ && matcher_->is_finished(); }

}  // namespace m3::engine
