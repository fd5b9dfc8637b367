# xgrammar's C++ core (constrained decoding), from its published source package: pinned, fetched once for all build
# folders, checked, and built without its Python bindings. M3_XGRAMMAR_SOURCE names a local copy instead: the same
# .tar.gz, or a folder with its unpacked content.
set(m3_xgrammar_version 0.2.9)
set(m3_xgrammar_sha256 87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90)
set(M3_XGRAMMAR_SOURCE "" CACHE STRING "xgrammar-${m3_xgrammar_version}.tar.gz or its unpacked folder; empty: fetch it")

set(m3_third_party "${CMAKE_SOURCE_DIR}/build/third_party")
set(m3_xgrammar_archive "${m3_third_party}/xgrammar-${m3_xgrammar_version}.tar.gz")
set(m3_xgrammar "${m3_third_party}/xgrammar-${m3_xgrammar_version}")
set(m3_xgrammar_help
    "get xgrammar-${m3_xgrammar_version}.tar.gz elsewhere and configure with -DM3_XGRAMMAR_SOURCE=path/to/it")

file(LOCK "${m3_third_party}/.lock" TIMEOUT 600) # several build folders may be configured at once
if(M3_XGRAMMAR_SOURCE AND IS_DIRECTORY "${M3_XGRAMMAR_SOURCE}")
  set(m3_xgrammar "${M3_XGRAMMAR_SOURCE}")
else()
  if(M3_XGRAMMAR_SOURCE)
    if(NOT EXISTS "${M3_XGRAMMAR_SOURCE}")
      message(FATAL_ERROR "M3_XGRAMMAR_SOURCE: ${M3_XGRAMMAR_SOURCE} does not exist")
    endif()
    set(m3_xgrammar_archive "${M3_XGRAMMAR_SOURCE}")
  elseif(NOT EXISTS "${m3_xgrammar_archive}")
    message(STATUS "m3: fetching the sources of xgrammar ${m3_xgrammar_version} (2.8 MB)")
    execute_process(
      COMMAND "${CMAKE_SOURCE_DIR}/scripts/fetch_source_package.sh" xgrammar ${m3_xgrammar_version}
              ${m3_xgrammar_sha256} "${m3_third_party}"
      RESULT_VARIABLE m3_failed OUTPUT_VARIABLE m3_why ERROR_VARIABLE m3_why OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT m3_failed EQUAL 0)
      message(FATAL_ERROR "${m3_why}; it needs the network once, or ${m3_xgrammar_help}")
    endif()
  endif()
  file(SHA256 "${m3_xgrammar_archive}" m3_found_sha256)
  if(NOT m3_found_sha256 STREQUAL m3_xgrammar_sha256)
    message(FATAL_ERROR "${m3_xgrammar_archive} is not the xgrammar ${m3_xgrammar_version} that this version is built "
                        "with (its sha256 is ${m3_found_sha256}); remove it, or ${m3_xgrammar_help}")
  endif()
  if(NOT EXISTS "${m3_xgrammar}/unpacked")
    file(ARCHIVE_EXTRACT INPUT "${m3_xgrammar_archive}" DESTINATION "${m3_third_party}"
         PATTERNS "*/cpp/*" "*/include/*" "*/3rdparty/picojson/*" "*/3rdparty/dlpack/include/*" "*/LICENSE" "*/NOTICE")
    file(TOUCH "${m3_xgrammar}/unpacked")
  endif()
endif()
file(LOCK "${m3_third_party}/.lock" RELEASE)

# Changes of the sources, in copies: m3_xgrammar_change(FILE WRONG RIGHT …) replaces texts and stops where one is missing.
function(m3_xgrammar_change file)
  file(READ "${m3_xgrammar}/cpp/${file}" text)
  while(ARGN)
    list(POP_FRONT ARGN wrong right)
    string(REPLACE "${${wrong}}" "${${right}}" changed "${text}")
    if(changed STREQUAL text)
      message(FATAL_ERROR
              "${m3_xgrammar}/cpp/${file} is not that of xgrammar ${m3_xgrammar_version}; ${m3_xgrammar_help}")
    endif()
    set(text "${changed}")
  endwhile()
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/xgrammar/${file}" CONTENT "@text@" @ONLY)
endfunction()

# A correction. `Optional` of an automaton lets what stands behind its beginning be left out: (b[0-9]+)? also took "7",
# since the way around it led into an end state that has ways on.
set(m3_optional_wrong [[
  FSM fsm = fsm_.Copy();
  if (!ends_.empty()) {
    fsm.AddEpsilonEdge(start_, ends_.front());
  }
  return FSMWithStartEnd(fsm, start_, ends_);]])
set(m3_optional_right [[
  FSM fsm = fsm_.Copy();
  auto ends = ends_;
  if (!ends.empty()) {
    const int around = fsm.AddState();
    fsm.AddEpsilonEdge(start_, around);
    ends.push_back(around);
  }
  return FSMWithStartEnd(fsm, start_, ends);]])
# An addition: what makes states looks at the time, so that compiling ends (set_deadline in cmake/xgrammar/hooks.h).
set(m3_clock_include_wrong [[
namespace xgrammar {
]])
set(m3_clock_include_right [[
#include "cmake/xgrammar/deadline.h"

namespace xgrammar {
]])
set(m3_clock_wrong [[
  int AddState() {
]])
set(m3_clock_right [[
  int AddState() {
    check_deadline();
]])
m3_xgrammar_change(fsm.cc m3_optional_wrong m3_optional_right m3_clock_wrong m3_clock_right m3_clock_include_wrong
                   m3_clock_include_right)

# An addition: masks that were computed once are looked up (cmake/xgrammar/mask_memory.h). What the matcher gets for it
# stands in cmake/xgrammar/matcher_key.inc.
set(m3_include_wrong [[#include "tokenizer_info_impl.h"

namespace xgrammar {
]])
set(m3_include_right [[#include "tokenizer_info_impl.h"
#include "cmake/xgrammar/deadline.h"
#include "cmake/xgrammar/mask_memory.h"

namespace xgrammar {
]])
set(m3_members_wrong [[
  CompiledGrammar compiled_grammar_;
  TokenizerInfo tokenizer_info_;
  std::vector<int> stop_token_ids_;
]])
set(m3_members_right [[
#include "cmake/xgrammar/matcher_key.inc"
  CompiledGrammar compiled_grammar_;
  TokenizerInfo tokenizer_info_;
  std::vector<int> stop_token_ids_;
]])
set(m3_fill_wrong [[
  FillBitmaskForStates(bitmask_data_ptr, index, /*skip_expired=*/false, debug_print);
  return !IsTokenBitmaskAllTrue(bitmask_data_ptr);
}
]])
set(m3_fill_right [[
  MaskMemory::Key mask_key = MakeMaskKey();
  if (RecallMask(mask_key, bitmask_data_ptr)) return true;
  FillBitmaskForStates(bitmask_data_ptr, index, /*skip_expired=*/false, debug_print);
  RememberMask(mask_key, bitmask_data_ptr);
  return !IsTokenBitmaskAllTrue(bitmask_data_ptr);
}
]])
set(m3_accept_wrong [[
  const int32_t size_before_token = rule_id_to_completable_states_.size();
]])
set(m3_accept_right [[
  const int32_t size_before_token = rule_id_to_completable_states_.size();
  ForgetContents(size_before_token - 1);
]])
set(m3_rollback_wrong [[
  budget_body_match_cache_.clear();
}

std::vector<std::pair<std::string, std::string>> GrammarMatcher::Impl::GetCaptures]])
set(m3_rollback_right [[
  budget_body_match_cache_.clear();
  ForgetContents(rule_id_to_completable_states_.size() - 1);
}

std::vector<std::pair<std::string, std::string>> GrammarMatcher::Impl::GetCaptures]])
set(m3_reset_wrong [[
    EarleyParser::Reset();
  }
]])
set(m3_reset_right [[
    EarleyParser::Reset();
    ForgetContents(0);
  }
]])
set(m3_hook_wrong [[
BatchGrammarMatcher::BatchGrammarMatcher(]])
set(m3_hook_right [[
void use_mask_memory(GrammarMatcher& matcher, std::shared_ptr<MaskMemory> memory, std::int32_t grammar) {
  matcher.ImplPtr()->UseMaskMemory(std::move(memory), grammar);
}

BatchGrammarMatcher::BatchGrammarMatcher(]])
set(m3_state_wrong [[
    const AdaptiveTokenMask* adaptive_token_mask_pointer =
        &compiled_grammar_->GetAdaptiveTokenMask(state);
]])
set(m3_state_right [[
    count_work(8 + tokenizer_info_.GetVocabSize() / 2048);
    const AdaptiveTokenMask* adaptive_token_mask_pointer =
        &compiled_grammar_->GetAdaptiveTokenMask(state);
]])
set(m3_uncertain_wrong [[
      const auto cur_token_idx = *token_it++;
]])
set(m3_uncertain_right [[
      const auto cur_token_idx = *token_it++;
      count_work(1);
]])
m3_xgrammar_change(
  grammar_matcher.cc m3_state_wrong m3_state_right m3_uncertain_wrong m3_uncertain_right m3_include_wrong m3_include_right m3_members_wrong m3_members_right m3_fill_wrong m3_fill_right
  m3_accept_wrong m3_accept_right m3_rollback_wrong m3_rollback_right m3_reset_wrong m3_reset_right m3_hook_wrong
  m3_hook_right)

# An extension: counted repetitions get their masks from the counts alone where what is repeated is any expression that
# tells by itself where it ends (JSON's characters, escapes among them), inside of it too, and where what follows stands
# behind the end of the rule or is a token (cmake/xgrammar/repetition.inc). Without it a bounded string would try the
# whole vocabulary for each token. Rules with "m3-counted" in their names ask for it.
set(m3_set_wrong [[
#include <optional>
#include <unordered_set>
]])
set(m3_set_right [[
#include <optional>
#include <set>
#include <unordered_set>
]])
set(m3_plain_wrong [[
  const auto body = UnwrapSingleElement(grammar, grammar->GetGrammarExpr(rule.body_expr_id));
  const auto& rule_fsm = grammar->per_rule_fsms[rule_id];
  if (body.type != Grammar::Impl::GrammarExprType::kCharacterClass || !rule_fsm.has_value()) {
    return false;
  }
]])
set(m3_plain_right [[
  const auto& rule_fsm = grammar->per_rule_fsms[rule_id];
  if (!rule_fsm.has_value()) {
    return false;
  }
]])
set(m3_follow_type_wrong [[
/*!
 * \brief The rules whose start state gets the counted-repetition fast path.
]])
set(m3_follow_type_right [[
#include "cmake/xgrammar/repetition.inc"

/*!
 * \brief The rules whose start state gets the counted-repetition fast path.
]])
set(m3_follow_wrong [[
        if (rule_fsm->GetFsm().IsEndState(edge.target)) {
          disqualified[body_rule_id] = true;
          continue;
        }
        ByteSet bytes;
        for (const auto& follow_edge : rule_fsm->GetFsm().GetFsm().GetEdges(edge.target)) {
          if (!follow_edge.IsCharRange() || follow_edge.max > 0xFF) {
            disqualified[body_rule_id] = true;
            break;
          }
          for (int byte = follow_edge.min; byte <= follow_edge.max; ++byte) {
            bytes.set(byte);
          }
        }
        if ((bytes & *first_bytes[body_rule_id]).any()) {
          disqualified[body_rule_id] = true;
        }
        follow_bytes[body_rule_id].under_all &= bytes;
]])
set(m3_follow_right [[
        ByteSet bytes;
        bool direct = true;
        if (!CollectFollowBytes(grammar, references, rule_id, edge.target, &bytes, &direct) ||
            (bytes & *first_bytes[body_rule_id]).any()) {
          disqualified[body_rule_id] = true;
          continue;
        }
        follow_bytes[body_rule_id].under_all &= direct ? bytes : ByteSet();
]])
set(m3_references_wrong [[
  std::vector<bool> disqualified(num_rules, false);
]])
set(m3_references_right [[
  const RuleReferences references = FindReferences(grammar);
  std::vector<bool> disqualified(num_rules, false);
]])
set(m3_classify_wrong [[
    const RepetitionFollowBytes& follow_bytes,
    const std::string& token
) {
  int32_t num_repetitions = 0;
  int state = fsm.GetStart();
]])
set(m3_classify_right [[
    const RepetitionFollowBytes& follow_bytes,
    const std::string& token,
    int state
) {
  int32_t num_repetitions = 0;
]])
set(m3_states_wrong [[
    if (state.element_id != fsm.GetStart()) {
      continue;
    }
]])
set(m3_states_right "\n")
set(m3_classified_wrong [[
          fsm, *counted_repetition_bodies[state.rule_id], sorted_vocab[index].second
]])
set(m3_classified_right [[
          fsm, *counted_repetition_bodies[state.rule_id], sorted_vocab[index].second, state.element_id
]])
set(m3_populate_wrong [[
  const auto counted_repetition_bodies = FindCountedRepetitionBodies(grammar);
]])
set(m3_populate_right [[
  const auto& counted_repetition_bodies = CountedRepetitionBodies(grammar);
]])
set(m3_populate_before_wrong [[
/*! \brief How the body state of a counted repetition decides a token. */
]])
set(m3_populate_before_right [[
// As FindCountedRepetitionBodies; masks are made one by one, mostly of the same grammar.
const std::vector<std::optional<RepetitionFollowBytes>>& CountedRepetitionBodies(const Grammar& grammar) {
  thread_local Grammar known{NullObj{}};
  thread_local std::vector<std::optional<RepetitionFollowBytes>> bodies;
  if (known.IsNull() || known.ImplPtr() != grammar.ImplPtr()) {
    bodies = FindCountedRepetitionBodies(grammar);
    known = grammar;
  }
  return bodies;
}

/*! \brief How the body state of a counted repetition decides a token. */
]])
m3_xgrammar_change(
  compiled_grammar.cc m3_set_wrong m3_set_right m3_plain_wrong m3_plain_right m3_follow_type_wrong m3_follow_type_right m3_follow_wrong
  m3_follow_right m3_references_wrong m3_references_right m3_classify_wrong m3_classify_right m3_states_wrong
  m3_states_right m3_classified_wrong m3_classified_right m3_populate_wrong m3_populate_right
  m3_populate_before_wrong m3_populate_before_right)

set(m3_expand_wrong [[
  // Check if the referred rule is only one single element. If so, we can directly use the element
  // for further optimization.
  int32_t grammar_expr_id = builder_->AddRuleRef(rule_id);
  const auto& ref_rule = base_grammar_->GetRule(rule_id);
]])
set(m3_expand_right [[
  const auto& ref_rule = base_grammar_->GetRule(rule_id);
  if (ref_rule.name.find("m3-counted") != std::string::npos && !HasCharBudgetRules() && !HasLazyRules()) {
    counted_repetition_ = true;
    return builder_->AddRepeat(
        rule_id, static_cast<int32_t>(lower), upper == -1 ? INT32_MAX : static_cast<int32_t>(upper)
    );
  }
  int32_t grammar_expr_id = builder_->AddRuleRef(rule_id);
]])
set(m3_own_rule_wrong [[
      const int32_t follow_id = VisitExpr(grammar_expr[i + 1]);
      const int32_t counted_rule_id = builder_->AddRuleWithHint(
          cur_rule_name_ + "_counted",
          builder_->AddChoices({builder_->AddSequence({element_id, follow_id})})
      );
]])
set(m3_own_rule_right [[
      std::vector<int32_t> counted_sequence = {element_id};
      if (i + 1 < grammar_expr.size()) counted_sequence.push_back(VisitExpr(grammar_expr[i + 1]));
      const int32_t counted_rule_id = builder_->AddRuleWithHint(
          cur_rule_name_ + "_counted",
          builder_->AddChoices({builder_->AddSequence(counted_sequence)})
      );
]])
# An addition: an expression's states from which there is no end, since characters are forbidden or a class is empty, are
# left out; a reply that came there could not go on.
set(m3_append_wrong [[
  AppendFSM(std::move(build_result).Unwrap(), start_state, end_states);
}

void GrammarFSMBuilderImpl::BuildSubstring(]])
set(m3_append_right [[
  const auto whole = std::move(build_result).Unwrap();
  std::vector<std::vector<int>> before(whole.NumStates());
  for (int state = 0; state < whole.NumStates(); ++state) {
    for (const auto& edge : whole.GetFsm().GetEdges(state)) before[edge.target].push_back(state);
  }
  std::vector<bool> ends(whole.NumStates());
  std::vector<int> waiting;
  for (int state = 0; state < whole.NumStates(); ++state) {
    if (whole.IsEndState(state)) waiting.push_back(state);
  }
  while (!waiting.empty()) {
    const int state = waiting.back();
    waiting.pop_back();
    if (ends[state]) continue;
    ends[state] = true;
    waiting.insert(waiting.end(), before[state].begin(), before[state].end());
  }
  if (!ends[whole.GetStart()]) {
    XGRAMMAR_LOG(FATAL) << "nothing matches the expression "
                        << (json_string ? "without characters that JSON escapes: " : ": ") << regex;
  }
  FSM alive(whole.NumStates());
  for (int state = 0; state < whole.NumStates(); ++state) {
    if (!ends[state]) continue;
    for (const auto& edge : whole.GetFsm().GetEdges(state)) {
      if (ends[edge.target]) alive.AddEdge(state, edge.target, edge.min, edge.max);
    }
  }
  alive.SetEdgeAuxData(std::vector<int32_t>(whole.GetFsm().GetEdgeAuxData()));
  AppendFSM(FSMWithStartEnd(alive, whole.GetStart(), whole.GetEnds()), start_state, end_states);
}

void GrammarFSMBuilderImpl::BuildSubstring(]])
m3_xgrammar_change(grammar_functor.cc m3_expand_wrong m3_expand_right m3_own_rule_wrong m3_own_rule_right m3_append_wrong
                   m3_append_right)

# An addition: what a mask costs is counted, in units of about 50 ns, so that it ends (WorkLimit in cmake/xgrammar/hooks.h).
set(m3_parser_include_wrong [[
#include "earley_parser.h"
]])
set(m3_parser_include_right [[
#include "earley_parser.h"
#include "cmake/xgrammar/deadline.h"
]])
set(m3_predict_wrong [[
  // Check if the rule has a corresponding FSM.
  if (state.rule_id != -1) {
]])
set(m3_predict_right [[
  count_work(2);
  if (state.rule_id != -1) {
]])
set(m3_complete_wrong [[
  for (const auto& [ref_id, parent_state] : parent_states_map) {
]])
set(m3_complete_right [[
  count_work((parent_states_map.end() - parent_states_map.begin()) / 16);
  for (const auto& [ref_id, parent_state] : parent_states_map) {
    if (ref_id == state.rule_id) count_work(1);
]])
set(m3_ancestors_wrong [[in_vec = [&](const ParserState& state_) {
]])
set(m3_ancestors_right [[in_vec = [&](const ParserState& state_) {
        const auto known = rule_id_to_completable_states_.Back();
        count_work(1 + (known.end() - known.begin()) / 16);
]])
set(m3_edges_wrong [[
  const auto& current_fsm = grammar_->per_rule_fsms[state.rule_id].value();
]])
set(m3_edges_right [[
  const auto& current_fsm = grammar_->per_rule_fsms[state.rule_id].value();
  count_work(1 + current_fsm.GetFsm().GetFsm().GetEdges(state.element_id).size() / 16);
]])
set(m3_parser_wrong [[
  PushStateAndExpand(initial_state.has_value()]])
set(m3_parser_right [[
  count_work(grammar_->NumRules() / 8);
  PushStateAndExpand(initial_state.has_value()]])
m3_xgrammar_change(
  earley_parser.cc m3_parser_include_wrong m3_parser_include_right m3_predict_wrong m3_predict_right m3_complete_wrong
  m3_complete_right m3_ancestors_wrong m3_ancestors_right m3_edges_wrong m3_edges_right m3_parser_wrong m3_parser_right)
set(m3_try_wrong [[
      const auto& token = sorted_decoded_vocab[i].second;
]])
set(m3_try_right [[
      const auto& token = sorted_decoded_vocab[i].second;
      count_work(1);
]])
set(m3_mask_wrong [[
  auto generated_mask = GrammarMatcherForTokenMaskCache(
]])
set(m3_mask_right [[
  count_work(64 + tokenizer_info.GetVocabSize() / 256);
  auto generated_mask = GrammarMatcherForTokenMaskCache(
]])
m3_xgrammar_change(grammar_compiler.cc m3_parser_include_wrong m3_parser_include_right m3_try_wrong m3_try_right
                   m3_mask_wrong m3_mask_right)

# The compiler and matcher of grammars; its readers of other notations are replaced by cmake/xgrammar/hooks.cpp.
set(m3_xgrammar_parts
    config fsm_builder grammar grammar_builder grammar_parser grammar_printer regex_converter suffix_automata support/recursion_guard testing
    tokenizer_info)
list(TRANSFORM m3_xgrammar_parts PREPEND "${m3_xgrammar}/cpp/")
list(TRANSFORM m3_xgrammar_parts APPEND ".cc")
add_library(
  m3_xgrammar STATIC
  ${m3_xgrammar_parts} "${CMAKE_BINARY_DIR}/xgrammar/compiled_grammar.cc"
  "${CMAKE_BINARY_DIR}/xgrammar/earley_parser.cc" "${CMAKE_BINARY_DIR}/xgrammar/fsm.cc"
  "${CMAKE_BINARY_DIR}/xgrammar/grammar_compiler.cc" "${CMAKE_BINARY_DIR}/xgrammar/grammar_functor.cc" "${CMAKE_BINARY_DIR}/xgrammar/grammar_matcher.cc"
  "${CMAKE_SOURCE_DIR}/cmake/xgrammar/hooks.cpp" "${CMAKE_SOURCE_DIR}/cmake/xgrammar/mask_memory.cpp")
# Always optimised and never instrumented, in the sanitizer presets too (-O1 there, to build faster): it is not ours to
# check, and slow otherwise.
target_compile_options(m3_xgrammar PRIVATE -w $<IF:$<CONFIG:Release>,-O2,-O1> -g0)
target_compile_definitions(m3_xgrammar PUBLIC XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
                                              XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
set_target_properties(m3_xgrammar PROPERTIES CXX_STANDARD 17 POSITION_INDEPENDENT_CODE ON EXPORT_COMPILE_COMMANDS OFF)
target_include_directories(m3_xgrammar PRIVATE "${m3_xgrammar}/cpp" "${CMAKE_SOURCE_DIR}")
target_include_directories(m3_xgrammar SYSTEM PUBLIC "${m3_xgrammar}/include" "${m3_xgrammar}/3rdparty/picojson"
                                                     "${m3_xgrammar}/3rdparty/dlpack/include")
