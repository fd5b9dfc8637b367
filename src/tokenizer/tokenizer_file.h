// Reading tokenizer.json: what it holds, checked, and nothing this program cannot honour.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/added_tokens.h"
#include "src/tokenizer/merge_table.h"
#include "src/tokenizer/pre_tokenizer.h"
#include "src/tokenizer/vocabulary.h"

namespace m3 {

struct TokenizerFile {
  Vocabulary vocabulary;  // ordinary and added tokens
  std::vector<Merge> merges;
  std::vector<AddedToken> added_tokens;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;  // a piece that is a token is taken whole
};

// `where` (the file's name) begins every error line. Errors: text that is not JSON; a component, option or
// key that is not implemented, by name; ids or spellings used twice or out of range; merges of absent tokens.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace m3
