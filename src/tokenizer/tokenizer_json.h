// tokenizer.json as JSON: vocabulary and merges, which make up nearly all of it, are streamed into flat
// lists; the rest becomes a document. Twice as fast as a document of everything, and a token that stands
// twice is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace m3 {

struct TokenizerJson {
  nlohmann::json document;  // without model.vocab and model.merges
  std::string pool;         // all texts of the two, one after another

  struct Text {
    std::size_t offset = 0;
    std::size_t length = 0;
  };
  std::string_view text(Text range) const { return std::string_view(pool).substr(range.offset, range.length); }

  bool has_vocab = false;
  bool has_merges = false;
  std::vector<std::pair<Text, std::uint64_t>> vocab;
  std::vector<std::pair<Text, Text>> merges;
};

// Errors: not JSON, a key twice in one object, nesting deeper than 64, and entries of vocab and merges of a
// wrong form; model.vocab that is no object stays in the document.
TokenizerJson parse_tokenizer_json(std::string_view json, const std::string& where);

}  // namespace m3
