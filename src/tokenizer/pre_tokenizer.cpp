#include "src/tokenizer/pre_tokenizer.h"

namespace m3 {

namespace {

using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

Ranges find_matches(const SplitStep& step, std::string_view text) {
  if (const auto* regex = std::get_if<RegexPattern>(&step.pattern)) return regex->matches(text);
  Ranges found;
  if (const auto* known = std::get_if<KnownPattern>(&step.pattern)) {
    for_each_known_piece(*known, text, [&](std::size_t begin, std::size_t end) { found.emplace_back(begin, end); });
    return found;
  }
  const auto& literal = std::get<std::string>(step.pattern);
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    found.emplace_back(at, at + literal.size());
  }
  return found;
}

// Appends the pieces of text[base, base + text.size()) to `pieces`, in positions of the whole text.
void apply(const SplitStep& step, std::string_view text, std::size_t base, Ranges& pieces) {
  const auto push = [&](std::size_t begin, std::size_t end) {
    if (begin < end) pieces.emplace_back(base + begin, base + end);
  };
  std::size_t previous = 0;
  for (const auto& [begin, end] : find_matches(step, text)) {
    if (step.keep != SplitStep::Keep::matches) push(previous, begin);
    if (step.keep != SplitStep::Keep::between) push(begin, end);
    previous = end;
  }
  if (step.keep != SplitStep::Keep::matches) push(previous, text.size());
}

}  // namespace

KnownPattern PreTokenizer::only_known_pattern() const {
  if (add_prefix_space) return KnownPattern::none;
  if (splits.empty()) return gpt2_split ? KnownPattern::gpt2 : KnownPattern::none;
  if (splits.size() != 1 || gpt2_split || splits[0].keep == SplitStep::Keep::between) return KnownPattern::none;
  const auto* known = std::get_if<KnownPattern>(&splits[0].pattern);
  return known == nullptr ? KnownPattern::none : *known;
}

PreTokenizer::Ranges PreTokenizer::split(std::string_view text) const {
  Ranges pieces;
  if (!text.empty()) pieces.emplace_back(0, text.size());
  for (const SplitStep& step : splits) {
    Ranges next;
    for (const auto& [begin, end] : pieces) apply(step, text.substr(begin, end - begin), begin, next);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace m3
