// Constraints against stored cases: what they accept, refuse, and how schemas that cannot be enforced are refused; and
// random replies under their masks against an independent validator.
#include "src/engine/constraint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "m3/error.h"
#include "src/base/mapped_file.h"
#include "src/engine/reply_gate.h"
#include "src/grammar/json_rules.h"
#include "tests/support/random_walk.h"
#include "tests/support/schema_check.h"

namespace m3::engine {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t data_limit = 4u << 20;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(M3_MODELS "/m3-tiny-chat");
  return loaded;
}

TokenId end_id() { return tokenizer().id_of("[e~["); }

Constraints& constraints() {
  static Constraints shared(tokenizer(), tokenizer().vocab_size(), {end_id()});
  return shared;
}

Constraint schema_constraint(const std::string& schema) { return {Constraint::Kind::json_schema, schema, {}}; }

ConstraintMatcher matcher_of(const Constraint& constraint) {
  const ConstraintHandle compiled = constraints().compile(constraint);
  compiled->wait();
  if (compiled->state() != CompiledConstraint::State::ready) throw Error(ErrorKind::input, compiled->error());
  return constraints().matcher(*compiled);
}

bool allows(std::span<const std::uint32_t> words, TokenId id) {
  return (words[static_cast<std::size_t>(id) / 32] >> (static_cast<unsigned>(id) % 32) & 1) != 0;
}

// Token by token, each by its mask and by accept(), which must agree; then the end token.
bool accepts(const Constraint& constraint, const std::string& text) {
  ConstraintMatcher matcher = matcher_of(constraint);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
  std::vector<TokenId> ids = tokenizer().encode(text);
  ids.push_back(end_id());
  for (const TokenId id : ids) {
    matcher.fill(words);
    const bool allowed = allows(words, id);
    EXPECT_EQ(matcher.accept(id), allowed) << tokenizer().token_text(id) << " in " << text;
    if (!allowed) return false;
  }
  EXPECT_TRUE(matcher.is_finished());
  return true;
}

const Json& schema_cases() {
  static const Json data = Json::parse(read_text_file(M3_TEST_DATA "/constraints/json_schema.json", data_limit));
  return data;
}

std::vector<std::string> case_names(bool errors) {
  std::vector<std::string> names;
  for (const Json& one : schema_cases()) {
    if (one.contains("error") == errors) names.push_back(one["name"]);
  }
  return names;
}

const Json& schema_case(const std::string& name) {
  for (const Json& one : schema_cases()) {
    if (one["name"] == name) return one;
  }
  throw std::runtime_error(name);
}

class JsonSchema : public testing::TestWithParam<std::string> {};

TEST_P(JsonSchema, AcceptsAndRefuses) {
  const Json& one = schema_case(GetParam());
  const Constraint constraint = schema_constraint(one["schema"].dump());
  for (const Json& text : one["accept"]) EXPECT_TRUE(accepts(constraint, text)) << text;
  for (const Json& text : one["refuse"]) EXPECT_FALSE(accepts(constraint, text)) << text;
}

TEST_P(JsonSchema, RandomRepliesAreValid) {
  const Json& one = schema_case(GetParam());
  const auto schema = nlohmann::json::parse(one["schema"].dump());
  const Constraint constraint = schema_constraint(one["schema"].dump());
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    ReplyGate gate({}, matcher_of(constraint), nullptr, std::vector{end_id()});
    const auto ids = test::random_walk(gate, tokenizer(), tokenizer().vocab_size(), end_id(), random);
    EXPECT_TRUE(gate.may_end());
    const std::string text = tokenizer().decode_bytes(ids);
    const auto value = nlohmann::json::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << text.substr(0, 300);
    EXPECT_EQ(test::schema_problem(value, schema, schema), "") << text.substr(0, 300);
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, JsonSchema, testing::ValuesIn(case_names(false)),
                         [](const auto& one) { return one.param; });

class RefusedSchema : public testing::TestWithParam<std::string> {};

TEST_P(RefusedSchema, NamesThePath) {
  const Json& one = schema_case(GetParam());
  const std::string wanted = one["error"];
  try {
    grammar::json_schema_grammar(one["schema"].dump(), "s");
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, RefusedSchema, testing::ValuesIn(case_names(true)),
                         [](const auto& one) { return one.param; });

TEST(Constraints, LenientSchemasLeaveOutWhatCannotBeEnforced) {
  for (const char* name : {"not", "unique", "unknown_format", "pattern_and_length", "one_of_overlap", "odd_multiple"}) {
    EXPECT_NO_THROW(grammar::json_schema_grammar(schema_case(name)["schema"].dump(), "s", grammar::Strictness::lenient))
        << name;
  }
}

TEST(Constraints, Choice) {
  const Constraint choice{Constraint::Kind::choice, {}, {"yes", "yes, but", "no\n\"quoted\" \\ ]<]minimax[>["}};
  for (const std::string& text : choice.choices) EXPECT_TRUE(accepts(choice, text)) << text;
  for (const char* text : {"", "ye", "maybe", "yes, "}) EXPECT_FALSE(accepts(choice, text)) << text;
}

TEST(Constraints, Regex) {
  const Constraint regex{Constraint::Kind::regex, R"((\d{3}-)?[a-c]+é*\.)", {}};
  for (const char* text : {"123-abc.", "aéé.", "cab."}) EXPECT_TRUE(accepts(regex, text)) << text;
  for (const char* text : {"12-abc.", "abc", "d.", ".", "abc.."}) EXPECT_FALSE(accepts(regex, text)) << text;
}

// A correction of ours to the library (cmake/M3Xgrammar.cmake).
TEST(Constraints, WhatIsOptionalIsLeftOutAsAWhole) {
  const Constraint regex{Constraint::Kind::regex, R"(a(\.[0-9]+)?(b(c|d)+)?z)", {}};
  for (const char* text : {"az", "a.5z", "a.55bcdz", "abcz"}) EXPECT_TRUE(accepts(regex, text)) << text;
  for (const char* text : {"a5z", "a.z", "acz", "abz", "a.5cz"}) EXPECT_FALSE(accepts(regex, text)) << text;
}

TEST(Constraints, Grammar) {
  const Constraint grammar{Constraint::Kind::grammar,
                           "# sums\nroot ::= term (\" + \" term)* \"\\n\"?\nterm ::= [0-9]+ | \"(\" root \")\"\n",
                           {}};
  for (const char* text : {"1", "1 + 22", "(1 + 2) + 3\n"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"", "1 +", "1+2", "(1"}) EXPECT_FALSE(accepts(grammar, text)) << text;
}

// A marker in a literal is the marker's token, and text is never a marker.
TEST(Constraints, SpecialTokensStandForTheirText) {
  const Constraint grammar{Constraint::Kind::grammar, "root ::= \"a]<]minimax[>[<tool_call>b\" [^x]{0,20}", {}};
  ConstraintMatcher matcher = matcher_of(grammar);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
  const TokenId space = tokenizer().id_of("]<]minimax[>["), block = tokenizer().id_of("<tool_call>");
  ASSERT_GE(space, 0);
  ASSERT_GE(block, 0);
  EXPECT_TRUE(matcher.accept(tokenizer().id_of("a")));
  matcher.fill(words);
  EXPECT_EQ(test::allowed_ids(words), std::vector{space});
  EXPECT_TRUE(matcher.accept(space));
  matcher.fill(words);
  EXPECT_EQ(test::allowed_ids(words), std::vector{block});
  EXPECT_TRUE(matcher.accept(block));
  EXPECT_TRUE(matcher.accept(tokenizer().id_of("b")));
  matcher.fill(words);
  for (std::int64_t id = 0; id < tokenizer().vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (!tokenizer().is_added(token)) continue;
    EXPECT_EQ(allows(words, token), token == end_id()) << tokenizer().token_text(token);
  }
}

TEST(Constraints, RollbackGivesTheSameMasks) {
  const Constraint constraint = schema_constraint(schema_case("map_beside_properties")["schema"].dump());
  std::mt19937 random(11);
  const std::size_t size = static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32;
  for (int round = 0; round < 5; ++round) {
    ConstraintMatcher matcher = matcher_of(constraint);
    std::vector<std::vector<std::uint32_t>> masks;
    for (int step = 0; step < 60; ++step) {
      masks.emplace_back(size);
      matcher.fill(masks.back());
      const auto allowed = test::allowed_ids(masks.back());
      ASSERT_FALSE(allowed.empty());
      ASSERT_TRUE(matcher.accept(allowed[random() % allowed.size()]));
      if (matcher.is_finished()) {
        matcher.rollback(1);
        masks.pop_back();
        continue;
      }
      if (random() % 3 != 0) continue;
      const auto back = static_cast<std::size_t>(random() % std::min<std::size_t>(masks.size(), 8));
      matcher.rollback(static_cast<int>(back));
      masks.resize(masks.size() - back);
      std::vector<std::uint32_t> again(size);
      if (back == 0) continue;
      matcher.rollback(1);
      matcher.fill(again);
      ASSERT_EQ(again, masks.back());
      masks.pop_back();
    }
  }
}

// Bounded strings, whose masks come from counts, and what stands around them.
const std::vector<Constraint>& counted() {
  static const std::vector<Constraint> all = {
      schema_constraint(R"({"type": "string", "minLength": 2, "maxLength": 5})"),
      schema_constraint(R"({"type": "string", "minLength": 3})"),
      schema_constraint(R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 30},
        "b": {"type": ["string", "null"], "minLength": 1, "maxLength": 2},
        "c": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 2}}, "required": ["c"]})"),
      {Constraint::Kind::grammar,
       "root ::= \"<\" m3-counted-word{2,9} | m3-counted-word{0,3} \"end\" m3-counted-word{1,}\n"
       "m3-counted-word ::= [a-d] | \"é\" | \"-\" [0-9]",
       {}},
      {Constraint::Kind::grammar, "root ::= m3-counted-x{1,3} m3-counted-x{1,3} \"x\"?\nm3-counted-x ::= [xyz]", {}},
      {Constraint::Kind::regex, "([a-z]{1,200} ){2,300}", {}},
  };
  return all;
}

// A mask says of every token what trying it says.
TEST(Constraints, MasksOfCountedRepetitionsAreExact) {
  std::mt19937 random(5);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
  for (const Constraint& constraint : counted()) {
    for (int round = 0; round < 4; ++round) {
      ConstraintMatcher matcher = matcher_of(constraint);
      for (int step = 0; step < 12 && !matcher.is_finished(); ++step) {
        matcher.fill(words);
        for (std::int64_t id = 0; id < tokenizer().vocab_size(); ++id) {
          const auto token = static_cast<TokenId>(id);
          if (!tokenizer().has_token(id) || token == end_id()) continue;
          const bool accepted = matcher.accept(token);
          if (accepted) matcher.rollback(1);
          ASSERT_EQ(allows(words, token), accepted)
              << constraint.text << " token '" << tokenizer().token_text(token) << "' at step " << step;
        }
        const auto allowed = test::allowed_ids(words);
        ASSERT_FALSE(allowed.empty()) << constraint.text;
        ASSERT_TRUE(matcher.accept(allowed[random() % allowed.size()]));
      }
    }
  }
}

// Masks that are looked up are those that would be computed, also behind a rollback and in other matchers.
TEST(Constraints, RememberedMasksAreTheComputedOnes) {
  ConstraintLimits limits;
  limits.mask_bytes = 0;
  Constraints forgetful(tokenizer(), tokenizer().vocab_size(), {end_id()}, limits);
  limits.mask_bytes = 20'000;  // a few masks: they are thrown out all the time
  Constraints small(tokenizer(), tokenizer().vocab_size(), {end_id()}, limits);
  std::vector<Constraint> all = counted();
  for (const std::string& name : case_names(false)) {
    if (all.size() < 30) all.push_back(schema_constraint(schema_case(name)["schema"].dump()));
  }
  const std::size_t size = static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32;
  std::mt19937 random(3);
  for (const Constraint& constraint : all) {
    const auto matcher_in = [&](Constraints& compiler) {
      const ConstraintHandle compiled = compiler.compile(constraint);
      compiled->wait();
      return compiler.matcher(*compiled);
    };
    for (int round = 0; round < 3; ++round) {
      ConstraintMatcher plain = matcher_in(forgetful), squeezed = matcher_in(small),
                        remembering = matcher_of(constraint);
      for (int step = 0; step < 50 && !plain.is_finished(); ++step) {
        std::vector<std::uint32_t> wanted(size), other(size);
        plain.fill(wanted);
        remembering.fill(other);
        ASSERT_EQ(wanted, other) << constraint.text;
        squeezed.fill(other);
        ASSERT_EQ(wanted, other) << constraint.text;
        const auto allowed = test::allowed_ids(wanted);
        ASSERT_FALSE(allowed.empty()) << constraint.text;
        const TokenId next = allowed[random() % allowed.size()];
        for (ConstraintMatcher* matcher : {&plain, &squeezed, &remembering}) ASSERT_TRUE(matcher->accept(next));
        if (step % 7 != 6) continue;
        for (ConstraintMatcher* matcher : {&plain, &squeezed, &remembering}) matcher->rollback(3);
      }
    }
  }
}

TEST(Constraints, CompilingEndsInTime) {
  ConstraintLimits limits;
  limits.compile_seconds = 0;
  Constraints hurried(tokenizer(), tokenizer().vocab_size(), {end_id()}, limits);
  const ConstraintHandle compiled = hurried.compile({Constraint::Kind::regex, "(a|b){100}(c|d){100}", {}});
  compiled->wait();
  ASSERT_EQ(compiled->state(), CompiledConstraint::State::failed);
  EXPECT_NE(compiled->error().find("it takes longer than"), std::string::npos) << compiled->error();
}

TEST(Constraints, AreKeptAndForgotten) {
  ConstraintLimits limits;
  limits.cache_entries = 2;
  Constraints small(tokenizer(), tokenizer().vocab_size(), {end_id()}, limits);
  const auto compile = [&](const std::string& schema) {
    ConstraintHandle handle = small.compile(schema_constraint(schema));
    handle->wait();
    return handle;
  };
  const ConstraintHandle first = compile(R"({"type": "integer"})");
  EXPECT_EQ(compile(R"({ "type" : "integer" })"), first);  // the same grammar
  compile(R"({"type": "string"})");
  compile(R"({"type": "boolean"})");
  compile(R"({"type": "null"})");
  EXPECT_NE(compile(R"({"type": "integer"})"), first);
  EXPECT_EQ(first->state(), CompiledConstraint::State::ready);  // who has it keeps it
}

TEST(Constraints, TellWhenTheyAreReady) {
  std::promise<void> told;
  const ConstraintHandle handle =
      constraints().compile(schema_constraint(R"({"const": "tell"})"), [&] { told.set_value(); });
  told.get_future().wait();
  EXPECT_EQ(handle->state(), CompiledConstraint::State::ready);
  bool at_once = false;
  constraints().compile(schema_constraint(R"({"const": "tell"})"), [&] { at_once = true; });
  EXPECT_TRUE(at_once);
}

// Requests that were refused or whose clients went leave nothing to compile.
TEST(Constraints, WhatNobodyWaitsForIsNotCompiled) {
  Constraints own(tokenizer(), tokenizer().vocab_size(), {end_id()});
  const auto choice = [](const std::string& text) { return Constraint{Constraint::Kind::choice, {}, {text}}; };
  std::promise<void> go_on;
  // The compiler's thread is to wait for go_on. What is ready before it can be told of is told by this thread, which must
  // not wait: then another constraint is tried.
  const auto held = go_on.get_future().share();
  const auto this_thread = std::this_thread::get_id();
  for (int tries = 0, waits = 0; waits == 0; ++tries) {
    ASSERT_LT(tries, 1000);
    const auto told = std::make_shared<std::promise<bool>>();
    const ConstraintHandle first = own.compile(choice(fmt::format("first {}", tries)), [told, held, this_thread] {
      const bool here = std::this_thread::get_id() == this_thread;
      told->set_value(!here);
      if (!here) held.wait();
    });
    waits = told->get_future().get() ? 1 : 0;
  }
  for (int i = 0; i < 100; ++i) own.compile(choice(fmt::format("abandoned {}", i)));
  EXPECT_EQ(own.waiting(), 1U);
  const ConstraintHandle last = own.compile(choice("last"));
  EXPECT_EQ(own.waiting(), 1U);
  go_on.set_value();
  last->wait();
  EXPECT_EQ(last->state(), CompiledConstraint::State::ready);
  const ConstraintHandle again = own.compile(choice("abandoned 99"));
  again->wait();
  EXPECT_EQ(again->state(), CompiledConstraint::State::ready);
}

// The line that a constraint is refused with; empty: it is compiled.
std::string refusal(const Constraint& constraint) {
  try {
    matcher_of(constraint);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string left_recursive(int rules) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < rules; ++i) {
    text += fmt::format("r{} ::= r{} \"a\" | r{} \"b\" | \"a\" r{} | \"c\"\n", i, (i + 1) % rules, (i + 7) % rules,
                        (i + 1) % rules);
  }
  return text;
}

TEST(Constraints, AFormThatIsTooAmbiguousIsRefused) {
  for (int round = 0; round < 2; ++round) {
    EXPECT_NE(refusal({Constraint::Kind::grammar, left_recursive(2000), {}}).find("too ambiguous"), std::string::npos);
    EXPECT_EQ(refusal({Constraint::Kind::grammar, left_recursive(20), {}}), "");
  }
  ConstraintLimits limits;
  limits.mask_work = 2000;
  Constraints small(tokenizer(), tokenizer().vocab_size(), {end_id()}, limits);
  const ConstraintHandle compiled = small.compile({Constraint::Kind::grammar, left_recursive(20), {}});
  compiled->wait();
  EXPECT_EQ(compiled->state(), CompiledConstraint::State::failed);
}

TEST(Constraints, WhatNothingSatisfiesIsRefused) {
  const std::vector<Constraint> impossible = {
      {Constraint::Kind::regex, R"([^\s\S])", {}},
      {Constraint::Kind::grammar, "root ::= root", {}},
      {Constraint::Kind::grammar, "root ::= \"a\" bad | \"b\"\nbad ::= bad \"x\"", {}},
      {Constraint::Kind::grammar, "root ::= \"a\" root", {}},
      schema_constraint(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
      schema_constraint(R"({"type": "string", "pattern": "^abc\"$"})"),
      schema_constraint(R"({"type": "string", "pattern": "a\\n"})"),
  };
  for (const Constraint& constraint : impossible) {
    const std::string why = refusal(constraint);
    EXPECT_NE(why.find("nothing "), std::string::npos) << constraint.text << ": " << why;
  }
  for (const char* text : {"root ::= \"\\ud800\"", "root ::= [\\udc00-\\udfff]", "root ::= Regex(\"\\\\ud800\")"}) {
    EXPECT_NE(refusal({Constraint::Kind::grammar, text, {}}).find("surrogate"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal({Constraint::Kind::grammar, "root ::= \"\\ud7ff\" [\\ue000\\\\ud8]", {}}), "");
}

// Ways of a pattern that need characters that JSON escapes are left out.
TEST(Constraints, APatternGoesAroundEscapes) {
  const Constraint path = schema_constraint(R"({"type": "string", "pattern": "^(C:\\\\|C:h\"|/home)x$"})");
  EXPECT_TRUE(accepts(path, "\"/homex\""));
  EXPECT_FALSE(accepts(path, "\"C"));
}

TEST(Constraints, ManyOptionalPropertiesAreRefused) {
  Json many = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 501; ++i) many["properties"][fmt::format("p{}", i)] = {{"type", "integer"}};
  const std::string why = refusal(schema_constraint(many.dump()));
  EXPECT_NE(why.find(".properties: more than 500 optional ones"), std::string::npos) << why;
  many["required"] = {"p7"};
  EXPECT_EQ(refusal(schema_constraint(many.dump())), "");
}

// Pairs of alternatives, values and names that have to be compared.
TEST(Constraints, SchemasWithTooMuchToCompareAreRefused) {
  const auto list = [](int count, const char* item) {
    std::string out = "[";
    for (int i = 0; i < count; ++i) out += (i > 0 ? "," : "") + fmt::format(fmt::runtime(item), i);
    return out + "]";
  };
  for (const std::string& schema :
       {R"({"oneOf": )" + list(50'000, R"({{"const": {}}})") + "}",
        R"({"allOf": [{"enum": )" + list(19'000, "{}") + R"(}, {"enum": )" + list(19'000, "{}") + "}]}",
        R"({"oneOf": [{"enum": )" + list(19'000, "1{}") + R"(}, {"enum": )" + list(19'000, "2{}") + "}]}",
        R"({"required": )" + list(60'000, "\"{}\"") + "}",
        R"({"enum": )" + list(19'000, "{}") + R"(, "anyOf": )" + list(50'000, "false") + "}"}) {
    EXPECT_EQ(refusal(schema_constraint(schema)), "json_schema: the schema is too complex") << schema.substr(0, 60);
  }
  EXPECT_EQ(refusal(schema_constraint(R"({"oneOf": )" + list(200, R"({{"const": {}}})") + "}")), "");
}

// What asks for unbounded work gets an error or an answer soon; ctest's time limit is the judge.
TEST(Constraints, HostileOnesEnd) {
  const auto around = [](std::string_view before, std::string_view inside, std::string_view after) {
    std::string out(before);
    out += inside;
    out += after;
    return out;
  };
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) {
    deep = around(R"({"type": "object", "properties": {"a": )", deep, R"(}, "required": ["a"]})");
  }
  Json branching = {{"type", "integer"}};
  for (int i = 0; i < 12; ++i) branching = {{"anyOf", {branching, branching}}};
  Json definitions = Json::object();
  for (int i = 0; i < 40; ++i) {
    const auto next = [&](char name) { return fmt::format("#/$defs/{}{}", name, i + 1); };
    definitions[fmt::format("d{}", i)] = {{"allOf", {{{"$ref", next('d')}}, {{"$ref", next('d')}}}}};
    definitions[fmt::format("e{}", i)] = {{"anyOf", {{{"$ref", next('e')}}, {{"$ref", next('e')}}}}};
  }
  definitions["d40"] = definitions["e40"] = {{"type", "integer"}};
  Json values = Json::array();
  for (int i = 0; i < 20'000; ++i) values.push_back(fmt::format("value number {}", i * 7919));
  Json many = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 2000; ++i) many["properties"][fmt::format("p{}", i)] = {{"type", "string"}};
  Json numbers = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 1900; ++i) numbers["properties"][fmt::format("p{}", i)] = {{"type", "integer"}};
  std::string optional;
  for (int i = 0; i < 2900; ++i) optional += "a?";
  const std::vector<Constraint> hostile = {
      schema_constraint(numbers.dump()),
      {Constraint::Kind::regex, optional + std::string(2900, 'a'), {}},
      {Constraint::Kind::grammar, left_recursive(500), {}},
      schema_constraint(deep),
      schema_constraint(std::string(100'000, '[')),
      schema_constraint(branching.dump()),
      schema_constraint(Json{{"$ref", "#/$defs/d0"}, {"$defs", definitions}}.dump()),
      schema_constraint(Json{{"$ref", "#/$defs/e0"}, {"$defs", definitions}}.dump()),
      schema_constraint(Json{{"enum", values}}.dump()),
      schema_constraint(many.dump()),
      schema_constraint(R"({"type": "string", "maxLength": 100000})"),
      schema_constraint(R"({"type": "string", "pattern": "(a|b|ab)*(a|b){60}c"})"),
      {Constraint::Kind::regex, "(x+x+)+y", {}},
      {Constraint::Kind::regex, "(.*a){40}.{200}", {}},
      {Constraint::Kind::regex, "((a{0,100}){0,100}){0,100}", {}},
      {Constraint::Kind::regex, around(std::string(20'000, '('), "a", std::string(20'000, ')')), {}},
      {Constraint::Kind::regex, "[a", {}},
      {Constraint::Kind::regex, R"((a)\1)", {}},
      {Constraint::Kind::grammar, "root ::= root", {}},
      {Constraint::Kind::grammar, "root ::= root \"a\" | \"a\" root root | \"\"", {}},
      {Constraint::Kind::grammar, "root ::= missing", {}},
      {Constraint::Kind::grammar, "no root at all", {}},
      {Constraint::Kind::grammar,
       around("root ::= ", std::string(50'000, '('), "\"a\"") + std::string(50'000, ')'),
       {}},
      {Constraint::Kind::grammar, "root ::= ((\"a\"{0,1000}){0,1000}){0,1000}", {}},
      {Constraint::Kind::grammar, "root ::= Token(99999999)", {}},
      {Constraint::Kind::grammar, "root ::= Special(\"no such\")", {}},
  };
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
  for (const Constraint& constraint : hostile) {
    const auto begun = std::chrono::steady_clock::now();
    std::string result;
    try {
      ConstraintMatcher matcher = matcher_of(constraint);
      matcher.fill(words);
      result = "compiled";
    } catch (const Error& error) {
      result = error.what();
      EXPECT_EQ(result.find('\n'), std::string::npos) << result;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    RecordProperty(fmt::format("hostile_{}", &constraint - hostile.data()),
                   fmt::format("{:.2f} s, {}", seconds, result.substr(0, 100)));
  }
  EXPECT_TRUE(accepts(schema_constraint(R"({"type": "integer"})"), "12"));  // the compiler lives
}

}  // namespace
}  // namespace m3::engine
