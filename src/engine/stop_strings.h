// Ends a text before the first of several strings, without ever letting out what might be their beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace m3::engine {

// The strings of one request, prepared once for all of its samples.
class StopList {
 public:
  explicit StopList(std::vector<std::string> stops);  // none empty

  std::size_t size() const { return stops_.size(); }
  const std::string& text(std::size_t i) const { return stops_[i]; }
  // How many bytes of stop `i` a text ends with that had `matched` of them (not all) and gets `next`.
  std::size_t advance(std::size_t i, std::size_t matched, char next) const;

 private:
  std::vector<std::string> stops_;
  // [i][n]: of the first n + 1 bytes, the longest proper beginning that they end with (Knuth, Morris and Pratt).
  std::vector<std::vector<std::uint32_t>> shorter_;
};

class StopStrings {
 public:
  explicit StopStrings(std::shared_ptr<const StopList> stops) : stops_(std::move(stops)), matched_(stops_->size()) {}

  struct Result {
    std::string text;  // certain by now
    int matched = -1;  // index of the stop string that ended the text; nothing is accepted after it
  };
  // With `armed` false, nothing stops and nothing is held back (min_tokens). Takes time in proportion to the text, for
  // each stop.
  Result push(std::string_view text, bool armed = true);
  // The rest, once the text has ended for another reason.
  std::string flush();

 private:
  std::shared_ptr<const StopList> stops_;
  std::vector<std::size_t> matched_;  // by stop: bytes of it that the text ends with
  std::string held_;                  // as much as the longest of these
};

}  // namespace m3::engine
