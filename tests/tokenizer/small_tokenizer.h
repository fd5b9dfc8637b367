// A tokenizer.json made by hand, for tests to bend.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "src/tokenizer/byte_symbols.h"
#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/utf8.h"

namespace m3::testing {

// Ids 0 … 255 are the bytes, 256 "ab", 257 "abc", 258 " a"; 300 <s> (special), 301 <think>, 302 <|a|> (special).
inline nlohmann::json small_file() {
  nlohmann::json vocab;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string symbol;
    append_utf8(symbol, byte_symbol(static_cast<std::uint8_t>(byte)));
    vocab[symbol] = byte;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["\u0120a"] = 258;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 300}, {"content", "<s>"}, {"special", true}},
            {{"id", 301}, {"content", "<think>"}, {"special", false}, {"normalized", false}},
            {{"id", 302}, {"content", "<|a|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c", "\u0120 a"}}}}};
}

inline Tokenizer parse(const nlohmann::json& file) { return Tokenizer::parse(file.dump(), "small.json"); }

}  // namespace m3::testing
