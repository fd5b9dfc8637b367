// JSON Schemas to grammars, and small grammars through the compiler to a first mask. Nothing but m3::Error may come out.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "m3/error.h"
#include "src/engine/constraint.h"
#include "src/grammar/json_rules.h"
#include "tests/tokenizer/small_tokenizer.h"

namespace {

using m3::Constraint;

m3::engine::Constraints& constraints() {
  static const m3::Tokenizer tokenizer = m3::Tokenizer::parse(m3::testing::small_file().dump(), "fuzz tokenizer");
  static m3::engine::Constraints made(tokenizer, tokenizer.vocab_size(), {0});
  return made;
}

void compile(const Constraint& constraint) {
  const auto compiled = constraints().compile(constraint);
  compiled->wait();
  if (compiled->state() != m3::engine::CompiledConstraint::State::ready) return;
  m3::engine::ConstraintMatcher matcher = constraints().matcher(*compiled);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(constraints().vocab_size() + 31) / 32);
  for (int step = 0; step < 8; ++step) {
    matcher.fill(words);
    m3::TokenId token = -1;
    for (std::size_t word = 0; word < words.size() && token < 0; ++word) {
      if (words[word] != 0)
        token = static_cast<m3::TokenId>(word * 32 + static_cast<std::size_t>(__builtin_ctz(words[word])));
    }
    if (token < 0 || !matcher.accept(token)) break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t most_compiled = 4096;  // bytes of a grammar: larger ones take their time
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    m3::grammar::json_schema_grammar(text, "schema", m3::grammar::Strictness::lenient);
  } catch (const m3::Error&) {}
  try {
    const std::string grammar = m3::grammar::json_schema_grammar(text, "schema");
    if (grammar.size() <= most_compiled) compile({Constraint::Kind::grammar, grammar, {}});
  } catch (const m3::Error&) {}
  return 0;
}
