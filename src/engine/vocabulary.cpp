#include "src/engine/vocabulary.h"

#include "src/base/error.h"

namespace m3::engine {

namespace {

void clear_bit(std::vector<std::uint32_t>& words, TokenId id) {
  words[static_cast<std::size_t>(id) / 32] &= ~(1u << (static_cast<unsigned>(id) % 32));
}

}  // namespace

Vocabulary make_vocabulary(const Tokenizer& tokenizer, const GenerationConfig& config, std::int64_t vocab_size) {
  Vocabulary vocabulary;
  for (const std::int32_t id : config.eos_token_ids) {
    if (id < 0 || id >= vocab_size)
      fail("generation_config.json: eos_token_id {} is outside the vocabulary of {}", id, vocab_size);
    vocabulary.end_ids.push_back(id);
  }
  if (vocabulary.end_ids.empty()) {
    const std::int32_t end = tokenizer.id_of("[e~[");
    if (end >= 0 && end < vocab_size) vocabulary.end_ids.push_back(end);
  }
  std::vector<std::uint32_t> allowed(static_cast<std::size_t>(vocab_size + 31) / 32, 0xffffffffu);
  bool all = true;
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (tokenizer.has_token(id)) continue;
    clear_bit(allowed, id);
    all = false;
  }
  if (!all) vocabulary.allowed = allowed;
  vocabulary.allowed_no_end = std::move(allowed);
  for (const TokenId id : vocabulary.end_ids) clear_bit(vocabulary.allowed_no_end, id);
  return vocabulary;
}

}  // namespace m3::engine
