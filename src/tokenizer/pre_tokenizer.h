// Cutting a text into the pieces that BPE may not cross: Split steps, then ByteLevel.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/tokenizer/known_patterns.h"
#include "src/tokenizer/regex_pattern.h"

namespace m3 {

// One Split step. Behaviours Isolated (matches and what lies between are pieces) and Removed (what lies
// between only; with `invert` the matches only).
struct SplitStep {
  enum class Keep { all, between, matches };
  std::variant<KnownPattern, RegexPattern, std::string> pattern;  // std::string: a literal
  Keep keep = Keep::all;
};

struct PreTokenizer {
  std::vector<SplitStep> splits;
  bool add_prefix_space = false;  // of ByteLevel: a piece without a leading space gets one
  bool gpt2_split = false;        // of ByteLevel: use_regex

  // Calls visit(std::string_view piece) for each piece in order; a piece is never empty, and lives for the
  // call only. Errors: a pattern outside the known family that exceeds its engine's limits.
  template <typename Visit>
  void for_each_piece(std::string_view text, Visit&& visit) const {
    if (const KnownPattern only = only_known_pattern(); only != KnownPattern::none) {
      for_each_known_piece(only, text,
                           [&](std::size_t begin, std::size_t end) { visit(text.substr(begin, end - begin)); });
      return;
    }
    std::string prefixed;
    for (const auto& [begin, end] : split(text)) {
      std::string_view piece = text.substr(begin, end - begin);
      if (add_prefix_space && !piece.starts_with(' ')) {
        prefixed.assign(1, ' ').append(piece);
        piece = prefixed;
      }
      if (!gpt2_split) {
        visit(piece);
        continue;
      }
      for_each_known_piece(KnownPattern::gpt2, piece,
                           [&](std::size_t from, std::size_t to) { visit(piece.substr(from, to - from)); });
    }
  }

 private:
  using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;
  // The pattern, where one known pattern decides alone: the usual case, without intermediate lists.
  KnownPattern only_known_pattern() const;
  // The pieces after all Split steps.
  Ranges split(std::string_view text) const;
};

}  // namespace m3
