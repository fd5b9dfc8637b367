// What ends replies and which ids may be drawn, for one checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "m3/request.h"
#include "src/checkpoint/generation_config.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::engine {

struct Vocabulary {
  std::vector<TokenId> end_ids;
  std::vector<std::uint32_t> allowed;         // ids with a token; empty = every id has one
  std::vector<std::uint32_t> allowed_no_end;  // the same without end_ids (before min_tokens)
};

// `config.eos_token_ids`, else the id of `[e~[`.
Vocabulary make_vocabulary(const Tokenizer& tokenizer, const GenerationConfig& config, std::int64_t vocab_size);

}  // namespace m3::engine
