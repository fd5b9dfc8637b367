// What xgrammar's core asks of the program around it. Its own readers of JSON schemas, Lark grammars and structural
// tags are left out of the build (they are half of its sources): src/grammar writes EBNF.
#include "cmake/xgrammar/hooks.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cmake/xgrammar/deadline.h"
#include "compiled_grammar_impl.h"
#include "fsm_builder.h"
#include "grammar_parser.h"
#include "json_schema_converter.h"
#include "lark_converter.h"
#include "structural_tag.h"
#include "support/logging.h"

namespace xgrammar {

void LogFatalImpl(const std::string&, int, const std::string& message) { throw XGrammarError(message); }

// A warning says that something is ignored, and nothing may be: who compiles looks here afterwards.
std::string& last_warning() {
  static thread_local std::string warning;
  return warning;
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level >= XGRAMMAR_LOG_LEVEL_WARNING) last_warning() = message;
}

namespace {
[[noreturn]] void left_out() { throw XGrammarError("this part of xgrammar is not built"); }
}  // namespace

Grammar JSONSchemaToGrammar(const std::string&, bool, std::optional<int>,
                            std::optional<std::pair<std::string, std::string>>, bool, std::optional<int>, bool,
                            JSONFormat, std::vector<std::string>) {
  left_out();
}

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&, const std::vector<NamedGrammar>&) {
  left_out();
}

Result<Grammar, StructuralTagError> StructuralTagToGrammar(const std::string&, const std::optional<TokenizerInfo>&) {
  left_out();
}

std::string regex_problem(const std::string& pattern) {
  try {
    last_warning().clear();
    auto result = RegexFSMBuilder::MatchesEmpty(pattern);
    if (result.IsErr()) return std::move(result).UnwrapErr().what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::exchange(last_warning(), {});
}

std::string grammar_problem(const std::string& text) {
  try {
    last_warning().clear();
    ParseEBNF(text);
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::exchange(last_warning(), {});
}

namespace {
thread_local std::optional<std::chrono::steady_clock::time_point> compile_deadline;
}  // namespace

void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline) { compile_deadline = deadline; }

void check_deadline() {
  thread_local unsigned calls = 0;
  if (!compile_deadline || ++calls % 256 != 0) return;
  if (std::chrono::steady_clock::now() > *compile_deadline) throw XGrammarError("it takes too long");
}

namespace {
constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();
}  // namespace

__thread std::int64_t work_left = no_limit;

void work_is_spent() { throw WorkSpent("it takes too much work"); }

WorkLimit::WorkLimit(std::int64_t units) : units_(units) { work_left = units; }
WorkLimit::~WorkLimit() { work_left = no_limit; }
std::int64_t WorkLimit::spent() const { return units_ - work_left; }

void fill_mask_cache(const CompiledGrammar& compiled, const std::function<bool()>& go_on, std::int64_t units) {
  auto& inside = *const_cast<CompiledGrammar&>(compiled).ImplPtr();
  for (int rule = 0; rule < static_cast<int>(inside.grammar->NumRules()); ++rule) {
    const auto& automaton = inside.grammar->per_rule_fsms[rule];
    if (!automaton) continue;
    std::unordered_set<int> states;
    automaton->GetFsm().GetReachableStates(&states);
    for (const int state : states) {
      if (!automaton->GetFsm().IsScanableState(state)) continue;
      if (!go_on()) return;
      try {
        const WorkLimit limit(units);
        inside.GetAdaptiveTokenMask(
            ParserState(rule, inside.grammar->GetRule(rule).body_expr_id, state, ParserState::kNoPrevInputPos));
      } catch (const WorkSpent&) {
        continue;  // who comes there finds out
      }
    }
  }
}

std::size_t count_states(const CompiledGrammar& compiled) {
  return static_cast<std::size_t>(compiled.ImplPtr()->grammar->complete_fsm.NumStates());
}

}  // namespace xgrammar
