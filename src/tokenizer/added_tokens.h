// Added tokens: texts that become one token wherever they stand, before anything else looks at the text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace m3 {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = true;    // found after those that are not, in what they left
  bool special = false;      // left out by a decode that skips special tokens
};

// A part of a text: an added token, or text between them (id −1).
struct TextSection {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t id = -1;
};

// Byte ranges, ascending and apart.
using ByteRanges = std::vector<std::pair<std::size_t, std::size_t>>;

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // `tokens` have distinct, non-empty contents.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // Cuts `text` at the added tokens that lie wholly inside one of `allowed`. Of those that begin earliest the
  // longest is taken. Text outside `allowed` is context for single_word, lstrip and rstrip.
  std::vector<TextSection> find(std::string_view text, const ByteRanges& allowed) const;

 private:
  // A trie of contents; node 0 is the root.
  struct Trie {
    struct Node {
      std::int32_t token = -1;  // index into tokens_
      std::vector<std::pair<unsigned char, std::uint32_t>> children;
    };
    std::vector<Node> nodes = std::vector<Node>(1);
    std::array<bool, 256> first_bytes{};
    void insert(std::string_view content, std::int32_t token);
    // The longest content that begins at text[0]; −1 for none.
    std::int32_t longest(std::string_view text) const;
  };

  void find_in(const Trie& trie, std::string_view text, std::size_t begin, std::size_t end, const ByteRanges& allowed,
               std::vector<TextSection>& sections) const;

  std::vector<AddedToken> tokens_;
  Trie plain_;
  Trie normalized_;
};

}  // namespace m3
