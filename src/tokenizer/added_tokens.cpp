#include "src/tokenizer/added_tokens.h"

#include <algorithm>

#include "src/tokenizer/char_classes.h"

namespace m3 {

namespace {

bool starts_with_word(std::string_view text) { return !text.empty() && is_word_character(decode_utf8(text, 0).code); }

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(decode_utf8_backwards(text, 0, text.size()).code);
}

std::size_t without_trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const Utf8Character last = decode_utf8_backwards(text, 0, end);
    if (!is_space(char_class(last.code))) break;
    end -= last.length;
  }
  return end;
}

std::size_t leading_space(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    const ClassedChar character = classed_at(text, end);
    if (!is_space(character.value)) break;
    end += character.length;
  }
  return end;
}

}  // namespace

void AddedTokenFinder::Trie::insert(std::string_view content, std::int32_t token) {
  first_bytes[static_cast<unsigned char>(content[0])] = true;
  std::uint32_t node = 0;
  for (const char value : content) {
    const auto byte = static_cast<unsigned char>(value);
    const auto& children = nodes[node].children;
    const auto found = std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == byte; });
    if (found != children.end()) {
      node = found->second;
      continue;
    }
    const auto next = static_cast<std::uint32_t>(nodes.size());
    nodes[node].children.emplace_back(byte, next);
    nodes.emplace_back();
    node = next;
  }
  nodes[node].token = token;
}

std::int32_t AddedTokenFinder::Trie::longest(std::string_view text) const {
  std::int32_t best = -1;
  std::uint32_t node = 0;
  for (const char value : text) {
    const auto& children = nodes[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& c) { return c.first == static_cast<unsigned char>(value); });
    if (found == children.end()) break;
    node = found->second;
    if (nodes[node].token >= 0) best = nodes[node].token;
  }
  return best;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    (tokens_[i].normalized ? normalized_ : plain_).insert(tokens_[i].content, static_cast<std::int32_t>(i));
  }
}

// The context of a match is text[begin, end): what an earlier pass left between its tokens.
void AddedTokenFinder::find_in(const Trie& trie, std::string_view text, std::size_t begin, std::size_t end,
                               const ByteRanges& allowed, std::vector<TextSection>& sections) const {
  std::size_t taken = begin;
  auto range = std::partition_point(allowed.begin(), allowed.end(), [&](const auto& r) { return r.second <= begin; });
  for (; range != allowed.end() && range->first < end; ++range) {
    const std::size_t limit = std::min(range->second, end);
    for (std::size_t at = std::max(range->first, begin); at < limit;) {
      if (!trie.first_bytes[static_cast<unsigned char>(text[at])]) {
        ++at;
        continue;
      }
      const std::int32_t index = trie.longest(text.substr(at, limit - at));
      if (index < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
      std::size_t from = at;
      std::size_t to = at + token.content.size();
      at = to;
      const std::string_view before = text.substr(begin, from - begin);
      const std::string_view after = text.substr(to, end - to);
      if (token.single_word && (ends_with_word(before) || starts_with_word(after))) continue;
      if (token.lstrip) from = std::max(begin + without_trailing_space(before), taken);
      if (token.rstrip) to += leading_space(after);
      if (taken < from) sections.push_back({taken, from, -1});
      sections.push_back({from, to, token.id});
      taken = to;
    }
  }
  if (taken < end) sections.push_back({taken, end, -1});
}

std::vector<TextSection> AddedTokenFinder::find(std::string_view text, const ByteRanges& allowed) const {
  std::vector<TextSection> first;
  find_in(plain_, text, 0, text.size(), allowed, first);
  if (normalized_.nodes.size() == 1) return first;
  std::vector<TextSection> sections;
  for (const TextSection& section : first) {
    if (section.id >= 0) {
      sections.push_back(section);
    } else {
      find_in(normalized_, text, section.begin, section.end, allowed, sections);
    }
  }
  return sections;
}

}  // namespace m3
