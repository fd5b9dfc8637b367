// Ends a text before the first of several strings, without ever letting out what might be their beginning.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace m3::engine {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  struct Result {
    std::string text;  // certain by now
    int matched = -1;  // index of the stop string that ended the text; nothing is accepted after it
  };
  // With `armed` false, nothing stops and nothing is held back (min_tokens).
  Result push(std::string_view text, bool armed = true);
  // The rest, once the text has ended for another reason.
  std::string flush();

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace m3::engine
