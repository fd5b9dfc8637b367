// Constraints and reasoning through the whole engine, with the checkpoint that ships.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "m3/engine.h"
#include "src/chat/messages.h"
#include "src/chat/reply_rules.h"
#include "src/chat/template/json.h"
#include "tests/support/schema_check.h"
#include "tests/support/small_engine.h"

namespace m3 {
namespace {

using nlohmann::json;
using test::Replies;
using test::Reply;

class Constrained : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.checkpoint = M3_MODELS "/m3-tiny-chat";
    options.max_model_len = 1024;
    options.max_num_seqs = 8;
    engine_ = Engine::load(options);
  }
  static void TearDownTestSuite() { engine_.reset(); }
  static Engine& engine() { return *engine_; }
  static TokenId id(const char* text) { return engine().encode(text, true).at(0); }

  static Request request(const Constraint& constraint, std::uint64_t seed = 1) {
    Request made;
    made.prompt = "The old man said:";
    made.sampling.seed = seed;
    made.max_tokens = 300;
    made.constraint = constraint;
    return made;
  }
  static Reply run(const Request& asked) { return test::run_all(engine(), {asked}).of(0); }
  static Reasoning reasoning(Reasoning::Start start, std::optional<std::int64_t> budget = {}) {
    return {start, id("<mm:think>"), id("</mm:think>"), budget};
  }

 private:
  static std::unique_ptr<Engine> engine_;
};
std::unique_ptr<Engine> Constrained::engine_;

const json person = json::parse(R"({"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "mood": {"enum": ["glad", "sad"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["name", "age", "mood"]})");

TEST_F(Constrained, JsonSchema) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Request asked = request({Constraint::Kind::json_schema, person.dump(), {}}, seed);
    asked.sampling.temperature = seed % 2 == 0 ? 0.0f : 1.5f;
    asked.sampling.repetition_penalty = 1.2f;
    asked.logprobs = 3;
    const Reply reply = run(asked);
    ASSERT_EQ(reply.finish, FinishReason::stop) << reply.error << reply.text;
    EXPECT_EQ(test::schema_problem(json::parse(reply.text), person, person), "") << reply.text;
    EXPECT_EQ(reply.logprobs.size(), reply.ids.size());
  }
}

TEST_F(Constrained, JsonObjectChoiceRegexGrammar) {
  Request object = request({Constraint::Kind::grammar, "root ::= \"{\\\"a\\\": \" [0-9]{1,3} \"}\"", {}});
  EXPECT_TRUE(json::parse(run(object).text).at("a").is_number());
  const std::vector<std::string> choices = {"a ship", "a shop", "nothing"};
  const Reply chosen = run(request({Constraint::Kind::choice, {}, choices}));
  EXPECT_NE(std::ranges::find(choices, chosen.text), choices.end()) << chosen.text;
  EXPECT_EQ(chosen.finish, FinishReason::stop);
  const Reply matched = run(request({Constraint::Kind::regex, "[A-Z]{3}-[0-9]{2,4}", {}}));
  EXPECT_TRUE(std::regex_match(matched.text, std::regex("[A-Z]{3}-[0-9]{2,4}"))) << matched.text;
}

TEST_F(Constrained, ARequiredCallIsWellFormed) {
  const json body = {
      {"messages", {{{"role", "user"}, {"content", "Weather?"}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "person"}, {"strict", true}, {"parameters", person}}}}}},
      {"tool_choice", "required"},
      {"parallel_tool_calls", false},
      {"thinking", {{"type", "disabled"}}}};
  const Tokenizer tokenizer = Tokenizer::load(M3_MODELS "/m3-tiny-chat");
  const chat::Value parsed = chat::parse_json(body.dump(), "body");
  const chat::ChatRequest chat_request = chat::parse_chat_request(parsed);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Request asked = request({}, seed);
    chat::apply_reply_rules(parsed, chat_request, tokenizer, asked);
    const Reply reply = run(asked);
    ASSERT_EQ(reply.finish, FinishReason::stop) << reply.error;
    const auto output =
        chat::parse_output(engine().decode(reply.ids, false), chat_request.parsed_tools, chat::ThinkingMode::disabled);
    ASSERT_EQ(output.calls.size(), 1u);
    EXPECT_EQ(output.calls[0].name, "person");
    EXPECT_EQ(test::schema_problem(json::parse(output.calls[0].arguments), person, person), "");
  }
}

TEST_F(Constrained, ReasoningThenTheConstraint) {
  Request asked = request({Constraint::Kind::choice, {}, {"yes", "no"}});
  asked.reasoning = reasoning(Reasoning::Start::inside, 5);
  const Reply reply = run(asked);
  const auto end = std::ranges::find(reply.ids, asked.reasoning.end_id);
  ASSERT_NE(end, reply.ids.end());
  EXPECT_LE(end - reply.ids.begin(), 5);
  EXPECT_EQ(reply.usage.reasoning_tokens, end - reply.ids.begin() + 1);
  EXPECT_TRUE(reply.text.ends_with("yes") || reply.text.ends_with("no")) << reply.text;
  EXPECT_EQ(reply.finish, FinishReason::stop);

  asked.reasoning = reasoning(Reasoning::Start::either);
  asked.sampling.logit_bias = {{asked.reasoning.begin_id, -100.0f}, {asked.reasoning.end_id, -100.0f}};
  const Reply direct = run(asked);
  EXPECT_TRUE(direct.text == "yes" || direct.text == "no") << direct.text;
  EXPECT_EQ(direct.usage.reasoning_tokens, 0);
}

TEST_F(Constrained, ABudgetAloneAndACutInsideReasoning) {
  Request asked = request({});
  asked.max_tokens = 12;
  asked.ignore_eos = true;
  asked.reasoning = reasoning(Reasoning::Start::inside, 4);
  asked.sampling.logit_bias = {{asked.reasoning.end_id, -100.0f}};  // it would never end by itself
  const Reply limited = run(asked);
  EXPECT_EQ(limited.ids.at(4), asked.reasoning.end_id);
  EXPECT_EQ(limited.usage.reasoning_tokens, 5);
  asked.reasoning.budget.reset();
  const Reply cut = run(asked);
  EXPECT_EQ(cut.finish, FinishReason::length);
  EXPECT_EQ(cut.usage.reasoning_tokens, 12);
  EXPECT_EQ(cut.usage.completion_tokens, 12);
}

TEST_F(Constrained, SamplesAndCompanyChangeNothing) {
  Request several = request({Constraint::Kind::json_schema, person.dump(), {}}, 3);
  several.samples = 4;
  several.max_tokens = 400;  // what is drawn may be wordy
  std::vector<Request> all{several};
  for (std::uint64_t seed = 20; seed < 26; ++seed)
    all.push_back(request({Constraint::Kind::regex, "[a-z ]{1,30}", {}}, seed));
  all.push_back(request({}, 30));
  const Replies together = test::run_all(engine(), all);
  int whole = 0;
  for (int sample = 0; sample < 4; ++sample) {
    const Reply reply = together.of(0, sample);
    if (reply.finish == FinishReason::length) continue;
    ++whole;
    EXPECT_EQ(test::schema_problem(json::parse(reply.text), person, person), "") << reply.text;
  }
  EXPECT_GT(whole, 1);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_EQ(together.of(i).ids, run(all[i]).ids) << i;
}

TEST_F(Constrained, EndsWhereTheEndTokenMayNotCome) {
  Request asked = request({Constraint::Kind::choice, {}, {"abc"}});
  asked.min_tokens = 200;
  asked.max_tokens = 250;
  const Reply short_one = run(asked);
  EXPECT_EQ(short_one.text, "abc");
  EXPECT_EQ(short_one.finish, FinishReason::stop);
  asked.min_tokens = 0;
  asked.ignore_eos = true;
  const Reply ignoring = run(asked);
  EXPECT_EQ(ignoring.text, "abc");
  EXPECT_EQ(ignoring.finish, FinishReason::stop);
}

TEST_F(Constrained, ABadConstraintHurtsNobodyElse) {
  EXPECT_THROW(run(request({Constraint::Kind::json_schema, R"({"not": {}})", {}})), Error);
  EXPECT_THROW(run(request({Constraint::Kind::json_schema, "{", {}})), Error);
  EXPECT_THROW(run(request({Constraint::Kind::choice, {}, {}})), Error);
  Request unlimited = request({});
  unlimited.reasoning = {Reasoning::Start::outside, -1, -1, 5};
  EXPECT_THROW(run(unlimited), Error);
  EXPECT_THROW(run(request({Constraint::Kind::regex, "(a", {}})), Error);
  EXPECT_THROW(run(request({Constraint::Kind::grammar, "root ::= b", {}})), Error);
  // What only compiling shows is an event, before anything is generated.
  const Constraint absent{Constraint::Kind::grammar, "root ::= Token(99999999)", {}, "guided_grammar"};
  const Replies replies = test::run_all(engine(), {request(absent), request({Constraint::Kind::choice, {}, {"fine"}})});
  EXPECT_EQ(replies.of(0).finish, FinishReason::error);
  EXPECT_TRUE(replies.of(0).error.starts_with("guided_grammar: it cannot be compiled: ")) << replies.of(0).error;
  EXPECT_TRUE(replies.of(0).refused);
  EXPECT_EQ(replies.of(1).text, "fine");
  EXPECT_FALSE(replies.of(1).refused);
}

// Limits of the request that leave no token are its own fault.
TEST_F(Constrained, LimitsThatLeaveNothingAreRefused) {
  Request ends = request({});
  ends.sampling.allowed_ids = {id("[e~[")};
  ends.min_tokens = 3;
  Request form = request({Constraint::Kind::choice, {}, {"yes", "no"}});
  form.sampling.allowed_ids = {id("q")};
  for (const Request& asked : {ends, form}) {
    const Reply reply = run(asked);
    EXPECT_EQ(reply.finish, FinishReason::error);
    EXPECT_TRUE(reply.refused) << reply.error;
    EXPECT_TRUE(reply.error.starts_with("no token may follow")) << reply.error;
  }
}

TEST_F(Constrained, CancelledWhileItCompiles) {
  std::mutex mutex;
  std::condition_variable ended;
  int finished = 0;
  const auto sink = [&](const Event& event) {
    const std::lock_guard lock(mutex);
    if (event.finish != FinishReason::none) ++finished;
    ended.notify_one();
  };
  json values = json::array();
  for (int i = 0; i < 3000; ++i) values.push_back("number " + std::to_string(i * 31));
  const json large = {{"enum", values}};
  for (int i = 0; i < 3; ++i)
    engine().cancel(engine().submit(request({Constraint::Kind::json_schema, large.dump(), {}}), sink));
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return finished == 3; });
}

// Pre-empted sequences go on where their constraint was.
TEST(ConstrainedSmall, PreemptionKeepsTheConstraint) {
  test::SmallOptions options;
  options.pages = 6;
  options.sequences = 4;
  const auto engine = test::small_engine(options);
  std::vector<Request> requests;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Request request;
    request.prompt_ids = test::random_prompt(100, static_cast<std::uint32_t>(seed));
    request.sampling.seed = seed;
    request.max_tokens = 160;
    request.constraint = {Constraint::Kind::regex, "([a-f][0-9]){75}", {}};
    requests.push_back(request);
  }
  const Replies replies = test::run_all(*engine, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(std::regex_match(replies.of(i).text, std::regex("([a-f][0-9]){75}")))
        << replies.of(i).text << replies.of(i).error;
    EXPECT_EQ(replies.of(i).finish, FinishReason::stop);
  }
  EXPECT_GT(engine->statistics().preemptions, 0);
}

}  // namespace
}  // namespace m3
