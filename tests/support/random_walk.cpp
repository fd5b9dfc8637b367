#include "tests/support/random_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace m3::test {
namespace {

// Whether a token is likely to bring a text nearer to its end, for JSON and for M3's tags.
bool closes(std::string_view bytes) {
  return bytes.starts_with("</") || bytes == "]<]minimax[>[" || bytes == "}" || bytes == "]" || bytes == "\"" ||
         bytes == ">" || bytes == "@" || bytes == "." || bytes == "/" || bytes == ":";
}

}  // namespace

std::vector<TokenId> allowed_ids(std::span<const std::uint32_t> words) {
  std::vector<TokenId> ids;
  for (std::size_t word = 0; word < words.size(); ++word) {
    for (std::uint32_t bits = words[word]; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<TokenId>(word * 32 + static_cast<std::size_t>(__builtin_ctz(bits))));
    }
  }
  return ids;
}

std::vector<TokenId> random_walk(engine::ReplyGate& gate, const Tokenizer& tokenizer, std::int64_t vocab_size,
                                 TokenId end_id, std::mt19937& random, std::size_t soft_limit, std::size_t hard_limit) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(vocab_size + 31) / 32);
  std::vector<TokenId> ids;
  while (true) {
    gate.fill(words);
    const std::vector<TokenId> allowed = allowed_ids(words);
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow: " << tokenizer.decode(ids).substr(0, 300);
      return ids;
    }
    const bool may_end = std::ranges::find(allowed, end_id) != allowed.end();
    TokenId id = allowed[random() % allowed.size()];
    if (ids.size() >= soft_limit) {
      if (may_end) return ids;
      std::vector<TokenId> closing;
      std::ranges::copy_if(allowed, std::back_inserter(closing),
                           [&](TokenId one) { return closes(tokenizer.token_bytes(one)); });
      const TokenId quote = tokenizer.id_of("\"");
      if (random() % 2 == 0 && std::ranges::find(closing, quote) != closing.end()) {
        id = quote;
      } else if (!closing.empty() && random() % 8 != 0)
        id = closing[random() % closing.size()];
    }
    if (id == end_id) return ids;
    if (ids.size() == hard_limit) {
      ADD_FAILURE() << "no end after " << hard_limit << " tokens: " << tokenizer.decode(ids).substr(0, 300);
      return ids;
    }
    gate.accept(id);
    ids.push_back(id);
  }
}

}  // namespace m3::test
