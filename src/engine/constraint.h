// Constraints: grammars compiled against a vocabulary (by xgrammar's core), and matchers that say which tokens may follow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "m3/request.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::engine {

// Follows one sequence. Not thread-safe; matchers of one constraint may be used by different threads.
class ConstraintMatcher {
 public:
  ConstraintMatcher(ConstraintMatcher&&) noexcept;
  ConstraintMatcher& operator=(ConstraintMatcher&&) noexcept;
  ~ConstraintMatcher();

  // Sets bit id%32 of word id/32 for every token that may come next, end tokens where the text may end here; clears the
  // others. `words` covers the vocabulary.
  void fill(std::span<std::uint32_t> words);
  // False, and nothing changes, where the token may not come next.
  bool accept(TokenId token);
  // Takes back the last `count` accepted tokens.
  void rollback(int count);
  // What is there satisfies the constraint: it may end.
  bool may_end() const;
  // An end token was accepted: nothing may follow.
  bool is_finished() const;

 private:
  friend class Constraints;
  struct Data;
  explicit ConstraintMatcher(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

// A constraint on its way through the compiler. Thread-safe.
class CompiledConstraint {
 public:
  enum class State : std::uint8_t { waiting, ready, failed };
  State state() const;
  // Waits until it is ready or failed.
  void wait() const;
  std::string error() const;  // why, in one line, once it failed
  double seconds() const;     // what compiling took
  std::size_t bytes() const;  // about what it holds in memory

 private:
  friend class Constraints;
  friend class ConstraintMatcher;
  struct Data;
  std::shared_ptr<Data> data_;
};
using ConstraintHandle = std::shared_ptr<CompiledConstraint>;

struct ConstraintLimits {
  std::size_t max_text = std::size_t{4} << 20;       // bytes of a schema, an expression, a grammar or all choices
  std::size_t max_states = 400'000;                  // of a grammar's automata
  double compile_seconds = 10;                       // of one grammar
  double fill_seconds = 0.5;                         // masks computed ahead for so long; the rest when they are needed
  std::int64_t mask_work = 4'000'000;                // of one mask or one token, in units of about 50 ns
  std::size_t cache_entries = 64;                    // compiled constraints kept
  std::size_t cache_bytes = std::size_t{256} << 20;  // and how much they may hold together
  std::size_t mask_bytes = std::size_t{128} << 20;   // whole masks kept, of all constraints
};

// Compiles on a thread of its own, in the order asked, and keeps what was used last. Thread-safe.
class Constraints {
 public:
  // `end_ids`: the tokens that may end a reply. Special and other added tokens are allowed only where a grammar names
  // them: their text as a part of a literal, or Special("…").
  Constraints(const Tokenizer& tokenizer, std::int64_t vocab_size, std::vector<TokenId> end_ids,
              const ConstraintLimits& limits = {});
  ~Constraints();

  // Checks and queues a constraint, or finds it in the cache; never waits. Errors: an unsupported keyword of a schema
  // with its path, something that is no schema, expression or grammar, too large a text. What shows only when it is
  // compiled (too many states, too long a time) makes state() failed. `ready` is called once, on the compiler's thread,
  // when the state has changed; at once if it is there already. What nobody holds any more when its turn comes is not
  // compiled, and its `ready` not called.
  ConstraintHandle compile(const Constraint& constraint, std::function<void()> ready = {});
  // Of a constraint that is ready.
  ConstraintMatcher matcher(const CompiledConstraint& constraint) const;

  std::size_t waiting() const;  // for their turn
  // The grammar that a constraint stands for, as compile() makes it. Errors as there.
  std::string grammar_text(const Constraint& constraint) const;
  std::int64_t vocab_size() const;
  const std::vector<TokenId>& end_ids() const;

 private:
  struct Data;
  // grammar_text(), but for what was asked for last time too.
  std::string remembered_text(const Constraint& constraint);
  std::unique_ptr<Data> data_;
};

}  // namespace m3::engine
