// The stored reference data of tests/data/tokenizer, made by tools/tokenizer/make_test_data.py.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/tokenizer/merge_table.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/support/xz.h"

namespace m3::testing {

inline std::filesystem::path stored_file(std::string_view name) {
  return std::filesystem::path(M3_TEST_DATA) / "tokenizer" / name;
}

using test::read_xz;

// Calls visit(json) for each line of a .jsonl.xz file; returns the number of lines.
inline std::size_t for_each_line(std::string_view name, const std::function<void(const nlohmann::json&)>& visit) {
  const std::string text = read_xz(stored_file(name));
  std::size_t lines = 0;
  for (std::size_t start = 0; start < text.size(); ++lines) {
    const std::size_t end = text.find('\n', start);
    visit(nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(start),
                                text.begin() + static_cast<std::ptrdiff_t>(end)));
    start = end + 1;
  }
  return lines;
}

// The o200k tokenizer, read once.
inline const Tokenizer& o200k() {
  static const Tokenizer tokenizer = Tokenizer::parse(read_xz(stored_file("o200k-tokenizer.json.xz")), "o200k");
  return tokenizer;
}

// The definition of byte-pair encoding, word for word: while any neighbours can merge, merge the pair of lowest rank,
// the leftmost of equals.
inline std::vector<std::int32_t> naive_bpe(const MergeTable& merges, std::vector<std::int32_t> symbols) {
  while (true) {
    std::uint32_t lowest = MergeTable::no_rank;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const std::uint32_t rank =
          merges.rank(static_cast<std::uint32_t>(symbols[i]), static_cast<std::uint32_t>(symbols[i + 1]));
      if (rank < lowest) {
        lowest = rank;
        at = i;
      }
    }
    if (lowest == MergeTable::no_rank) return symbols;
    symbols[at] = static_cast<std::int32_t>(merges.result(lowest));
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

}  // namespace m3::testing
