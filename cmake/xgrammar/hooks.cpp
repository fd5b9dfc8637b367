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

std::string endless_rule(const CompiledGrammar& compiled) {
  const auto& grammar = *compiled.ImplPtr()->grammar.ImplPtr();
  const int count = grammar.NumRules();
  std::vector<bool> ends(count), waits(count), reached(count);
  std::vector<std::vector<int>> users(count);
  std::vector<int> queue;
  // Walks a rule's automaton, through rules that end; says whether it ends.
  const auto walk = [&](int rule, bool first) {
    const auto& automaton = grammar.per_rule_fsms[rule];
    if (!automaton) return true;
    const auto& edges_of = automaton->GetFsm().GetFsm();
    std::unordered_set<int> seen = {automaton->GetFsm().GetStart()};
    std::vector<int> states(seen.begin(), seen.end());
    bool ended = false;
    while (!states.empty()) {
      check_deadline();
      const int state = states.back();
      states.pop_back();
      ended = ended || automaton->GetFsm().IsEndState(state);
      if (ended && !first) return true;
      for (const auto& edge : edges_of.GetEdges(state)) {
        int used = -1;
        bool needed = false;
        if (edge.IsRuleRef()) {
          used = edge.GetRefRuleId();
          needed = true;
        } else if (edge.IsRepeatRef()) {
          const auto info = grammar.complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
          used = info.RuleId();
          needed = info.Lower() > 0;
        }
        if (first && used >= 0) users[used].push_back(rule);
        if (needed && !first && !ends[used]) continue;
        if (seen.insert(edge.target).second) states.push_back(edge.target);
      }
    }
    return ended;
  };
  const auto visit = [&](int rule) {
    if (ends[rule] || !walk(rule, false)) return;
    ends[rule] = true;
    for (const int user : users[rule]) {
      if (!ends[user] && !waits[user]) queue.push_back(user), waits[user] = true;
    }
  };
  for (int rule = 0; rule < count; ++rule) walk(rule, true);
  for (int rule = count; rule-- > 0;) visit(rule);
  for (std::size_t i = 0; i < queue.size(); ++i) {
    waits[queue[i]] = false;
    visit(queue[i]);
  }
  // What the root comes to.
  std::vector<std::vector<int>> uses(count);
  for (int rule = 0; rule < count; ++rule) {
    for (const int user : users[rule]) uses[user].push_back(rule);
  }
  std::vector<int> next = {grammar.GetRootRuleId()};
  while (!next.empty()) {
    const int rule = next.back();
    next.pop_back();
    if (reached[rule]) continue;
    reached[rule] = true;
    if (!ends[rule]) return grammar.GetRule(rule).name;
    next.insert(next.end(), uses[rule].begin(), uses[rule].end());
  }
  return {};
}

std::size_t count_states(const CompiledGrammar& compiled) {
  return static_cast<std::size_t>(compiled.ImplPtr()->grammar->complete_fsm.NumStates());
}

}  // namespace xgrammar
