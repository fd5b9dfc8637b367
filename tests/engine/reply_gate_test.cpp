// Reasoning, budgets and constraints of one sample.
#include "src/engine/reply_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/random_walk.h"

namespace m3::engine {
namespace {

class Gate : public testing::Test {
 protected:
  static const Tokenizer& tokenizer() {
    static const Tokenizer loaded = Tokenizer::load(M3_MODELS "/m3-tiny-chat");
    return loaded;
  }
  static Constraints& constraints() {
    static Constraints shared(tokenizer(), tokenizer().vocab_size(), {tokenizer().id_of("[e~[")});
    return shared;
  }
  ReplyGate gate(Reasoning::Start start, const std::string& choice, std::optional<std::int64_t> budget = {}) {
    std::optional<ConstraintMatcher> matcher;
    if (!choice.empty()) {
      const auto compiled = constraints().compile({Constraint::Kind::choice, {}, {choice}});
      compiled->wait();
      matcher = constraints().matcher(*compiled);
    }
    return ReplyGate({start, begin, end, budget}, std::move(matcher), &tags, std::vector{eos});
  }
  std::vector<TokenId> allowed(ReplyGate& gate) const {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(tokenizer().vocab_size() + 31) / 32);
    gate.fill(words);
    return test::allowed_ids(words);
  }
  bool may_come(ReplyGate& gate, TokenId id) const {
    const auto ids = allowed(gate);
    return std::ranges::find(ids, id) != ids.end();
  }
  static void accept_text(ReplyGate& gate, const std::string& text) {
    for (const TokenId id : tokenizer().encode(text)) gate.accept(id);
  }

  TokenId begin = tokenizer().id_of("<mm:think>"), end = tokenizer().id_of("</mm:think>");
  TokenId eos = tokenizer().id_of("[e~["), a = tokenizer().id_of("a"), b = tokenizer().id_of("b");
  ThinkTags tags{tokenizer(), tokenizer().vocab_size(), begin, end};
};

TEST_F(Gate, NothingIsLimitedWithoutAConstraint) {
  ReplyGate free = gate(Reasoning::Start::inside, "");
  EXPECT_FALSE(free.limits());
  free.accept(a);
  free.accept(end);
  free.accept(a);
  EXPECT_EQ(free.reasoning_tokens(), 2);
  EXPECT_TRUE(free.may_end());
}

TEST_F(Gate, TheConstraintBeginsBehindTheReasoning) {
  ReplyGate inside = gate(Reasoning::Start::inside, "b");
  EXPECT_TRUE(inside.limits());
  EXPECT_TRUE(inside.in_reasoning());
  EXPECT_TRUE(may_come(inside, a));
  EXPECT_TRUE(may_come(inside, end));
  EXPECT_FALSE(may_come(inside, eos));  // a reply without its answer would not satisfy the constraint
  EXPECT_FALSE(inside.may_end());
  inside.accept(a);
  inside.accept(end);
  EXPECT_EQ(allowed(inside), std::vector{b});
  inside.accept(b);
  EXPECT_EQ(allowed(inside), std::vector{eos});
  EXPECT_TRUE(inside.may_end());
  inside.accept(eos);
  EXPECT_TRUE(inside.finished());
  EXPECT_EQ(inside.reasoning_tokens(), 2);
}

TEST_F(Gate, TheFirstTokenDecides) {
  std::vector<TokenId> first{b, begin, end};
  std::ranges::sort(first);
  ReplyGate answers = gate(Reasoning::Start::either, "b");
  EXPECT_EQ(allowed(answers), first);
  answers.accept(b);
  EXPECT_EQ(allowed(answers), std::vector{eos});
  EXPECT_EQ(answers.reasoning_tokens(), 0);

  ReplyGate declines = gate(Reasoning::Start::either, "b");
  declines.accept(end);
  EXPECT_EQ(allowed(declines), std::vector{b});
  EXPECT_EQ(declines.reasoning_tokens(), 1);

  ReplyGate thinks = gate(Reasoning::Start::either, "b");
  thinks.accept(begin);
  thinks.accept(a);
  thinks.accept(end);
  EXPECT_EQ(allowed(thinks), std::vector{b});
  EXPECT_EQ(thinks.reasoning_tokens(), 3);
}

TEST_F(Gate, ABudgetForcesTheEndTag) {
  ReplyGate limited = gate(Reasoning::Start::either, "", 2);
  limited.accept(begin);
  EXPECT_TRUE(limited.limits());
  limited.accept(a);
  EXPECT_GT(allowed(limited).size(), 1u);
  limited.accept(a);
  EXPECT_EQ(allowed(limited), std::vector{end});
  limited.accept(end);
  EXPECT_FALSE(limited.limits());
  EXPECT_EQ(limited.reasoning_tokens(), 4);
  ReplyGate none = gate(Reasoning::Start::inside, "b", 0);
  EXPECT_EQ(allowed(none), std::vector{end});
}

TEST_F(Gate, TheEndTagIsNotSpelledInLetters) {
  ReplyGate inside = gate(Reasoning::Start::inside, "b");
  const TokenId close = tokenizer().id_of(">");
  ASSERT_GE(close, 0);
  accept_text(inside, "so </mm:thin");
  EXPECT_TRUE(may_come(inside, close));
  accept_text(inside, "k");
  EXPECT_FALSE(may_come(inside, close));
  EXPECT_TRUE(may_come(inside, end));
  accept_text(inside, "s");
  EXPECT_TRUE(may_come(inside, close));
}

TEST_F(Gate, RollbackRestoresEveryState) {
  std::mt19937 random(5);
  for (const auto start : {Reasoning::Start::outside, Reasoning::Start::inside, Reasoning::Start::either}) {
    ReplyGate walked = gate(start, "abab", 6);
    std::vector<std::vector<TokenId>> masks;
    std::vector<std::int64_t> counts;
    for (int step = 0; step < 200; ++step) {
      const auto ids = allowed(walked);
      if (ids.empty() || random() % 5 == 0) {
        const auto back = masks.empty() ? 0 : 1 + random() % masks.size();
        walked.rollback(static_cast<int>(back));
        masks.resize(masks.size() - back);
        counts.resize(masks.size());
        continue;
      }
      masks.push_back(ids);
      counts.push_back(walked.reasoning_tokens());
      const bool thinking = walked.in_reasoning() && random() % 3 == 0;
      walked.accept(thinking ? end : ids[random() % ids.size()]);
      if (random() % 2 == 0) continue;
      walked.rollback(1);
      ASSERT_EQ(allowed(walked), masks.back());
      ASSERT_EQ(walked.reasoning_tokens(), counts.back());
      masks.pop_back();
      counts.pop_back();
    }
  }
}

}  // namespace
}  // namespace m3::engine
