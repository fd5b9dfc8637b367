#include "src/engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace m3::engine {

StopList::StopList(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    std::vector<std::uint32_t>& shorter = shorter_.emplace_back(stop.size());
    for (std::size_t n = 1, matched = 0; n < stop.size(); ++n) {
      while (matched > 0 && stop[matched] != stop[n]) matched = shorter[matched - 1];
      if (stop[matched] == stop[n]) ++matched;
      shorter[n] = static_cast<std::uint32_t>(matched);
    }
  }
}

std::size_t StopList::advance(std::size_t i, std::size_t matched, char next) const {
  const std::string& stop = stops_[i];
  while (matched > 0 && stop[matched] != next) matched = shorter_[i][matched - 1];
  return stop[matched] == next ? matched + 1 : 0;
}

StopStrings::Result StopStrings::push(std::string_view text, bool armed) {
  const std::size_t before = held_.size();
  held_ += text;
  if (!armed || stops_->size() == 0) return {flush(), -1};
  Result result;
  std::size_t first = std::string::npos;  // where the stop begins that begins first
  std::size_t keep = 0;
  for (std::size_t i = 0; i < stops_->size(); ++i) {
    const std::size_t length = stops_->text(i).size();
    std::size_t& matched = matched_[i];
    std::size_t at = 0;
    while (at < text.size() && matched < length) matched = stops_->advance(i, matched, text[at++]);
    keep = std::max(keep, matched);
    if (matched < length || before + at - length >= first) continue;
    first = before + at - length;
    result.matched = static_cast<int>(i);
  }
  if (result.matched >= 0) {
    result.text = held_.substr(0, first);
    held_.clear();
    return result;
  }
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopStrings::flush() {
  std::ranges::fill(matched_, 0);
  return std::exchange(held_, {});
}

}  // namespace m3::engine
