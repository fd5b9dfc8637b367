// What one sample may write next: its reasoning with its budget, then its constraint (m3::Request's Reasoning and
// Constraint). Asked for a mask before each token, told each token after.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "m3/request.h"
#include "src/engine/constraint.h"

namespace m3::engine {

// The ids that matter to reasoning, for one vocabulary and pair of think tags.
class ThinkTags {
 public:
  ThinkTags(const Tokenizer& tokenizer, std::int64_t vocab_size, TokenId begin_id, TokenId end_id);

  TokenId begin_id() const { return begin_id_; }
  TokenId end_id() const { return end_id_; }
  // Tokens that would finish spelling the end tag in letters behind `tail`, the newest bytes of the reasoning.
  std::span<const TokenId> spelling(std::string_view tail) const;
  // `tail` with a token's bytes added, as short as spelling() needs it.
  void extend(std::string& tail, TokenId token) const;

 private:
  const Tokenizer tokenizer_;
  TokenId begin_id_;
  TokenId end_id_;
  std::string end_text_;
  std::vector<std::vector<TokenId>> completing_;  // by how many bytes of the end tag are there already
};

class ReplyGate {
 public:
  // `matcher`: of the constraint; none: any answer. `end_ids` end a reply. `tags` outlives this; it may be null where
  // `reasoning` starts outside or names no ids.
  ReplyGate(const Reasoning& reasoning, std::optional<ConstraintMatcher> matcher, const ThinkTags* tags,
            std::span<const TokenId> end_ids);

  // Whether the next token is limited at all.
  bool limits() const;
  // The tokens that may come next: bits as in ConstraintMatcher. Nothing is set once finished().
  void fill(std::span<std::uint32_t> words);
  // Errors (internal): a token that fill() did not allow.
  void accept(TokenId token);
  // As if the last `count` tokens had not been accepted.
  void rollback(int count);

  // The answer satisfies the constraint as it is, or there is none; false inside reasoning under a constraint.
  bool may_end() const;
  // The constraint's end was reached by an end token: nothing may follow.
  bool finished() const;
  bool in_reasoning() const { return state_ == State::reasoning; }
  std::int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  enum class State : std::uint8_t { first, reasoning, answer };
  struct Step {  // what accept() changed
    State before;
    bool matched = false;
    std::int64_t thought = 0;
    std::int64_t reasoning_tokens = 0;
    std::string tail;
  };
  bool forced() const;

  Reasoning reasoning_;
  std::optional<ConstraintMatcher> matcher_;
  const ThinkTags* tags_;
  std::vector<TokenId> end_ids_;
  State state_;
  std::int64_t thought_ = 0;  // tokens of reasoning, tags apart
  std::int64_t reasoning_tokens_ = 0;
  std::string tail_;
  std::vector<Step> steps_;
};

}  // namespace m3::engine
