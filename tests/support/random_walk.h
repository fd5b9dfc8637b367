// Replies drawn at random under a constraint's masks.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "src/engine/reply_gate.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::test {

std::vector<TokenId> allowed_ids(std::span<const std::uint32_t> words);

// Draws tokens until an end token, which is not among the result; from `soft_limit` tokens on, tokens that close
// something are preferred. Every mask must allow something; the test fails otherwise, and where `hard_limit` tokens do
// not suffice.
std::vector<TokenId> random_walk(engine::ReplyGate& gate, const Tokenizer& tokenizer, std::int64_t vocab_size,
                                 TokenId end_id, std::mt19937& random, std::size_t soft_limit = 40,
                                 std::size_t hard_limit = 2000);

}  // namespace m3::test
