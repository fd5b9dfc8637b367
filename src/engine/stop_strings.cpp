#include "src/engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace m3::engine {

StopStrings::Result StopStrings::push(std::string_view text, bool armed) {
  held_ += text;
  if (!armed || stops_.empty()) return {std::exchange(held_, {}), -1};
  Result result;
  std::size_t first = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::size_t at = held_.find(stops_[i]);
    if (at == std::string::npos || at >= first) continue;
    first = at;
    result.matched = static_cast<int>(i);
  }
  if (result.matched >= 0) {
    result.text = held_.substr(0, first);
    held_.clear();
    return result;
  }
  // Hold back the longest end of the text that begins a stop string.
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (std::string_view(held_).substr(held_.size() - length) == std::string_view(stop).substr(0, length))
        keep = length;
    }
  }
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopStrings::flush() { return std::exchange(held_, {}); }

}  // namespace m3::engine
