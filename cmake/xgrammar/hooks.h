// What this program adds to xgrammar's core (hooks.cpp).
#pragma once

#include <xgrammar/compiler.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

namespace xgrammar {

// The last warning of this thread since it was cleared: it says that a part of a grammar is ignored.
std::string& last_warning();

// Why this is no regular expression, or none that can be enforced; empty: it is one. Parses it and builds nothing.
std::string regex_problem(const std::string& pattern);
// The same of a grammar in EBNF with a rule `root`.
std::string grammar_problem(const std::string& text);

// From here on, compiling on this thread throws once the time has come; nothing: it may take as long as it likes.
void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline);

// While it lives, following grammars on this thread throws WorkSpent once it took `units` of work: states that the parser
// looked at, tokens that it tried. Counted, so that the same grammar at the same place always costs the same but for
// what was computed before; a unit takes about 50 ns. Not nested.
class WorkLimit {
 public:
  explicit WorkLimit(std::int64_t units);
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;
  std::int64_t spent() const;

 private:
  std::int64_t units_;
};
struct WorkSpent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Computes a grammar's masks, state by state, as long as `go_on` says so; the others are computed when they are needed,
// and so is what would take more than `units` of work.
void fill_mask_cache(const CompiledGrammar& grammar, const std::function<bool()>& go_on, std::int64_t units);

// The name of a rule that a text may come into and never leave; empty: none.
std::string endless_rule(const CompiledGrammar& grammar);

// States of the grammar's automata: what its masks cost is proportional to them.
std::size_t count_states(const CompiledGrammar& grammar);

}  // namespace xgrammar
